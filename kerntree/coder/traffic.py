"""How a schedule walks a kernel's domain: lanes, rows, passes, and what lies next to what."""

from math import prod
from typing import Literal

from kerntree.coder.kernel import Kernel, Load, LoadIndexed, Point, Reduce, Store
from kerntree.coder.passes import (
    one_pass,
    operations,
    passes_over_rows,
    point_values,
    results,
    stages,
    uses,
)
from kerntree.coder.program import Schedule
from kerntree.plans.graph import ITEM_BYTES
from kerntree.plans.roofline import FUNCTION_WORK

Order = Literal["reduce_inner", "reduce_outer"]
_CACHE_LINE = 64


def domain_points(kernel: Kernel) -> int:
    """The number of points of the domain."""
    return prod(dim.extent for dim in kernel.dims)


def row_points(kernel: Kernel) -> int:
    """The number of points that one kept position reduces (1 without a reduction)."""
    return prod(kernel.dims[d].extent for d in kernel.reduced)


def lane_is_reduced(kernel: Kernel) -> bool:
    """Whether neighbours in memory lie along a reduced dimension, for the most-read tensor."""
    last = len(kernel.dims) - 1
    loads = [i for i in kernel.body if isinstance(i, Load)]
    widest = max(loads, key=lambda i: touched_bytes(kernel, i), default=None)
    return widest is None or abs(widest.access.strides[last]) == 1


def lane_dim(kernel: Kernel, order: Order) -> int:
    """The dimension whose neighbours are computed together."""
    if order == "reduce_outer" and kernel.kept:
        return kernel.kept[-1]
    return len(kernel.dims) - 1


def lane_extent(kernel: Kernel, order: Order) -> int:
    """The length of the innermost loop."""
    return kernel.dims[lane_dim(kernel, order)].extent


def touched_bytes(kernel: Kernel, instruction: Load | LoadIndexed | Store) -> int:
    """Bytes of the distinct elements that an access reaches."""
    reached = prod(
        dim.extent if stride else 1
        for stride, dim in zip(instruction.access.strides, kernel.dims, strict=True)
    )
    if isinstance(instruction, LoadIndexed) and instruction.index in point_values(kernel):
        reached = domain_points(kernel)
    return reached * ITEM_BYTES[instruction.dtype]


def fetched_bytes(kernel: Kernel, instruction: Load | LoadIndexed | Store, order: Order) -> int:
    """Bytes that travel when lanes lie apart: a cache line may be fetched for each element.

    A store waits for the end of a row, so that it follows the walk as loads do.
    """
    touched = touched_bytes(kernel, instruction)
    stride = abs(instruction.access.strides[lane_dim(kernel, order)])
    if stride <= 1:
        return touched
    item = ITEM_BYTES[instruction.dtype]
    return touched * min(stride, max(_CACHE_LINE // item, 1))


def memory_traffic(kernel: Kernel, order: Order) -> tuple[int, int]:
    """Bytes read in one walk, and bytes written; each place of a tensor is read once."""
    reads: dict[object, int] = {}
    written = 0
    for instruction in kernel.body:
        if isinstance(instruction, Store):
            written += fetched_bytes(kernel, instruction, order)
        elif isinstance(instruction, Load | LoadIndexed):
            fetched = fetched_bytes(kernel, instruction, order)
            reads[instruction.access] = max(reads.get(instruction.access, 0), fetched)
    return sum(reads.values()), written


def scheduled(kernel: Kernel, schedule: Schedule) -> Kernel:
    """The kernel as the schedule has it computed."""
    return one_pass(kernel) if schedule.one_pass else kernel


def walks(kernel: Kernel, schedule: Schedule) -> int:
    """How often the schedule walks each row."""
    return passes_over_rows(scheduled(kernel, schedule))


def kept_row_bytes(kernel: Kernel) -> int:
    """Bytes of a row's point loads, which is the most that need be kept between its passes."""
    points = point_values(kernel)
    loads = {
        i.access: ITEM_BYTES[i.dtype] if i.dtype not in ("float16", "bfloat16") else 4
        for i in kernel.body
        if isinstance(i, Load | LoadIndexed) and i.result in points
    }
    return row_points(kernel) * sum(loads.values())


def point_values_meet_again(kernel: Kernel) -> bool:
    """Whether a later pass needs point values of an earlier one."""
    if not kernel.reduced or passes_over_rows(kernel) < 2:
        return False
    stage, points = stages(kernel), point_values(kernel)
    feeds: dict[str, frozenset[str]] = {}
    by_pass: dict[int, set[str]] = {}
    for instruction in kernel.body:
        names = results(instruction)
        sources: set[str] = set()
        for used in uses(instruction):
            sources |= feeds.get(used, frozenset())
        if isinstance(instruction, Load | LoadIndexed) and instruction.result in points:
            sources.add(instruction.result)
        if isinstance(instruction, Reduce | Store):
            walk = max((stage[used] for used in uses(instruction)), default=0)
            by_pass.setdefault(walk, set()).update(sources)
        for name in names:
            feeds[name] = frozenset(sources) if name in points else frozenset()
    seen: set[str] = set()
    for walk in sorted(by_pass):
        if seen & by_pass[walk]:
            return True
        seen |= by_pass[walk]
    return False


def work(kernel: Kernel, schedule: Schedule) -> float:
    """Elementary operations of all passes, functions weighed by what they usually take."""
    computed = scheduled(kernel, schedule)
    counts = operations(computed)
    once = sum(FUNCTION_WORK.get(name, 1.0) * count for name, count in counts.items())
    passes = passes_over_rows(computed)
    again = 0.0 if schedule.keep_row or passes == 1 else (passes - 1) / 2
    recomputed = sum(
        FUNCTION_WORK.get(i.function, 1.0) * domain_points(kernel)
        for i in computed.body
        if isinstance(i, Point) and computed.reduced and i.result in point_values(computed)
    )
    # Reading and writing count too, or a copy would take no instruction at all.
    moves = sum(isinstance(i, Load | LoadIndexed | Store) for i in kernel.body)
    return once + again * recomputed + moves * domain_points(kernel)
