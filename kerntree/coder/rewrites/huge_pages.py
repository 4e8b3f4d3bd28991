"""Huge pages under large fresh results, in place of a page fault for every few kilobytes."""

from kerntree.coder.kernel import Kernel, Store
from kerntree.coder.program import Group, Program
from kerntree.coder.rewrites.rewrite import schedule_strategies, with_schedule
from kerntree.coder.traffic import touched_bytes
from kerntree.plans.graph import OperatorGraph
from kerntree.plans.strategy import Strategy

KIND = "huge_pages"
TARGETS = frozenset({"cpp"})
_LEAST_BYTES = 8 << 20  # smaller results hold few whole huge pages


def applicable(graph: OperatorGraph, program: Program) -> list[Strategy]:
    """The kernels that write large results."""
    return schedule_strategies(
        graph,
        program,
        kind=KIND,
        instruction=(
            "Ask for huge pages under the large results of {target}, which are fresh memory."
        ),
        fits=_fits,
        depends_on_machine=True,
    )


def apply(graph: OperatorGraph, program: Program, strategy: Strategy) -> Program:
    """The program with the target's `huge_pages` changed; raises `CannotRealizeError`."""
    return with_schedule(
        graph, program, strategy, fits=_fits, change=lambda _: {"huge_pages": True}
    )


def _fits(graph: OperatorGraph, program: Program, group: Group, kernel: Kernel) -> bool:
    return not group.schedule.huge_pages and any(
        touched_bytes(kernel, i) >= _LEAST_BYTES for i in kernel.body if isinstance(i, Store)
    )
