"""Lanes of a block computed together, with the vector math library."""

from kerntree.coder.kernel import Kernel
from kerntree.coder.program import Group, Program
from kerntree.coder.rewrites.rewrite import ScheduleRewrite
from kerntree.coder.traffic import domain_points
from kerntree.plans.graph import OperatorGraph

_FEWEST = 8  # points: one vector's worth


def _fits(graph: OperatorGraph, program: Program, group: Group, kernel: Kernel) -> bool:
    """The kernels that compute at least one vector's worth of points."""
    return not group.schedule.vectorize and domain_points(kernel) >= _FEWEST


REWRITE = ScheduleRewrite(
    kind="vectorize",
    targets=frozenset({"cpp"}),
    instruction="Compute the lanes of {target} together, with vector instructions and vector math.",
    fits=_fits,
    change=lambda _: {"vectorize": True},
)
