"""What a program is expected to take: bytes, operations, launches and threads; a model, no clock.

The figures only rank strategies; what a kernel is worth is measured.
"""

from dataclasses import dataclass
from typing import Protocol

from kerntree.coder.groups import kernel_of
from kerntree.coder.kernel import Kernel
from kerntree.coder.program import Group, Program, Schedule
from kerntree.coder.traffic import (
    kept_row_bytes,
    lane_dim,
    lane_extent,
    memory_traffic,
    walks,
    work,
)
from kerntree.plans.graph import OperatorGraph
from kerntree.plans.roofline import FREE, TYPICAL_CPU, DeviceLimits, group_cost

_TORCH_TRAFFIC = 1.3  # a line that torch writes is read before, and fresh memory faults


class Machine(Protocol):
    """What a model of some hardware expects, in seconds."""

    def kernel_seconds(self, kernel: Kernel, schedule: Schedule) -> float:
        """A kernel of ours under a schedule."""
        ...

    def torch_seconds(self, graph: OperatorGraph, group: Group) -> float:
        """A group's torch calls."""
        ...


@dataclass(frozen=True, kw_only=True)
class CpuMachine:
    """What the model assumes of a CPU.

    `limits` are those of all threads with vector code; a thread alone has `lone_bandwidth` of the
    bandwidth (a fraction) and its share of the operations; scalar code has one of `lanes`.
    """

    limits: DeviceLimits = TYPICAL_CPU
    threads: int = 2
    lanes: int = 8
    lone_bandwidth: float = 0.6
    cache_bytes: int = 1 << 20
    call_seconds: float = 4.0e-6
    view_seconds: float = 1.0e-6
    fork_seconds: float = 5.0e-6

    def kernel_seconds(self, kernel: Kernel, schedule: Schedule) -> float:
        """Bytes at the bandwidth, operations at the rate that the schedule can reach."""
        return _kernel_seconds(kernel, schedule, self)

    def torch_seconds(self, graph: OperatorGraph, group: Group) -> float:
        """From memory to memory, call by call."""
        return _torch_seconds(graph, group, self)


def program_seconds(graph: OperatorGraph, program: Program, machine: Machine) -> float:
    """The expected time of a program, in seconds."""
    return sum(group_seconds(graph, group, machine) for group in program.groups)


def group_seconds(graph: OperatorGraph, group: Group, machine: Machine) -> float:
    """The expected time of a group, in seconds."""
    kernel = kernel_of(graph, group) if group.lowered else None
    if kernel is None:
        return machine.torch_seconds(graph, group)
    return machine.kernel_seconds(kernel, group.schedule)


def _kernel_seconds(kernel: Kernel, schedule: Schedule, machine: CpuMachine) -> float:
    bandwidth, rate = _speed(kernel, schedule, machine)
    read, written = memory_traffic(kernel, schedule.order)
    passes = walks(kernel, schedule)
    if kept_row_bytes(kernel) > machine.cache_bytes:
        read *= passes
    # A plain write reads the line first; fresh memory in small pages costs as much as the write.
    extra = (0.0 if schedule.stream else 0.5) + (0.0 if schedule.huge_pages else 1.0)
    traffic = read + written * (1.0 + extra)
    start = machine.call_seconds + (machine.fork_seconds if schedule.parallel else 0.0)
    return start + overlapped(traffic / bandwidth, work(kernel, schedule) / rate)


def overlapped(memory: float, arithmetic: float) -> float:
    """Memory and arithmetic overlap, never perfectly: what is hidden counts a little."""
    return max(memory, arithmetic) + 0.25 * min(memory, arithmetic)


def _speed(kernel: Kernel, schedule: Schedule, machine: CpuMachine) -> tuple[float, float]:
    """Bytes and elementary operations a second that the schedule can reach."""
    threads = machine.threads if schedule.parallel else 1
    bandwidth = machine.limits.bandwidth_bytes_per_second * (
        1.0 if threads > 1 else machine.lone_bandwidth
    )
    rate = machine.limits.operations_per_second * threads / machine.threads
    lanes = 1.0
    if schedule.vectorize:
        lanes = float(min(machine.lanes, lane_extent(kernel, schedule.order)))
        if not _lanes_adjoin(kernel, schedule):
            lanes = max(lanes / 4, 1.0)
    rate *= lanes / machine.lanes
    return bandwidth, rate * (1.0 if schedule.tile else 0.85)


def _lanes_adjoin(kernel: Kernel, schedule: Schedule) -> bool:
    lane = lane_dim(kernel, schedule.order)
    strides = [
        access.strides[lane]
        for access in (getattr(i, "access", None) for i in kernel.body)
        if access is not None
    ]
    return all(stride in (0, 1) for stride in strides)


def _torch_seconds(graph: OperatorGraph, group: Group, machine: CpuMachine) -> float:
    calls = [graph.node(name).target for name in group.nodes]
    if all(target in FREE for target in calls):
        return machine.view_seconds * len(calls)
    cost = group_cost(graph, group.nodes)
    limits = machine.limits
    return machine.call_seconds + overlapped(
        _TORCH_TRAFFIC * cost.bytes / limits.bandwidth_bytes_per_second,
        cost.work / limits.operations_per_second,
    )
