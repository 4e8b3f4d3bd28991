"""Maximum with sum of exponentials, or mean with variance, in one pass over a row."""

from kerntree.coder import passes
from kerntree.coder.kernel import Kernel
from kerntree.coder.program import Group, Program
from kerntree.coder.rewrites.rewrite import schedule_strategies, with_schedule
from kerntree.plans.graph import OperatorGraph
from kerntree.plans.strategy import Strategy

KIND = "one_pass"
TARGETS = frozenset({"cpp", "triton"})


def applicable(graph: OperatorGraph, program: Program) -> list[Strategy]:
    """The kernels that walk a row for two reductions that one walk can do."""
    return schedule_strategies(
        graph,
        program,
        kind=KIND,
        instruction=(
            "Take the reductions of {target} that follow each other in one pass over each row."
        ),
        fits=_fits,
    )


def apply(graph: OperatorGraph, program: Program, strategy: Strategy) -> Program:
    """The program with the target's `one_pass` changed; raises `CannotRealizeError`."""
    return with_schedule(graph, program, strategy, fits=_fits, change=lambda _: {"one_pass": True})


def _fits(graph: OperatorGraph, program: Program, group: Group, kernel: Kernel) -> bool:
    return not group.schedule.one_pass and passes.one_pass(kernel) != kernel
