"""The loop over a row loads tiles ahead of their use."""

from kerntree.coder.emit.triton_tiles import tiles_of
from kerntree.coder.kernel import Kernel
from kerntree.coder.program import Group, Program
from kerntree.coder.rewrites.rewrite import schedule_strategies, with_schedule
from kerntree.plans.graph import OperatorGraph
from kerntree.plans.strategy import Strategy

KIND = "pipeline"
TARGETS = frozenset({"triton"})


def applicable(graph: OperatorGraph, program: Program) -> list[Strategy]:
    """The kernels that walk a row in a loop."""
    return schedule_strategies(
        graph,
        program,
        kind=KIND,
        instruction=("Load the tiles of each row of {target} several steps ahead of their use."),
        fits=_fits,
    )


def apply(graph: OperatorGraph, program: Program, strategy: Strategy) -> Program:
    """The program with the target's `pipeline` changed; raises `CannotRealizeError`."""
    return with_schedule(graph, program, strategy, fits=_fits, change=lambda _: {"pipeline": True})


def _fits(graph: OperatorGraph, program: Program, group: Group, kernel: Kernel) -> bool:
    schedule = group.schedule
    return not schedule.pipeline and bool(kernel.reduced) and not tiles_of(kernel, schedule).whole
