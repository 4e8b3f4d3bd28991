"""Which dimensions of a kernel are loops under a schedule, and which one is the lanes."""

from collections.abc import Sequence
from dataclasses import dataclass

from kerntree.coder.kernel import Kernel
from kerntree.coder.program import Schedule

_SPLIT_ROWS = 8  # rows: fewer are shared among threads by splitting each
_SPLIT_LENGTH = 1 << 14  # elements of a row: shorter ones are not worth waking threads for


@dataclass(frozen=True)
class Nest:
    """The loops of a kernel under a schedule."""

    kernel: Kernel
    schedule: Schedule

    @property
    def rows(self) -> bool:
        """Whether the lanes lie along a reduced dimension, and are joined at the end of a row."""
        return bool(self.kernel.reduced) and self.schedule.order == "reduce_inner"

    @property
    def wide(self) -> bool:
        """Whether work is done in blocks of LANES elements."""
        return self.schedule.vectorize

    @property
    def columns(self) -> bool:
        """Whether each lane is a row of its own, with its own row values."""
        return self.wide and not self.rows

    @property
    def lane(self) -> int:
        """The dimension that the lanes lie along."""
        return self.kernel.reduced[-1] if self.rows else self.kernel.kept[-1]

    @property
    def outer(self) -> tuple[int, ...]:
        """The kept dimensions with a loop around the whole row program."""
        return self.kernel.kept if self.rows else self.kernel.kept[:-1]

    @property
    def split(self) -> bool:
        """Whether rows are few, so that threads share the passes over each instead."""
        rows = self.positions(self.kernel.kept)
        few = rows < _SPLIT_ROWS and self.positions(self.kernel.reduced) >= _SPLIT_LENGTH
        return self.schedule.parallel and self.rows and few

    @property
    def counts_by_lane(self) -> bool:
        """Whether lanes see different numbers of values, other than in one last block."""
        if not self.wide or not self.rows:
            return False
        several = len(self.kernel.reduced) > 1
        return several or self.split

    def extent(self, d: int) -> int:
        """The extent of a dimension."""
        return self.kernel.dims[d].extent

    def extent_text(self, d: int) -> str:
        """The extent of a dimension in C++: a number, or the argument that holds it."""
        return f"n{d}" if self.kernel.dims[d].at_run_time else str(self.extent(d))

    def positions(self, dims: Sequence[int]) -> int:
        """The number of positions in these dimensions."""
        total = 1
        for d in dims:
            total *= self.extent(d)
        return total

    def bounds(self, d: int, *, chunked: int | None = None) -> tuple[str, str]:
        """First index and end of a loop, in C++; `chunked` is the dimension cut into chunks."""
        return ("begin", "end") if d == chunked else ("0", self.extent_text(d))

    def loop(self, d: int, *, chunked: int | None = None) -> str:
        """The head of the loop over a dimension."""
        low, high = self.bounds(d, chunked=chunked)
        return f"for (int64_t i{d} = {low}; i{d} < {high}; ++i{d}) {{"
