"""As many programs as the device holds, each of which walks over many tiles."""

from kerntree.coder.kernel import Kernel
from kerntree.coder.program import Group, Program
from kerntree.coder.rewrites.rewrite import ScheduleRewrite
from kerntree.coder.traffic import domain_points
from kerntree.plans.graph import OperatorGraph

_FEWEST_POINTS = 1 << 22  # a few waves of tiles


def _fits(graph: OperatorGraph, program: Program, group: Group, kernel: Kernel) -> bool:
    """The kernels with many more tiles than a device runs at once."""
    schedule = group.schedule
    return not schedule.persist and not schedule.split and domain_points(kernel) >= _FEWEST_POINTS


REWRITE = ScheduleRewrite(
    kind="persist",
    targets=frozenset({"triton"}),
    instruction="Start as many programs of {target} as run at once, and let each walk over tiles.",
    fits=_fits,
    change=lambda _: {"persist": True},
)
