"""The variables that reductions accumulate in: declared, fed with values, joined, named."""

from collections.abc import Sequence
from dataclasses import dataclass

from kerntree.coder.emit.accumulators import Accumulator
from kerntree.coder.emit.cpp_text import COMPUTED
from kerntree.coder.emit.lines import Lines
from kerntree.coder.emit.names import Names
from kerntree.coder.emit.nest import Nest
from kerntree.coder.kernel import Reduce


def states(a: Accumulator, names: Names) -> tuple[str, ...]:
    """The variables of an accumulator."""
    return tuple(_state(a.reduce, part, names) for part in range(len(a.types)))


def state_of(reduce: Reduce, result: str, names: Names) -> str:
    """The variable that becomes a result of a reduction."""
    return _state(reduce, _part_of(reduce, result), names)


def counts(a: Accumulator) -> bool:
    """Whether a reduction needs the number of values it has taken."""
    return a.reduce.function == "moments"


def _part_of(reduce: Reduce, result: str) -> int:
    return 1 if reduce.function in ("argmax", "argmin") else reduce.results.index(result)


def _state(reduce: Reduce, part: int, names: Names) -> str:
    return names[reduce.results[0]] + ("", "_second")[part] + "_so_far"


@dataclass(frozen=True)
class PartialResults:
    """Writes what becomes of accumulators; with lanes, each lane has its own partial result."""

    nest: Nest
    names: Names
    lines: Lines

    def declare(self, accumulators: Sequence[Accumulator]) -> None:
        """Variables with their starting values, and a count where one is needed."""
        for a in accumulators:
            mine = states(a, self.names)
            for state, ctype, start in zip(mine, a.types, a.starts, strict=True):
                if self.nest.wide:
                    self.lines.put(f"alignas(64) {ctype} {state}_lanes[LANES];")
                    self.lines.put(f"for (int l = 0; l < LANES; ++l) {state}_lanes[l] = {start};")
                else:
                    self.lines.put(f"{ctype} {state} = {start};")
        counting = next((a for a in accumulators if counts(a)), None)
        if counting and self.nest.counts_by_lane:
            self.lines.put(f"{counting.types[0]} taken_lanes[LANES] = {{0}};")
        elif counting:
            self.lines.put("int64_t taken = 0;")

    def count_block(self, accumulators: Sequence[Accumulator]) -> None:
        """Counts a block, where all its lanes have taken as many values."""
        counting = [a.types[0] for a in accumulators if counts(a)]
        if counting and not self.nest.counts_by_lane:
            ctype = "double" if "double" in counting else counting[0]
            self.lines.put("++taken;")
            self.lines.put(f"const {ctype} share = ({ctype})1 / ({ctype})taken;")

    def take(
        self, accumulators: Sequence[Accumulator], values: Sequence[str], *, position: str
    ) -> None:
        """Takes one value into each accumulator; `position` is where in its row they lie."""
        counted = False
        for a, value in zip(accumulators, values, strict=True):
            lanes = tuple(f"{s}_lanes[l]" if self.nest.wide else s for s in states(a, self.names))
            count = "share"
            if counts(a) and self.nest.counts_by_lane:
                if not counted:
                    self.lines.put("taken_lanes[l] += 1;")
                    counted = True
                count = f"(({a.types[0]})1 / taken_lanes[l])"
            self.lines.scoped(a.take(lanes, value, position, count))

    def finish(self, accumulators: Sequence[Accumulator]) -> None:
        """Joins the lanes of a row and names its results; columns keep one result a lane."""
        for a in accumulators:
            self._join_lanes_of(a)
            if self.nest.columns:
                self._settle_lanes_of(a)
            else:
                self.name_results(a)

    def join_lanes(self, accumulators: Sequence[Accumulator]) -> None:
        """Joins the lanes of a part of a row."""
        for a in accumulators:
            self._join_lanes_of(a)

    def name_results(self, a: Accumulator) -> None:
        """Gives the results of a reduction the names that other instructions read."""
        for result in a.reduce.results:
            ctype = COMPUTED[self.names.types[result]]
            settled = a.settled(states(a, self.names), _part_of(a.reduce, result))
            self.lines.put(f"const {ctype} {self.names[result]} = {settled};")

    def _settle_lanes_of(self, a: Accumulator) -> None:
        lanes = tuple(f"{s}_lanes[l]" for s in states(a, self.names))
        for part, lane in enumerate(lanes):
            settled = a.settled(lanes, part)
            if settled != lane:
                self.lines.put(f"for (int l = 0; l < LANES; ++l) {lane} = {settled};")

    def _join_lanes_of(self, a: Accumulator) -> None:
        if not self.nest.wide or not self.nest.rows:
            return
        mine = states(a, self.names)
        count = f"{mine[0]}_count"
        if counts(a):
            self._count_lanes(a, count)
        with self.lines.inside(
            "for (int half = LANES / 2; half > 0; half /= 2) {",
            "for (int l = 0; l < half; ++l) {",
        ):
            for line in a.join(
                tuple(f"{s}_lanes[l]" for s in mine),
                tuple(f"{s}_lanes[l + half]" for s in mine),
                (f"{count}[l]", f"{count}[l + half]"),
            ):
                self.lines.put(line)
            if counts(a):
                self.lines.put(f"{count}[l] += {count}[l + half];")
        for ctype, state in zip(a.types, mine, strict=True):
            self.lines.put(f"const {ctype} {state} = {state}_lanes[0];")

    def _count_lanes(self, a: Accumulator, count: str) -> None:
        """How many values each lane has taken."""
        extent = self.nest.extent(self.nest.lane)
        each = (
            "taken_lanes[l]"
            if self.nest.counts_by_lane
            else f"{extent} / LANES + (l < {extent} % LANES)"
        )
        self.lines.put(f"{a.types[0]} {count}[LANES];")
        self.lines.put(f"for (int l = 0; l < LANES; ++l) {count}[l] = {each};")
