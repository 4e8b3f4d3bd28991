"""Blocks of device memory: one process lends them, another opens them for a moment.

All blocks are a child's. The oracle opens them by handle, writes inputs or reads results, and lets
go before it answers: it exports nothing, so that no child can reach what it knows.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

import torch

from kerntree.evaluator.cuda import CudaError, Driver
from kerntree.evaluator.tensor_block import Layout, views

_POISON = 0xFF  # NaN in every float type; no operator gives it everywhere
_CHUNK = 1 << 30  # bytes looked at together


class BlockRefused(Exception):
    """A handle that cannot be opened, or opens less than it should."""


@dataclass(frozen=True, eq=False)
class Lent:
    """A block of one's own: its contiguous tensors, and the handle for the other process.

    The memory goes with the last tensor.
    """

    tensors: list[torch.Tensor]
    handle: str


class Lending(Protocol):
    """How blocks pass between processes."""

    def lend(self, layout: Layout, *, poison: bool = False) -> Lent:
        """A new block; `poison` fills it with what cannot pass for a result."""
        ...

    def opened(self, handle: str, layout: Layout) -> AbstractContextManager[list[torch.Tensor]]:
        """Another process's block while the context lasts; raises `BlockRefused`."""
        ...


class CudaLending:
    """`Lending` by the driver's handles, on the current device of torch's context."""

    def __init__(self, driver: Driver | None = None) -> None:
        self._driver = driver or Driver()

    def lend(self, layout: Layout, *, poison: bool = False) -> Lent:
        address = self._allocated(layout.bytes)
        flat = _wrapped(_Memory(self._driver, address, layout.bytes, owned=True))
        if poison:
            flat.fill_(_POISON)
        return Lent(views(flat, layout), self._driver.export(address))

    @contextmanager
    def opened(self, handle: str, layout: Layout) -> Iterator[list[torch.Tensor]]:
        try:
            address = self._driver.open(handle)
        except (CudaError, ValueError) as error:
            raise BlockRefused(f"the block of device memory cannot be opened: {error}") from None
        try:
            if self._driver.extent(address) < layout.bytes:
                raise BlockRefused("the block of device memory is smaller than its layout")
            memory = _Memory(self._driver, address, layout.bytes, owned=False)
            yield views(_wrapped(memory), layout)
        finally:
            torch.cuda.synchronize()
            self._driver.close(address)

    def _allocated(self, count: int) -> int:
        try:
            return self._driver.allocate(count)
        except CudaError as error:
            if not error.out_of_memory:
                raise
        torch.cuda.empty_cache()  # torch may keep what it does not use
        return self._driver.allocate(count)


class _Memory:
    """What torch takes for an array on the device."""

    def __init__(self, driver: Driver, address: int, count: int, *, owned: bool) -> None:
        self._driver, self._address, self._owned = driver, address, owned
        self.__cuda_array_interface__ = {
            "shape": (count,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 2,
        }

    def __del__(self) -> None:
        if self._owned:
            with suppress(CudaError):  # a lost context has lost its memory with it
                self._driver.free(self._address)


def _wrapped(memory: _Memory) -> torch.Tensor:
    return torch.as_tensor(memory, device="cuda")


def untouched(tensors: list[torch.Tensor]) -> bool:
    """Whether nobody wrote to some tensor of a block since it was poisoned."""
    return any(tensor.numel() > 0 and _poisoned(tensor) for tensor in tensors)


def _poisoned(tensor: torch.Tensor) -> bool:
    raw = tensor.reshape(-1).view(torch.uint8)
    return all(
        bool((raw[low : low + _CHUNK] == _POISON).all()) for low in range(0, raw.numel(), _CHUNK)
    )
