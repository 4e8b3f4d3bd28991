"""Rows shared by several programs, which hand their partial results over through memory."""

from kerntree.coder.kernel import At, Kernel
from kerntree.coder.program import Group, Program
from kerntree.coder.rewrites.rewrite import schedule_strategies, with_schedule
from kerntree.coder.traffic import lane_is_reduced, row_points
from kerntree.plans.graph import OperatorGraph
from kerntree.plans.strategy import Strategy

KIND = "split"
TARGETS = frozenset({"triton"})
_SHORTEST = 1 << 14  # positions of a row: fewer are done by one program in a moment


def applicable(graph: OperatorGraph, program: Program) -> list[Strategy]:
    """The kernels whose rows are long enough for several programs."""
    return schedule_strategies(
        graph,
        program,
        kind=KIND,
        instruction=(
            "Let several programs share each row of {target}, meeting between its passes."
        ),
        fits=_fits,
    )


def apply(graph: OperatorGraph, program: Program, strategy: Strategy) -> Program:
    """The program with the target's `split` changed; raises `CannotRealizeError`."""
    return with_schedule(graph, program, strategy, fits=_fits, change=lambda _: {"split": True})


def _fits(graph: OperatorGraph, program: Program, group: Group, kernel: Kernel) -> bool:
    schedule = group.schedule
    return (
        not schedule.split
        and not schedule.persist
        and schedule.order == "reduce_inner"
        and bool(kernel.reduced)
        and row_points(kernel) >= _SHORTEST
        and lane_is_reduced(kernel)
        # a gathered element may be another program's, which has overwritten it in place by then
        and not any(isinstance(i, At) for i in kernel.body)
    )
