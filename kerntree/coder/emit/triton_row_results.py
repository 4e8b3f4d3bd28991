"""How a kernel's reductions come to row values with a name."""

from collections.abc import Sequence
from dataclasses import dataclass

from kerntree.coder.emit.lines import Lines
from kerntree.coder.emit.names import Names
from kerntree.coder.emit.triton_meetings import Meetings
from kerntree.coder.emit.triton_nest import TileNest
from kerntree.coder.emit.triton_reduce import Reduction
from kerntree.coder.emit.triton_text import TYPES
from kerntree.coder.kernel import Kernel, Point, Reduce, Store
from kerntree.coder.passes import results, uses

_NARROW = frozenset({"int8", "uint8", "int16"})


@dataclass(frozen=True)
class RowResults:
    """Writes the end of each reduction."""

    nest: TileNest
    names: Names
    lines: Lines
    meetings: Meetings

    def reduction(self, reduce: Reduce) -> Reduction:
        """A reduction as this kernel needs it."""
        if reduce.function == "prod":
            self.lines.helpers.add("multiply")
        quiet = _is_softmax_peak(self.nest.kernel, reduce)
        return Reduction(reduce, single=self.nest.single, quiet_peak=quiet)

    def write(self, r: Reduction, steps: Sequence[str], found: Sequence[str], *, part: str) -> None:
        """Names what statements `steps` and expressions `found` say of a row, or of a part of it.

        `part` is the number of columns of a part, where programs share a row.
        """
        self._put(steps)
        if self.nest.split:
            steps, found = self.meetings.join(r, found, width=part)
            self._put(steps)
        chosen = found[r.result_part :] if r.result_part else found
        first = self.names[r.reduce.results[0]]
        for k, (name, result) in enumerate(zip(r.reduce.results, chosen, strict=True)):
            text = r.settled(result, k, first)
            # Triton widens what it reduces of narrow integers
            dtype = self.names.types[name]
            narrow = f"({text}).to({TYPES[dtype]})" if dtype in _NARROW else text
            self.lines.put(f"{self.names[name]} = {narrow}")

    def _put(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.lines.put(line)


def _is_softmax_peak(kernel: Kernel, reduce: Reduce) -> bool:
    """Whether a maximum only shifts the values it is of, before they are summed up as powers.

    A NaN among the values then comes through the sum, and the maximum need not tell of it.
    """
    peak = reduce.results[0]
    if reduce.function == "online_softmax":
        return not _leaks(kernel, peak, {reduce.results[1]})
    if reduce.function != "max":
        return False
    readers = [i for i in kernel.body if peak in uses(i)]
    shifts = {
        i.result
        for i in readers
        if isinstance(i, Point) and i.function == "sub" and i.operands == (reduce.operand, peak)
    }
    if len(shifts) != len(readers):
        return False
    powers = {
        i.result for i in kernel.body
        if isinstance(i, Point) and i.function == "exp" and i.operands[0] in shifts
    }  # fmt: skip
    sums = {
        i.results[0] for i in kernel.body
        if isinstance(i, Reduce) and i.function == "sum" and i.operand in powers
    }  # fmt: skip
    return bool(sums) and not _leaks(kernel, peak, sums)


def _leaks(kernel: Kernel, peak: str, sums: set[str]) -> bool:
    """Whether something is stored, or reduced, that depends on the peak and on none of the sums."""
    quiet = {peak}
    loud = set(sums)
    for i in kernel.body:
        names, used = results(i), uses(i)
        if loud.intersection(used) or loud.intersection(names):
            loud.update(name for name in names if name != peak)
        elif quiet.intersection(used):
            if isinstance(i, Store | Reduce):
                return True
            quiet.update(names)
    return False
