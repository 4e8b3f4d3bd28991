"""Devices that candidates run on: what identifies them, and what they cannot exceed."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydantic import JsonValue


@dataclass(frozen=True)
class Limits:
    """Upper bounds that no program passes: bytes and operations a second, and on-chip bytes.

    The first `resident` bytes of a call may come from caches at `cache_bandwidth`, the rest from
    memory at `bandwidth`.
    """

    bandwidth: float
    cache_bandwidth: float
    resident: int
    operations: float


class Device(Protocol):
    """A device that one process at a time may measure on."""

    @property
    def name(self) -> str:
        """Names the lock: the same for every process that shares the device."""
        ...

    @property
    def kind(self) -> str:
        """Torch's device type."""
        ...

    @property
    def threads(self) -> int: ...

    @property
    def memory(self) -> int:
        """Bytes that oracle, baselines and candidate may take together."""
        ...

    @property
    def host_memory(self) -> int:
        """Bytes of the machine's memory that those processes may take."""
        ...

    @property
    def limits(self) -> Limits: ...

    def description(self) -> dict[str, JsonValue]:
        """What of the device decides timings and verdicts: goes into keys and evaluations."""
        ...


@dataclass(frozen=True)
class CpuDevice:
    """The processors that this process may use."""

    model: str
    flags_level: str
    threads: int
    memory: int
    cache_bytes: int
    name: str = "cpu"
    kind: str = "cpu"

    @classmethod
    def here(cls, *, threads: int | None = None, proc: Path = Path("/proc")) -> "CpuDevice":
        """The machine as `/proc` and `/sys` describe it."""
        usable = len(os.sched_getaffinity(0))
        information = _read(proc / "cpuinfo")
        return cls(
            model=_field(information, "model name") or platform.machine(),
            flags_level=_vector_level(_field(information, "flags")),
            threads=min(threads or usable, usable),
            memory=_available_memory(_read(proc / "meminfo")),
            cache_bytes=_last_level_cache(),
        )

    @property
    def host_memory(self) -> int:
        return self.memory

    @property
    def limits(self) -> Limits:
        """Theoretical bounds, not measurements: an honest kernel must never look impossible.

        A core has well under 100 line fills in flight, each of 64 bytes and 60 ns or more: below
        100 GB/s from memory (Little's law). Its caches give at most two 64-byte lines a cycle.
        Two vector units of 16 float32 multiply-adds make 64 operations a cycle; matrix units
        (AMX, SME) sixteen times that. 6 GHz bounds every clock there is. All processors of the
        process count, whatever thread number it asked for.
        """
        cores, clock = len(os.sched_getaffinity(0)), 6e9
        return Limits(
            bandwidth=cores * 100e9,
            cache_bandwidth=cores * 128 * clock,
            resident=self.cache_bytes,
            operations=cores * 1024 * clock,
        )

    def description(self) -> dict[str, JsonValue]:
        return {
            "kind": self.kind,
            "model": self.model,
            "vectors": self.flags_level,
            "threads": self.threads,
            "system": platform.system(),
            "machine": platform.machine(),
        }


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _field(text: str, name: str) -> str:
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _vector_level(flags: str) -> str:
    present = set(flags.split())
    for level in ("amx_tile", "avx512f", "avx2", "avx", "sse4_2"):
        if level in present:
            return level
    return ""


def _available_memory(text: str) -> int:
    words = _field(text, "MemAvailable").split()
    available = int(words[0]) * 1024 if words and words[0].isdigit() else 1 << 32
    for path in (
        Path("/sys/fs/cgroup/memory.max"),
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
    ):
        limit = _read(path).strip()
        if limit.isdigit():
            available = min(available, int(limit))
    return available


def _last_level_cache(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Bytes of the largest cache, doubled for what lies in the smaller ones; 1 GiB if unknown."""
    largest = 0
    for path in root.glob("index*/size"):
        text = _read(path).strip()
        scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
        digits = text.rstrip("KMG")
        largest = max(largest, int(digits) * scale if digits.isdigit() else 0)
    return 2 * largest or 1 << 30
