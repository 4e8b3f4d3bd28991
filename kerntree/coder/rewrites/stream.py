"""Large results that nothing in the program reads again, written past the caches."""

from kerntree.coder.kernel import Kernel, Store
from kerntree.coder.program import Group, Program
from kerntree.coder.rewrites.rewrite import schedule_strategies, with_schedule
from kerntree.coder.traffic import touched_bytes
from kerntree.plans.graph import OperatorGraph, operands
from kerntree.plans.strategy import Strategy

KIND = "stream"
TARGETS = frozenset({"cpp", "triton"})
_LEAST_BYTES = 8 << 20  # smaller results may stay in a cache for the caller


def applicable(graph: OperatorGraph, program: Program) -> list[Strategy]:
    """The kernels that write large results which no other group reads."""
    return schedule_strategies(
        graph,
        program,
        kind=KIND,
        instruction=("Write the large results of {target} past the caches."),
        fits=_fits,
        depends_on_machine=True,
    )


def apply(graph: OperatorGraph, program: Program, strategy: Strategy) -> Program:
    """The program with the target's `stream` changed; raises `CannotRealizeError`."""
    return with_schedule(graph, program, strategy, fits=_fits, change=lambda _: {"stream": True})


def _fits(graph: OperatorGraph, program: Program, group: Group, kernel: Kernel) -> bool:
    if group.schedule.stream:
        return False
    inside = set(group.nodes)
    live = {name for other in program.groups for name in other.nodes}
    read_again = {
        ref
        for node in graph.nodes
        if node.name in live and node.name not in inside
        for ref in operands(node)
    }
    return any(
        touched_bytes(kernel, i) >= _LEAST_BYTES and i.access.tensor not in read_again
        for i in kernel.body
        if isinstance(i, Store)
    )
