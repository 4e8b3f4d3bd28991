"""Huge pages under large fresh results, in place of a page fault for every few kilobytes."""

from kerntree.coder.kernel import Kernel, Store
from kerntree.coder.program import Group, Program
from kerntree.coder.rewrites.rewrite import ScheduleRewrite
from kerntree.coder.traffic import touched_bytes
from kerntree.plans.graph import OperatorGraph

_LEAST_BYTES = 8 << 20  # smaller results hold few whole huge pages


def _fits(graph: OperatorGraph, program: Program, group: Group, kernel: Kernel) -> bool:
    """The kernels that write large results."""
    return not group.schedule.huge_pages and any(
        touched_bytes(kernel, i) >= _LEAST_BYTES for i in kernel.body if isinstance(i, Store)
    )


REWRITE = ScheduleRewrite(
    kind="huge_pages",
    targets=frozenset({"cpp"}),
    instruction="Ask for huge pages under the large results of {target}, which are fresh memory.",
    fits=_fits,
    change=lambda _: {"huge_pages": True},
    depends_on_machine=True,
)
