"""Lanes of a block computed together, with the vector math library."""

from kerntree.coder.kernel import Kernel
from kerntree.coder.program import Group, Program
from kerntree.coder.rewrites.rewrite import schedule_strategies, with_schedule
from kerntree.coder.traffic import domain_points
from kerntree.plans.graph import OperatorGraph
from kerntree.plans.strategy import Strategy

KIND = "vectorize"
TARGETS = frozenset({"cpp"})
_FEWEST = 8  # points: one vector's worth


def applicable(graph: OperatorGraph, program: Program) -> list[Strategy]:
    """The kernels that compute at least one vector's worth of points."""
    return schedule_strategies(
        graph,
        program,
        kind=KIND,
        instruction=(
            "Compute the lanes of {target} together, with vector instructions and vector math."
        ),
        fits=_fits,
    )


def apply(graph: OperatorGraph, program: Program, strategy: Strategy) -> Program:
    """The program with the target's `vectorize` changed; raises `CannotRealizeError`."""
    return with_schedule(graph, program, strategy, fits=_fits, change=lambda _: {"vectorize": True})


def _fits(graph: OperatorGraph, program: Program, group: Group, kernel: Kernel) -> bool:
    return not group.schedule.vectorize and domain_points(kernel) >= _FEWEST
