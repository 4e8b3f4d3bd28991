"""Block lengths as tunables, for loops long enough to be cut; on a GPU, the sizes of tiles."""

from kerntree.coder.kernel import Kernel
from kerntree.coder.program import Group, Program
from kerntree.coder.rewrites.rewrite import schedule_strategies, with_schedule
from kerntree.coder.traffic import lane_extent
from kerntree.plans.graph import OperatorGraph
from kerntree.plans.strategy import Strategy

KIND = "tile"
TARGETS = frozenset({"cpp", "triton"})
_SHORTEST = 64  # positions of the innermost loop


def applicable(graph: OperatorGraph, program: Program) -> list[Strategy]:
    """The kernels that have a long innermost loop."""
    return schedule_strategies(
        graph,
        program,
        kind=KIND,
        instruction=("Cut the loops of {target} into blocks, and tune their sizes."),
        fits=_fits,
    )


def apply(graph: OperatorGraph, program: Program, strategy: Strategy) -> Program:
    """The program with the target's `tile` changed; raises `CannotRealizeError`."""
    return with_schedule(graph, program, strategy, fits=_fits, change=lambda _: {"tile": True})


def _fits(graph: OperatorGraph, program: Program, group: Group, kernel: Kernel) -> bool:
    if group.schedule.tile:
        return False
    return program.target == "triton" or lane_extent(kernel, group.schedule.order) >= _SHORTEST
