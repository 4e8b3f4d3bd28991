"""A row's values kept, in scratch memory or registers, for the passes that need them again."""

from dataclasses import replace

from kerntree.coder.emit.triton_tiles import tiles_of
from kerntree.coder.kernel import Kernel
from kerntree.coder.program import Group, Program
from kerntree.coder.rewrites.rewrite import ScheduleRewrite
from kerntree.coder.traffic import kept_row_bytes, point_values_meet_again, scheduled
from kerntree.plans.graph import OperatorGraph

_LARGEST_ROW = 256 * 1024  # bytes: a fraction of a core's second-level cache


def _fits(graph: OperatorGraph, program: Program, group: Group, kernel: Kernel) -> bool:
    """The kernels that need a row's values in several passes and can hold the row."""
    schedule = group.schedule
    if program.target == "triton":
        held = replace(schedule, keep_row=True)
        return not schedule.keep_row and bool(kernel.reduced) and tiles_of(kernel, held).whole
    return (
        not schedule.keep_row
        and schedule.order == "reduce_inner"
        and kept_row_bytes(kernel) <= _LARGEST_ROW
        and point_values_meet_again(scheduled(kernel, schedule))
    )


REWRITE = ScheduleRewrite(
    kind="keep_row",
    targets=frozenset({"cpp", "triton"}),
    instruction="Keep each row of {target} between its passes in place of reading it again.",
    fits=_fits,
    change=lambda _: {"keep_row": True},
)
