"""Whether a case fits on a GPU, and how thriftily its sets must be kept. Plain arithmetic.

The peak falls where the oracle makes the float64 expectation of one set while it holds that of the
timed ones, and three children (candidate, incumbent, baseline) hold their inputs.
"""

from dataclasses import dataclass

from kerntree.evaluator.blocks import output_layout
from kerntree.plans.errors import ProblemError
from kerntree.plans.graph import FLOAT_TYPES, TensorSpec
from kerntree.plans.problem import Case, Problem

_GIB = 1 << 30
_CHILDREN = 3
_CONTEXT = 640 << 20  # bytes that a process takes on the device before it does anything
_FLUSH = 256 << 20
_SHARE = 64  # a case above one part in so many of the memory is kept thriftily


@dataclass(frozen=True)
class Bytes:
    """Bytes of one set of inputs, of what a call gives, of the state; `*_double` in float64."""

    inputs: int
    inputs_double: int
    outputs: int
    outputs_double: int
    state: int
    state_double: int

    def needed(self, *, slots: int) -> int:
        """The most that all processes hold at the same time, with so many timed sets kept.

        While the expectation is made: the inputs in both types, PyTorch's result, the double
        one, and two temporaries of its size. While a child runs: a copy of its inputs, its
        result and two temporaries, and the block from which the oracle reads.
        """
        kept = self.outputs + self.outputs_double
        making = self.inputs + self.inputs_double + self.outputs + 3 * self.outputs_double
        running = self.inputs + 4 * self.outputs + _FLUSH
        weights = 2 * (_CHILDREN + 1) * self.state + self.state_double
        contexts = (_CHILDREN + 1) * _CONTEXT
        idle = _CHILDREN * slots * self.inputs
        return slots * kept + max(making, running) + idle + weights + contexts


@dataclass(frozen=True)
class Room:
    """How a case is kept: timed sets, and whether processes let go of memory between turns."""

    slots: int
    thrifty: bool


def bytes_of(problem: Problem, case: Case) -> Bytes:
    """What one set of a described case takes."""
    inputs = [entry.tensor for entry in case.inputs if entry.tensor is not None]
    outputs = [placed.spec for placed in output_layout(problem, case).tensors]
    state = [entry.tensor for entry in problem.state]
    return Bytes(*_both(inputs), *_both(outputs), *_both(state))


def room_for(problem: Problem, case: Case, *, memory: int, slots: int) -> Room:
    """How to keep a case in `memory` bytes; raises `ProblemError` if it does not fit."""
    found = bytes_of(problem, case)
    thrifty = found.inputs + found.outputs > memory // _SHARE
    if not thrifty and found.needed(slots=slots) <= memory:
        return Room(slots, thrifty=False)
    for count in range(slots, 0, -1):
        if found.needed(slots=count) <= memory:
            return Room(count, thrifty=True)
    raise ProblemError(f"{problem.path}: {does_not_fit(case.name, found, memory)}")


def does_not_fit(case: str, found: Bytes, memory: int) -> str:
    """What to tell a user whose case needs too much."""
    which = "" if case == "default" else f"case {case!r} "
    return (
        f"{which}needs about {found.needed(slots=1) / _GIB:.1f} GiB on the device (inputs "
        f"{found.inputs / _GIB:.1f}, outputs {found.outputs / _GIB:.1f}, several copies of each, "
        f"some in float64) and {memory / _GIB:.1f} GiB may be used; reduce the shapes"
    )


def _both(specs: list[TensorSpec]) -> tuple[int, int]:
    double = sum(8 * s.elements if s.dtype in FLOAT_TYPES else s.bytes for s in specs)
    return sum(s.bytes for s in specs), double
