"""The outermost loop shared among threads, where there is work enough for several."""

from kerntree.coder.kernel import Kernel
from kerntree.coder.program import Group, Program
from kerntree.coder.rewrites.rewrite import schedule_strategies, with_schedule
from kerntree.coder.traffic import work
from kerntree.plans.graph import OperatorGraph
from kerntree.plans.strategy import Strategy

KIND = "parallelize"
TARGETS = frozenset({"cpp"})
_LEAST_WORK = 50_000.0  # elementary operations: starting threads takes microseconds


def applicable(graph: OperatorGraph, program: Program) -> list[Strategy]:
    """The kernels that have work enough for several threads."""
    return schedule_strategies(
        graph,
        program,
        kind=KIND,
        instruction=("Share the outermost loop of {target} among the threads."),
        fits=_fits,
    )


def apply(graph: OperatorGraph, program: Program, strategy: Strategy) -> Program:
    """The program with the target's `parallel` changed; raises `CannotRealizeError`."""
    return with_schedule(graph, program, strategy, fits=_fits, change=lambda _: {"parallel": True})


def _fits(graph: OperatorGraph, program: Program, group: Group, kernel: Kernel) -> bool:
    return not group.schedule.parallel and work(kernel, group.schedule) >= _LEAST_WORK
