"""Which tiles a Triton kernel works on under a schedule: admissible sizes, and those to begin with.

A tile has ROWS kept positions and BLOCK reduced ones; a kernel that reduces nothing has BLOCK
positions alone. Sizes are powers of two, as Triton wants them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from kerntree.coder.kernel import At, Kernel
from kerntree.coder.program import Schedule

MOST_KEPT = 1 << 15  # elements of a row that one program holds in registers
_MOST_TILE = 1 << 15
_LEAST_PART = 1 << 12  # elements of a row's part: smaller ones are all waiting
_MOST_PARTS = 256  # programs that a large GPU runs at once, each with a full tile


@dataclass(frozen=True)
class Tiles:
    """Sizes by name, each with its admissible values in ascending order, and the first choice.

    `whole`: a program holds all it needs of a row (or of its part of it) in one tile. `split`:
    several programs share a row.
    """

    choices: Mapping[str, tuple[int, ...]]
    first: Mapping[str, int]
    whole: bool = False
    split: bool = False

    def largest(self, name: str) -> int:
        """The largest value of a size; 1 where there is no such size."""
        return max(self.choices.get(name, (1,)))


def tiles_of(kernel: Kernel, schedule: Schedule) -> Tiles:
    """The tiles of a kernel under a schedule."""
    rows = prod(kernel.dims[d].extent for d in kernel.kept)
    columns = prod(kernel.dims[d].extent for d in kernel.reduced)
    if not kernel.reduced:
        return _flat(rows, schedule)
    # a gathered element may be another program's, which has overwritten it in place by then
    if schedule.split and not any(isinstance(i, At) for i in kernel.body):
        return _split(columns, schedule)
    columns_up = power_of_two(columns)
    outer = schedule.order == "reduce_outer"
    if schedule.keep_row and columns_up <= MOST_KEPT:
        most = min(max(_MOST_TILE // columns_up, 1), power_of_two(rows), 1024 if outer else 32)
        about = max((1 << 15 if outer else 1 << 12) // columns_up, 1)
        choices = {"ROWS": powers(1, most), "BLOCK": (columns_up,)}
        first = {"ROWS": min(about, most), "BLOCK": columns_up}
        return _with_launch(choices, first, schedule, whole=True)
    if outer:
        choices = {
            "ROWS": powers(min(32, power_of_two(rows)), min(512, power_of_two(rows))),
            "BLOCK": powers(min(4, columns_up), min(64, columns_up)),
        }
        first = {"ROWS": min(128, max(choices["ROWS"])), "BLOCK": min(16, columns_up)}
    else:
        most_rows = min(8, power_of_two(rows)) if columns <= 4096 else 1
        choices = {
            "ROWS": powers(1, most_rows),
            "BLOCK": powers(min(512, columns_up), min(16384, columns_up)),
        }
        first = {"ROWS": 1, "BLOCK": min(4096, columns_up)}
    return _with_launch(choices, first, schedule, loops=True)


def _flat(count: int, schedule: Schedule) -> Tiles:
    up = power_of_two(count)
    choices = {"BLOCK": powers(min(256, up), min(8192, up))}
    return _with_launch(choices, {"BLOCK": min(1024, up)}, schedule)


def _split(columns: int, schedule: Schedule) -> Tiles:
    up = power_of_two(columns)
    if schedule.keep_row:
        least = max(min(_LEAST_PART, up), power_of_two(-(-columns // _MOST_PARTS)))
        blocks = powers(min(least, _MOST_TILE), min(_MOST_TILE, up))
        first = {"ROWS": 1, "BLOCK": max(min(1 << 14, up), blocks[0])}
        return _with_launch(
            {"ROWS": (1,), "BLOCK": blocks}, first, schedule, whole=True, split=True
        )
    most = max(up // _LEAST_PART, 1)
    choices = {
        "ROWS": (1,),
        "BLOCK": powers(min(1024, up), min(16384, up)),
        "PARTS": powers(1, min(most, 512)),
    }
    first = {"ROWS": 1, "BLOCK": min(4096, up), "PARTS": min(most, 32)}
    return _with_launch(choices, first, schedule, loops=True, split=True)


def _with_launch(
    choices: Mapping[str, tuple[int, ...]],
    first: Mapping[str, int],
    schedule: Schedule,
    *,
    whole: bool = False,
    split: bool = False,
    loops: bool = False,
) -> Tiles:
    tile = prod(first.get(name, 1) for name in ("ROWS", "BLOCK"))
    most = prod(max(choices.get(name, (1,))) for name in ("ROWS", "BLOCK"))
    warps = powers(min(4, max(most // 128, 1)), min(32, max(most // 256, 1)))
    each = 2048 if whole else 512  # elements of a warp
    start = max(w for w in warps if w <= max(tile // each, min(warps)))
    all_choices, all_first = {**choices, "WARPS": warps}, {**first, "WARPS": start}
    if loops and schedule.pipeline:
        all_choices["STAGES"], all_first["STAGES"] = (1, 2, 3, 4), 3
    if schedule.persist:
        all_choices["PROGRAMS"], all_first["PROGRAMS"] = (1, 2, 4, 8), 2
    if not schedule.tile:
        all_choices = {name: (all_first[name],) for name in all_choices}
    return Tiles(all_choices, all_first, whole, split)


def powers(low: int, high: int) -> tuple[int, ...]:
    """Powers of two from `low` to `high`, both among them."""
    return tuple(_doubling(low, max(low, high)))


def _doubling(low: int, high: int) -> Iterable[int]:
    while low <= high:
        yield low
        low *= 2


def power_of_two(count: int) -> int:
    """The least power of two that is not below `count`."""
    return 1 << max(count - 1, 0).bit_length()
