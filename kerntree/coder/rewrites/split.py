"""Rows shared by several programs, which hand their partial results over through memory."""

from kerntree.coder.kernel import At, Kernel
from kerntree.coder.program import Group, Program
from kerntree.coder.rewrites.rewrite import ScheduleRewrite
from kerntree.coder.traffic import lane_is_reduced, row_points
from kerntree.plans.graph import OperatorGraph

_SHORTEST = 1 << 14  # positions of a row: fewer are done by one program in a moment


def _fits(graph: OperatorGraph, program: Program, group: Group, kernel: Kernel) -> bool:
    """The kernels whose rows are long enough for several programs."""
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


REWRITE = ScheduleRewrite(
    kind="split",
    targets=frozenset({"triton"}),
    instruction="Let several programs share each row of {target}, meeting between its passes.",
    fits=_fits,
    change=lambda _: {"split": True},
)
