"""What a program is expected to take on a GPU: bytes, operations, launches, and programs in flight.

The figures only rank strategies; what a kernel is worth is measured.
"""

from dataclasses import dataclass
from math import ceil, prod

from kerntree.coder.cost import overlapped
from kerntree.coder.emit.triton_tiles import tiles_of
from kerntree.coder.kernel import Kernel, Reduce
from kerntree.coder.program import Group, Schedule
from kerntree.coder.traffic import (
    kept_row_bytes,
    memory_traffic,
    row_points,
    scheduled,
    walks,
    work,
)
from kerntree.plans.graph import OperatorGraph
from kerntree.plans.roofline import FREE, TYPICAL_GPU, DeviceLimits, group_cost

_TORCH_SHARE = 0.85  # of the bandwidth, as torch's own elementwise kernels reach it
_TORCH_ROW = 64 << 10  # bytes: longer rows its row kernels read three times


@dataclass(frozen=True, kw_only=True)
class GpuMachine:
    """What the model assumes of a GPU.

    `limits` are those of the whole device; it needs `programs` in flight to reach them. Bytes read
    again within the second-level cache travel `cache_speed` times as fast. Programs that share a
    row wait `meeting_seconds` for each other, whenever they do.
    """

    limits: DeviceLimits = TYPICAL_GPU
    processors: int = 132
    cache_bytes: int = 50 << 20
    cache_speed: float = 2.0
    launch_seconds: float = 4.0e-6
    view_seconds: float = 1.0e-6
    meeting_seconds: float = 3.0e-6

    def kernel_seconds(self, kernel: Kernel, schedule: Schedule) -> float:
        """A kernel of ours: its traffic at the share of the device that it fills."""
        tiles = tiles_of(kernel, schedule)
        rows = prod(kernel.dims[d].extent for d in kernel.kept)
        parts = 1
        if tiles.split:
            parts = tiles.first.get("PARTS") or ceil(row_points(kernel) / tiles.first["BLOCK"])
        size = tiles.first.get("ROWS", 1) if kernel.reduced else tiles.first["BLOCK"]
        programs = ceil(rows / size) * parts
        filled = min(1.0, programs / (2 * self.processors))
        read, written = memory_traffic(kernel, schedule.order)
        bandwidth = self.limits.bandwidth_bytes_per_second * filled
        memory = (read + written) / bandwidth
        passes = walks(kernel, schedule)
        if kernel.reduced and passes > 1 and not tiles.whole:
            memory += self._again(kernel, read, passes - 1, parts, rows) / bandwidth
        rate = self.limits.operations_per_second * filled
        seconds = overlapped(memory, work(kernel, schedule) / rate)
        if tiles.split:
            waves = ceil(programs / (4 * self.processors))
            meetings = sum(isinstance(i, Reduce) for i in scheduled(kernel, schedule).body)
            seconds += 0.25 * waves * meetings * self.meeting_seconds
            # while the programs of a row wait, those of other rows must use the memory
            seconds *= 1.0 + min(parts / (2.0 * self.processors), 2.0)
        tuned = 1.0 if schedule.tile else 1.15
        return self.launch_seconds + seconds * tuned

    def torch_seconds(self, graph: OperatorGraph, group: Group) -> float:
        """From memory to memory, call by call; views are free."""
        calls = [graph.node(name).target for name in group.nodes]
        if all(target in FREE for target in calls):
            return self.view_seconds * len(calls)
        cost = group_cost(graph, group.nodes)
        filled, again = 1.0, 0
        for rows, size in _rows(graph, group):
            filled = min(filled, rows / (2 * self.processors))
            again += 2 * size if size // rows > _TORCH_ROW else 0
        bandwidth = _TORCH_SHARE * self.limits.bandwidth_bytes_per_second * filled
        rate = self.limits.operations_per_second * filled
        return self.launch_seconds + overlapped((cost.bytes + again) / bandwidth, cost.work / rate)

    def _again(self, kernel: Kernel, read: int, times: int, parts: int, rows: int) -> float:
        """Bytes as they count when rows are read again: fewer where they are still in the cache."""
        running = min(rows, max(4 * self.processors // parts, 1))
        held = running * kept_row_bytes(kernel) <= 0.6 * self.cache_bytes
        return times * read / (self.cache_speed if held else 1.0)


def _rows(graph: OperatorGraph, group: Group) -> list[tuple[int, int]]:
    """Rows and bytes of what torch's own row kernels read, with one program for each row."""
    found = []
    for name in group.nodes:
        node = graph.node(name)
        operator = node.target.removeprefix("aten.").split(".")[0]
        size = node.outputs[0].bytes
        if operator in ("_softmax", "_log_softmax") and isinstance(node.args[1], int):
            found.append((node.outputs[0].elements // node.outputs[0].shape[node.args[1]], size))
        elif operator in ("native_layer_norm", "native_group_norm"):
            found.append((node.outputs[1].elements, size))
    return found
