"""Where the oracle's tensors live, and how they reach the children and come back."""

import contextlib
import fcntl
import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import torch

from kerntree.evaluator.cuda import CudaError, Driver
from kerntree.evaluator.cuda_device import GpuFacts
from kerntree.evaluator.device_block import CudaLending, Lending
from kerntree.evaluator.memory import available_memory
from kerntree.evaluator.tensor_block import Layout, layout_of, map_block, pack, read_only, spec_of

_SHARE = 0.85  # of a GPU's memory, for all processes together
_IDLE = 1 << 30  # bytes that torch may keep without using them


class OracleGround(Protocol):
    """A device, as the oracle uses it."""

    kind: str

    def memory(self) -> int:
        """Bytes that all processes together may take."""
        ...

    def shared(self, tensors: Sequence[torch.Tensor]) -> tuple[Layout, list[int]]:
        """The form of a set of inputs and, where children take them so, descriptors of it."""
        ...

    def fill(self, handle: str, tensors: Sequence[torch.Tensor]) -> None:
        """Writes a set of inputs into a child's block; raises `BlockRefused`."""
        ...

    def results(
        self, layout: Layout, fds: Sequence[int], handle: str
    ) -> AbstractContextManager[list[torch.Tensor]]:
        """What a child wrote, while the context lasts; raises `BlockRefused`."""
        ...

    def tidy(self) -> None:
        """Follows each request."""
        ...


class CpuBlocks:
    """Shared memory, whose descriptors pass through the supervisor."""

    kind = "cpu"

    def memory(self) -> int:
        return available_memory()

    def shared(self, tensors: Sequence[torch.Tensor]) -> tuple[Layout, list[int]]:
        layout, fd = pack(tensors)
        return layout, [sealed(fd)]

    def fill(self, handle: str, tensors: Sequence[torch.Tensor]) -> None:
        raise ValueError("inputs on the CPU come with their descriptor")

    @contextmanager
    def results(
        self, layout: Layout, fds: Sequence[int], handle: str
    ) -> Iterator[list[torch.Tensor]]:
        yield map_block(fds[0], layout, writable=False)

    def tidy(self) -> None:
        return


class CudaBlocks:
    """Device memory that children lend; see `device_block`."""

    kind = "cuda"

    def __init__(self, lending: Lending | None = None) -> None:
        self._lending = lending or CudaLending()

    def memory(self) -> int:
        free, total = torch.cuda.mem_get_info()
        return min(int(_SHARE * total), free)

    def shared(self, tensors: Sequence[torch.Tensor]) -> tuple[Layout, list[int]]:
        return layout_of([spec_of(tensor) for tensor in tensors]), []

    def fill(self, handle: str, tensors: Sequence[torch.Tensor]) -> None:
        layout = layout_of([spec_of(tensor) for tensor in tensors])
        with self._lending.opened(handle, layout) as targets:
            for target, source in zip(targets, tensors, strict=True):
                target.copy_(source)

    @contextmanager
    def results(
        self, layout: Layout, fds: Sequence[int], handle: str
    ) -> Iterator[list[torch.Tensor]]:
        with self._lending.opened(handle, layout) as tensors:
            yield tensors

    def tidy(self) -> None:
        if torch.cuda.memory_allocated() > _IDLE:
            gc.collect()  # torch's tree functions leave cycles behind that hold tensors
        if torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > _IDLE:
            torch.cuda.empty_cache()


def gpu_facts() -> GpuFacts | str:
    """What the first visible GPU is, or why none can be used; creates this process's context."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return "torch finds no GPU"
    try:
        torch.zeros(1, device="cuda")
        driver = Driver()
        free, total = torch.cuda.mem_get_info()
        properties = torch.cuda.get_device_properties(0)
        return GpuFacts(
            model=properties.name,
            uuid=str(properties.uuid),
            capability=(properties.major, properties.minor),
            processors=properties.multi_processor_count,
            clock_khz=driver.attribute("clock"),
            memory_clock_khz=driver.attribute("memory_clock"),
            bus_bits=driver.attribute("bus_width"),
            cache_bytes=driver.attribute("cache"),
            memory_bytes=total,
            free_bytes=free,
            driver=_driver_version() or str(driver.version()),
            cuda=str(torch.version.cuda),
        )
    except (CudaError, OSError, RuntimeError) as error:
        return f"the GPU cannot be used: {' '.join(str(error).split())[:300]}"


def sealed(fd: int) -> int:
    """A read-only descriptor of a block that nobody can write to any more; closes the other."""
    with contextlib.suppress(OSError):  # a kernel without the seal: the read-only mode remains
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL)
    try:
        return read_only(fd)
    finally:
        os.close(fd)


def _driver_version(path: Path = Path("/proc/driver/nvidia/version")) -> str:
    """The kernel module's, such as `580.65.06`."""
    try:
        words = path.read_text().split()
    except OSError:
        return ""
    return next((word for word in words if word.count(".") >= 1 and word[0].isdigit()), "")
