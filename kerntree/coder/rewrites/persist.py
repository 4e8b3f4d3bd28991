"""As many programs as the device holds, each of which walks over many tiles."""

from kerntree.coder.kernel import Kernel
from kerntree.coder.program import Group, Program
from kerntree.coder.rewrites.rewrite import schedule_strategies, with_schedule
from kerntree.coder.traffic import domain_points
from kerntree.plans.graph import OperatorGraph
from kerntree.plans.strategy import Strategy

KIND = "persist"
TARGETS = frozenset({"triton"})
_FEWEST_POINTS = 1 << 22  # a few waves of tiles


def applicable(graph: OperatorGraph, program: Program) -> list[Strategy]:
    """The kernels with many more tiles than a device runs at once."""
    return schedule_strategies(
        graph,
        program,
        kind=KIND,
        instruction=(
            "Start as many programs of {target} as run at once, and let each walk over tiles."
        ),
        fits=_fits,
    )


def apply(graph: OperatorGraph, program: Program, strategy: Strategy) -> Program:
    """The program with the target's `persist` changed; raises `CannotRealizeError`."""
    return with_schedule(graph, program, strategy, fits=_fits, change=lambda _: {"persist": True})


def _fits(graph: OperatorGraph, program: Program, group: Group, kernel: Kernel) -> bool:
    schedule = group.schedule
    return not schedule.persist and not schedule.split and domain_points(kernel) >= _FEWEST_POINTS
