"""Large results that nothing in the program reads again, written past the caches."""

from kerntree.coder.kernel import Kernel, Store
from kerntree.coder.program import Group, Program
from kerntree.coder.rewrites.rewrite import ScheduleRewrite
from kerntree.coder.traffic import touched_bytes
from kerntree.plans.graph import OperatorGraph, operands

_LEAST_BYTES = 8 << 20  # smaller results may stay in a cache for the caller


def _fits(graph: OperatorGraph, program: Program, group: Group, kernel: Kernel) -> bool:
    """The kernels that write large results which no other group reads."""
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


REWRITE = ScheduleRewrite(
    kind="stream",
    targets=frozenset({"cpp", "triton"}),
    instruction="Write the large results of {target} past the caches.",
    fits=_fits,
    change=lambda _: {"stream": True},
    depends_on_machine=True,
)
