"""The reduced loops moved inside or around the kept ones, to walk memory in its own order."""

from kerntree.coder.kernel import Kernel
from kerntree.coder.program import Group, Program
from kerntree.coder.rewrites.rewrite import ScheduleRewrite
from kerntree.coder.traffic import Order, memory_traffic
from kerntree.plans.graph import OperatorGraph


def _fits(graph: OperatorGraph, program: Program, group: Group, kernel: Kernel) -> bool:
    """The kernels that would move fewer bytes with their loops in the other order."""
    if not kernel.reduced or all(kernel.dims[d].extent == 1 for d in kernel.kept):
        return False
    if group.schedule.split:
        return False
    now, then = memory_traffic(kernel, group.schedule.order), memory_traffic(kernel, _other(group))
    return sum(then) < sum(now)


def _other(group: Group) -> Order:
    return "reduce_outer" if group.schedule.order == "reduce_inner" else "reduce_inner"


REWRITE = ScheduleRewrite(
    kind="reorder",
    targets=frozenset({"cpp", "triton"}),
    instruction="Walk {target} with its loops in the other order, so that lanes adjoin in memory.",
    fits=_fits,
    change=lambda group: {"order": _other(group)},
)
