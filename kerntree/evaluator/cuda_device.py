"""A GPU as the supervisor knows it: facts that a process with torch has told, never asked anew."""

from dataclasses import dataclass

from pydantic import JsonValue

from kerntree.evaluator.device import CpuDevice, Limits
from kerntree.plans.frozen import Frozen

_MEMORY_SHARE = 0.85  # of the device's: the rest is for contexts, code and torch's own loss
_UNKNOWN_BANDWIDTH = 20e12  # bytes a second, above any device there is
_MARGIN = 1.05  # memory clocks are rounded in what the driver says


class GpuFacts(Frozen):
    """What identifies a GPU and bounds it. Clocks in kHz, 0 where the driver does not say."""

    model: str
    uuid: str
    capability: tuple[int, int]
    processors: int
    clock_khz: int
    memory_clock_khz: int
    bus_bits: int
    cache_bytes: int
    memory_bytes: int
    free_bytes: int
    driver: str
    cuda: str


@dataclass(frozen=True)
class CudaDevice:
    """One GPU. `threads` and `host_memory` are those of the machine that drives it."""

    facts: GpuFacts
    threads: int
    host_memory: int
    kind: str = "cuda"

    @classmethod
    def of(cls, facts: GpuFacts, *, threads: int | None = None) -> "CudaDevice":
        """The GPU of these facts, driven by this machine."""
        host = CpuDevice.here(threads=threads)
        return cls(facts=facts, threads=host.threads, host_memory=host.memory)

    @property
    def name(self) -> str:
        return f"cuda {self.facts.uuid}"

    @property
    def memory(self) -> int:
        return min(int(_MEMORY_SHARE * self.facts.memory_bytes), self.facts.free_bytes)

    @property
    def limits(self) -> Limits:
        """Theoretical bounds, not measurements: an honest kernel must never look impossible.

        Memory moves two transfers a clock over the whole bus. A processor takes at most 128 bytes
        a clock from L2, and 16384 multiply-adds (sparse 8-bit products) a clock. A call starts
        with a cold L2, but what it writes may still lie there when it ends; doubled for what
        registers and shared memory hold.
        """
        facts = self.facts
        clock = 1e3 * (facts.clock_khz or 4_000_000)
        bandwidth = 2e3 * facts.memory_clock_khz * facts.bus_bits / 8 * _MARGIN
        return Limits(
            bandwidth=bandwidth or _UNKNOWN_BANDWIDTH,
            cache_bandwidth=facts.processors * 128 * clock,
            resident=2 * facts.cache_bytes,
            operations=facts.processors * 16384 * clock,
        )

    def description(self) -> dict[str, JsonValue]:
        return {
            "kind": self.kind,
            "model": self.facts.model,
            "capability": f"{self.facts.capability[0]}.{self.facts.capability[1]}",
            "processors": self.facts.processors,
            "memory_gib": round(self.facts.memory_bytes / (1 << 30)),
            "driver": self.facts.driver,
            "cuda": self.facts.cuda,
        }
