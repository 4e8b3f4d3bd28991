"""The loops of one pass over the reduced dimensions, and the blocks inside them."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from kerntree.coder.emit.accumulators import Accumulator
from kerntree.coder.emit.lines import Lines
from kerntree.coder.emit.nest import Nest
from kerntree.coder.emit.partial_results import PartialResults
from kerntree.coder.emit.statements import Statements
from kerntree.coder.emit.streams import Streams
from kerntree.coder.emit.walks import Walk


@dataclass(frozen=True)
class WalkLoops:
    """Writes the loops of passes."""

    nest: Nest
    lines: Lines
    statements: Statements
    streams: Streams
    partial_results: PartialResults

    def write(
        self, walk: Walk, accumulators: Sequence[Accumulator], *, chunked: int | None = None
    ) -> None:
        """The loops of a pass, over a chunk of the dimension `chunked` where that is given."""
        nest = self.nest
        around = [d for d in nest.kernel.reduced if d != nest.lane]
        with self.lines.inside(*(nest.loop(d, chunked=chunked) for d in around)):
            if not nest.rows:
                self._block(walk, accumulators)
            elif nest.wide:
                self._row_blocks(walk, accumulators, chunked)
            else:
                with self.lines.inside(nest.loop(nest.lane, chunked=chunked)):
                    self._block(walk, accumulators)

    def _row_blocks(
        self, walk: Walk, accumulators: Sequence[Accumulator], chunked: int | None
    ) -> None:
        """Blocks along a row: all but the last have a number of lanes known to the compiler."""
        lane = self.nest.lane
        low, high = self.nest.bounds(lane, chunked=chunked)
        head = (
            f"auto block = [&](const int64_t i{lane}, const int lanes)"
            " __attribute__((always_inline)) {"
        )
        with self.lines.inside("{"):
            with self.lines.inside(head, end="};"):
                self._block(walk, accumulators)
            self.lines.put(f"int64_t next = {low};")
            self.lines.put(f"for (; next + LANES <= {high}; next += LANES) block(next, LANES);")
            self.lines.put(f"if (next < {high}) block(next, (int)({high} - next));")

    def _block(self, walk: Walk, accumulators: Sequence[Accumulator]) -> None:
        """One block of point values: computed, kept, taken, stored."""
        self.partial_results.count_block(accumulators)
        streams = self.streams.declare(walk.stores)
        expressions = self.statements.expressions
        with self.lines.lanes() if self.nest.wide else nullcontext():
            for instruction in walk.body:
                self.statements.compute(instruction)
            for name in walk.keeps:
                self.statements.keep(name)
            self.partial_results.take(
                accumulators,
                [expressions.value(a.reduce.operand) for a in accumulators],
                position=expressions.addresses.position_in_row(),
            )
            for store in walk.stores:
                self.statements.store(store, streams)
        self.streams.flush(streams)
