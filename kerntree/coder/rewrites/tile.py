"""Block lengths as tunables, for loops long enough to be cut; on a GPU, the sizes of tiles."""

from kerntree.coder.kernel import Kernel
from kerntree.coder.program import Group, Program
from kerntree.coder.rewrites.rewrite import ScheduleRewrite
from kerntree.coder.traffic import lane_extent
from kerntree.plans.graph import OperatorGraph

_SHORTEST = 64  # positions of the innermost loop


def _fits(graph: OperatorGraph, program: Program, group: Group, kernel: Kernel) -> bool:
    """The kernels that have a long innermost loop."""
    if group.schedule.tile:
        return False
    return program.target == "triton" or lane_extent(kernel, group.schedule.order) >= _SHORTEST


REWRITE = ScheduleRewrite(
    kind="tile",
    targets=frozenset({"cpp", "triton"}),
    instruction="Cut the loops of {target} into blocks, and tune their sizes.",
    fits=_fits,
    change=lambda _: {"tile": True},
)
