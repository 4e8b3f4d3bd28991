"""A pass over a long row, cut into chunks that threads share.

The number of chunks does not depend on the number of threads, and their partial results are joined
in order, so neither do the bits of a result.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kerntree.coder.emit.accumulators import Accumulator
from kerntree.coder.emit.lines import Lines
from kerntree.coder.emit.names import Names
from kerntree.coder.emit.nest import Nest
from kerntree.coder.emit.partial_results import PartialResults, counts, states
from kerntree.coder.emit.streams import Streams
from kerntree.coder.emit.walk_loops import WalkLoops
from kerntree.coder.emit.walks import Walk

_CHUNKS = 64


@dataclass(frozen=True)
class Chunks:
    """Writes passes whose outermost reduced dimension is cut into chunks."""

    nest: Nest
    names: Names
    lines: Lines
    streams: Streams
    partial_results: PartialResults
    loops: WalkLoops

    def write(self, walk: Walk, accumulators: Sequence[Accumulator], *, number: int) -> None:
        """A pass in chunks; `number` keeps the names of passes apart."""
        first = self.nest.kernel.reduced[0]
        extent = self.nest.extent(first)
        width = f"width_{number}"
        counting = any(counts(a) for a in accumulators)
        self._declare(width, accumulators, counting)
        self.lines.put("#pragma omp parallel for num_threads(threads) schedule(static)")
        with self.lines.inside(f"for (int chunk = 0; chunk < {_CHUNKS}; ++chunk) {{"):
            self.lines.put(f"const int64_t begin = chunk * {width};")
            self.lines.put(
                f"const int64_t end = begin + {width} < {extent} ? begin + {width} : {extent};"
            )
            self.partial_results.declare(accumulators)
            self.loops.write(walk, accumulators, chunked=first)
            self.partial_results.join_lanes(accumulators)
            for a in accumulators:
                for state in states(a, self.names):
                    self.lines.put(f"{state}_parts[chunk] = {state};")
            if counting:
                inner = self.nest.positions(self.nest.kernel.reduced[1:])
                self.lines.put(
                    f"{width}_counts[chunk] = (end > begin ? end - begin : 0) * {inner};"
                )
            self.streams.end()
        for a in accumulators:
            self._join(a, width)
            self.partial_results.name_results(a)

    def _declare(self, width: str, accumulators: Sequence[Accumulator], counting: bool) -> None:
        """The width of a chunk, in whole blocks, and the partial results of all chunks."""
        first = self.nest.kernel.reduced[0]
        step = "LANES" if self.nest.wide and first == self.nest.lane else "1"
        parts = f"({_CHUNKS} * {step})"
        whole = f"{self.nest.extent(first)} + {_CHUNKS} * {step} - 1"
        self.lines.put(f"const int64_t {width} = (({whole}) / {parts} * {step});")
        for a in accumulators:
            for ctype, state in zip(a.types, states(a, self.names), strict=True):
                self.lines.put(f"{ctype} {state}_parts[{_CHUNKS}];")
        if counting:
            self.lines.put(f"int64_t {width}_counts[{_CHUNKS}];")

    def _join(self, a: Accumulator, width: str) -> None:
        """Joins the partial results of all chunks, from first to last."""
        mine = states(a, self.names)
        for ctype, state in zip(a.types, mine, strict=True):
            self.lines.put(f"{ctype} {state} = {state}_parts[0];")
        taken = ("0", "0")
        if counts(a):
            taken = (f"{mine[0]}_count", f"{width}_counts[chunk]")
            self.lines.put(f"int64_t {taken[0]} = {width}_counts[0];")
        with self.lines.inside(f"for (int chunk = 1; chunk < {_CHUNKS}; ++chunk) {{"):
            for line in a.join(mine, tuple(f"{s}_parts[chunk]" for s in mine), taken):
                self.lines.put(line)
            if counts(a):
                self.lines.put(f"{taken[0]} += {taken[1]};")
