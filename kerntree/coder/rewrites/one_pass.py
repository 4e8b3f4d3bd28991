"""Maximum with sum of exponentials, or mean with variance, in one pass over a row."""

from kerntree.coder import passes
from kerntree.coder.kernel import Kernel
from kerntree.coder.program import Group, Program
from kerntree.coder.rewrites.rewrite import ScheduleRewrite
from kerntree.plans.graph import OperatorGraph


def _fits(graph: OperatorGraph, program: Program, group: Group, kernel: Kernel) -> bool:
    """The kernels that walk a row for two reductions that one walk can do."""
    return not group.schedule.one_pass and passes.one_pass(kernel) != kernel


REWRITE = ScheduleRewrite(
    kind="one_pass",
    targets=frozenset({"cpp", "triton"}),
    instruction="Take the reductions of {target} that follow each other in one pass over each row.",
    fits=_fits,
    change=lambda _: {"one_pass": True},
)
