"""A kernel and a schedule as one Triton function.

A program works on a tile of kept positions (`row`) times reduced ones (`column`). Either the tile
holds a whole row, and every value is computed once; or each pass over the row is a loop over tiles;
or several programs share a row, hand their partial results over through memory, and wait for each
other.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kerntree.coder.emit.lines import Lines
from kerntree.coder.emit.triton_addresses import TileAddresses, tensor_name
from kerntree.coder.emit.triton_expressions import tile_expressions
from kerntree.coder.emit.triton_meetings import Meetings
from kerntree.coder.emit.triton_nest import TileNest, tile_nest
from kerntree.coder.emit.triton_passes import Passes
from kerntree.coder.emit.triton_positions import write_rows
from kerntree.coder.emit.triton_row_results import RowResults
from kerntree.coder.emit.triton_statements import TileStatements
from kerntree.coder.emit.triton_tiles import Tiles
from kerntree.coder.emit.triton_whole_row import WholeRow
from kerntree.coder.emit.walks import plan_walks
from kerntree.coder.kernel import Kernel
from kerntree.coder.program import Schedule
from kerntree.coder.sizes import most_rows


@dataclass(frozen=True)
class TritonFunction:
    """Triton text of one kernel, its tensors in order, sizes, helpers, and how it is launched.

    `rows` are those of the case it is printed for; `rows_each` is how many go with one position of
    an outermost extent that is an argument (0: none is), and `most_rows` how far that extent may go
    (None: any). It takes that extent as `rows` (`takes_rows`) where its text speaks of it.
    `scratch` are types of the buffers through which programs that share a row hand over partial
    results, with the number of results of each; `meetings` is how often they wait for each other.
    """

    name: str
    text: str
    parameters: tuple[str, ...]
    writes: tuple[str, ...]
    helpers: frozenset[str]
    tiles: Tiles
    rows: int
    columns: int
    persist: bool
    rows_each: int = 0
    takes_rows: bool = False
    most_rows: int | None = None
    scratch: Mapping[str, int] = field(default_factory=dict)
    meetings: int = 0


def emit_triton(
    kernel: Kernel, schedule: Schedule, *, name: str, in_place: Mapping[str, str] | None = None
) -> TritonFunction:
    """The Triton function of a kernel; `in_place` maps written values to what they replace."""
    in_place = dict(in_place or {})
    nest, lines = tile_nest(kernel, schedule), Lines(indent="    ")
    count = "tiles" if nest.rows_at_run_time else "TILES"
    tiles = [f"for tile in tl.range(tl.program_id(0), {count}, tl.num_programs(0)):"] * nest.persist
    with lines.inside(*tiles, end=""):
        meetings = _write_tile(nest, lines, in_place)
    kernel = nest.kernel
    fresh = (t for t in kernel.writes if t not in in_place)
    parameters = tuple(dict.fromkeys((*kernel.reads, *in_place.values(), *fresh)))
    takes_rows = nest.rows_at_run_time and re.search(r"\brows\b", lines.text) is not None
    signature = ", ".join(_signature(nest, parameters, tuple(meetings.scratch), takes_rows))
    head = f"@triton.jit\ndef {name}({signature}):\n{_comment(kernel, in_place)}"
    return TritonFunction(
        name,
        f"{head}{lines.text}\n",
        parameters,
        kernel.writes,
        frozenset(lines.helpers),
        nest.tiles,
        nest.rows,
        nest.columns,
        nest.persist,
        nest.rows_each,
        takes_rows,
        most_rows(nest.kernel) if nest.rows_at_run_time and not nest.wide else None,
        meetings.scratch,
        meetings.count,
    )


def _write_tile(nest: TileNest, lines: Lines, in_place: Mapping[str, str]) -> Meetings:
    """What is done for one tile of rows; returns where programs met."""
    addresses = TileAddresses(nest, in_place)
    expressions = tile_expressions(nest, addresses, lines)
    statements = TileStatements(nest, expressions, lines)
    meetings = Meetings(nest, expressions.names, lines)
    row_results = RowResults(nest, expressions.names, lines, meetings)
    write_rows(nest, addresses, lines)
    if nest.tiles.whole or nest.flat:
        WholeRow(nest, lines, statements, row_results).write()
    else:
        plan = plan_walks(nest.kernel, keep=False)
        Passes(nest, plan, lines, statements, row_results).write()
    return meetings


def _signature(
    nest: TileNest, parameters: Sequence[str], scratch: Sequence[str], takes_rows: bool
) -> list[str]:
    sizes = ["BLOCK"] if nest.flat or nest.single else ["ROWS", "BLOCK"]
    sizes += ["PARTS", "WIDTH"] if nest.split else []
    sizes += ["CHUNK"] if nest.split and not nest.tiles.whole else []
    sizes += ["STAGES"] if "STAGES" in nest.tiles.choices else []
    sizes += ["TILES"] if nest.persist and not nest.rows_at_run_time else []
    shared = [*(f"parts_{dtype}" for dtype in scratch), "arrived"] if nest.split else []
    return [
        *(tensor_name(tensor) for tensor in parameters),
        *shared,
        *(["rows"] if takes_rows else []),
        *(["tiles"] if nest.rows_at_run_time and nest.persist else []),
        *(f"{size}: tl.constexpr" for size in sizes),
    ]


def _comment(kernel: Kernel, in_place: Mapping[str, str]) -> str:
    rows, columns = (
        "x".join("any" if kernel.dims[d].at_run_time else str(kernel.dims[d].extent) for d in dims)
        for dims in (kernel.kept, kernel.reduced)
    )
    words = f"rows {rows}, columns {columns}" if columns else f"rows {rows}"
    outputs = ", ".join(
        f"{t} in place of {in_place[t]}" if t in in_place else t for t in kernel.writes
    )
    return f"    # {', '.join(kernel.reads)} -> {outputs}   [{words}]\n"
