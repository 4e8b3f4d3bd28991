"""Block length and unroll factor as tunables, for loops long enough to be cut."""

from kerntree.coder.kernel import Kernel
from kerntree.coder.program import Group, Program
from kerntree.coder.rewrites.rewrite import schedule_strategies, with_schedule
from kerntree.coder.traffic import lane_extent
from kerntree.plans.graph import OperatorGraph
from kerntree.plans.strategy import Strategy

KIND = "tile"
_SHORTEST = 64  # positions of the innermost loop


def applicable(graph: OperatorGraph, program: Program) -> list[Strategy]:
    """The kernels that have a long innermost loop."""
    return schedule_strategies(
        graph,
        program,
        kind=KIND,
        instruction=(
            "Cut the innermost loop of {target} into blocks; tune their length and unroll factor."
        ),
        fits=_fits,
    )


def apply(graph: OperatorGraph, program: Program, strategy: Strategy) -> Program:
    """The program with the target's `tile` changed; raises `CannotRealizeError`."""
    return with_schedule(graph, program, strategy, fits=_fits, change=lambda _: {"tile": True})


def _fits(graph: OperatorGraph, program: Program, group: Group, kernel: Kernel) -> bool:
    return not group.schedule.tile and (lane_extent(kernel, group.schedule.order) >= _SHORTEST)
