"""The loop over a row loads tiles ahead of their use."""

from kerntree.coder.emit.triton_tiles import tiles_of
from kerntree.coder.kernel import Kernel
from kerntree.coder.program import Group, Program
from kerntree.coder.rewrites.rewrite import ScheduleRewrite
from kerntree.plans.graph import OperatorGraph


def _fits(graph: OperatorGraph, program: Program, group: Group, kernel: Kernel) -> bool:
    """The kernels that walk a row in a loop."""
    schedule = group.schedule
    return not schedule.pipeline and bool(kernel.reduced) and not tiles_of(kernel, schedule).whole


REWRITE = ScheduleRewrite(
    kind="pipeline",
    targets=frozenset({"triton"}),
    instruction="Load the tiles of each row of {target} several steps ahead of their use.",
    fits=_fits,
    change=lambda _: {"pipeline": True},
)
