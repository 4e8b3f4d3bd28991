"""How programs that share a row hand over their parts of it, and wait for each other."""

from collections.abc import Sequence

from kerntree.coder.emit.lines import Lines
from kerntree.coder.emit.names import Names
from kerntree.coder.emit.triton_nest import TileNest
from kerntree.coder.emit.triton_reduce import Reduction
from kerntree.coder.emit.triton_text import TYPES


class Meetings:
    """The meetings of one function so far.

    `scratch` gives, for each type, the partial results a row hands over through memory; `count` is
    how often programs meet: each meeting has counters and memory of its own, so that a program
    that is ahead overwrites nothing that another still reads.
    """

    def __init__(self, nest: TileNest, names: Names, lines: Lines) -> None:
        self.scratch: dict[str, int] = {}
        self.count = 0
        self._nest, self._names, self._lines = nest, names, lines

    def join(
        self, r: Reduction, found: Sequence[str], *, width: str
    ) -> tuple[list[str], Sequence[str]]:
        """Hands over this program's part, and joins all parts once they are there.

        `width` is the number of columns of a part. Returns statements and expressions of the
        results, as `Reduction.finish` does.
        """
        lines = self._lines
        lines.put("# hand over, and wait for the other programs of this row")
        bases = [self._hand_over(value, dtype) for value, dtype in zip(found, r.types, strict=True)]
        self._wait()
        lines.put("part_of_row = tl.arange(0, WIDTH)")
        states = []
        for k, (base, start) in enumerate(zip(bases, r.starts, strict=True)):
            name = f"{self._names[r.reduce.results[0]]}_parts{'_second' if k else ''}"
            lines.put(
                f"{name} = tl.load({base} + part_of_row, mask=part_of_row < PARTS, "
                f'other={start}, cache_modifier=".cg")'
            )
            states.append(name)
        counts = f"tl.minimum({width}, {self._nest.columns} - part_of_row * {width})"
        counts = f"tl.maximum({counts}, 0).to({TYPES[r.reduce.dtype]})"
        return r.finish(tuple(states), counts, "")

    def _times_rows(self, count: int) -> str:
        """What lies before the rows of the buffer or counter of this number, as a summand."""
        if self._nest.rows_at_run_time:
            return f"{count} * {self._nest.rows_text} + " if count else ""
        return f"{count * self._nest.rows} + " if count else ""

    def _hand_over(self, value: str, dtype: str) -> str:
        """Stores a partial result; returns where those of the row begin."""
        slot = self.scratch.get(dtype, 0)
        self.scratch[dtype] = slot + 1
        base = f"parts_{dtype} + ({self._times_rows(slot)}row) * PARTS"
        self._lines.put(f"tl.store({base} + part, ({value}).to({TYPES[dtype]}))")
        return base

    def _wait(self) -> None:
        counter = f"arrived + 1 + {self._times_rows(self.count)}row"
        self.count += 1
        self._lines.put("tl.debug_barrier()")
        self._lines.put(f'tl.atomic_add({counter}, 1, sem="acq_rel")')
        head = f'while tl.atomic_add({counter}, 0, sem="acquire") < PARTS:'
        with self._lines.inside(head, end=""):
            self._lines.put("pass")
        self._lines.put("tl.debug_barrier()")
