"""The outermost loop shared among threads, where there is work enough for several."""

from kerntree.coder.kernel import Kernel
from kerntree.coder.program import Group, Program
from kerntree.coder.rewrites.rewrite import ScheduleRewrite
from kerntree.coder.traffic import work
from kerntree.plans.graph import OperatorGraph

_LEAST_WORK = 50_000.0  # elementary operations: starting threads takes microseconds


def _fits(graph: OperatorGraph, program: Program, group: Group, kernel: Kernel) -> bool:
    """The kernels that have work enough for several threads."""
    return not group.schedule.parallel and work(kernel, group.schedule) >= _LEAST_WORK


REWRITE = ScheduleRewrite(
    kind="parallelize",
    targets=frozenset({"cpp"}),
    instruction="Share the outermost loop of {target} among the threads.",
    fits=_fits,
    change=lambda _: {"parallel": True},
)
