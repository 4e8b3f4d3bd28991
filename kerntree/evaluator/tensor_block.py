"""Tensors in shared memory: one anonymous file holds several, at 64-byte offsets.

Layouts are plain data, so that the supervisor can pass blocks on without importing torch.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from kerntree.plans.frozen import Frozen
from kerntree.plans.graph import ITEM_BYTES, TensorSpec

if TYPE_CHECKING:
    import torch

_ALIGNMENT = 64


class Placed(Frozen):
    """One tensor of a block: stored contiguously at `offset` bytes; `strides` as it is used."""

    spec: TensorSpec
    offset: int


class Layout(Frozen):
    """The tensors of a block and its size in bytes."""

    tensors: tuple[Placed, ...]
    bytes: int


def layout_of(specs: Sequence[TensorSpec]) -> Layout:
    """Places tensors one after another."""
    placed, offset = [], 0
    for spec in specs:
        placed.append(Placed(spec=spec, offset=offset))
        used = spec.elements * ITEM_BYTES[spec.dtype]
        offset += (used + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
    return Layout(tensors=tuple(placed), bytes=max(offset, _ALIGNMENT))


def create_block(layout: Layout, *, poison: bool = False) -> int:
    """A new block as a descriptor, sealed against changes of size.

    `poison` fills it with a pattern that is NaN in every float type.
    """
    fd = os.memfd_create("tensors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, layout.bytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    if poison:
        chunk = b"\xff" * min(layout.bytes, 1 << 22)
        written = 0
        while written < layout.bytes:
            written += os.pwrite(fd, chunk[: layout.bytes - written], written)
    return fd


def read_only(fd: int) -> int:
    """Another descriptor of the same block, that cannot be written through."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)


def map_block(fd: int, layout: Layout, *, writable: bool) -> list[torch.Tensor]:
    """Contiguous tensors over the block's memory, in order.

    Without `writable` the memory is private to this process: writes stay here.
    """
    import torch

    if os.fstat(fd).st_size < layout.bytes:
        raise ValueError("the block is smaller than its layout")
    flags = mmap.MAP_SHARED if writable else mmap.MAP_PRIVATE
    memory = mmap.mmap(fd, layout.bytes, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    return views(torch.frombuffer(memory, dtype=torch.uint8), layout)


def views(flat: torch.Tensor, layout: Layout) -> list[torch.Tensor]:
    """Contiguous tensors over the memory of a flat one of bytes, in order."""
    import torch

    tensors = []
    for placed in layout.tensors:
        dtype = getattr(torch, placed.spec.dtype)
        if placed.spec.elements == 0:
            tensors.append(torch.empty(placed.spec.shape, dtype=dtype, device=flat.device))
            continue
        used = placed.spec.elements * ITEM_BYTES[placed.spec.dtype]
        part = flat[placed.offset : placed.offset + used]
        tensors.append(part.view(dtype).reshape(placed.spec.shape))
    return tensors


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """The spec of a tensor."""
    return TensorSpec(
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        strides=tuple(tensor.stride()),
    )


def pack(tensors: Sequence[torch.Tensor]) -> tuple[Layout, int]:
    """A new block that holds copies of these tensors."""
    layout = layout_of([spec_of(t) for t in tensors])
    fd = create_block(layout)
    for target, source in zip(map_block(fd, layout, writable=True), tensors, strict=True):
        target.copy_(source.detach())
    return layout, fd


def private_copy(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """A fresh tensor of the same values with these strides (elements)."""
    import torch

    if tensor.is_contiguous() and tuple(tensor.stride()) == strides:
        return tensor.clone()
    copy = torch.empty_strided(
        tuple(tensor.shape), strides, dtype=tensor.dtype, device=tensor.device
    )
    return copy.copy_(tensor)


def encode(value: Any) -> tuple[JsonValue, list[torch.Tensor]]:
    """A nested value as JSON, with its tensors beside it as `{"tensor": index}`.

    Raises `TypeError` for what has no such form.
    """
    import torch

    tensors: list[torch.Tensor] = []

    def walk(item: Any) -> JsonValue:
        match item:
            case torch.Tensor():
                tensors.append(item)
                return {"tensor": len(tensors) - 1}
            case float() if item != item or item in (float("inf"), float("-inf")):
                return {"float": repr(item)}
            case None | bool() | int() | float() | str():
                return item
            case list():
                return {"list": [walk(entry) for entry in item]}
            case tuple():
                return {"tuple": [walk(entry) for entry in item]}
            case dict():
                return {"dict": [[walk(key), walk(entry)] for key, entry in item.items()]}
            case torch.dtype():
                return {"dtype": str(item).removeprefix("torch.")}
            case torch.device():
                return {"device": str(item)}
        raise TypeError(f"a value of type {type(item).__name__} cannot be passed to a kernel")

    return walk(value), tensors


def decode(tree: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """The nested value of an `encode`d one."""
    import torch

    if not isinstance(tree, dict):
        return tree
    ((tag, inner),) = tree.items()
    match tag:
        case "tensor":
            return tensors[inner]
        case "float":
            return float(inner)
        case "list":
            return [decode(entry, tensors) for entry in inner]
        case "tuple":
            return tuple(decode(entry, tensors) for entry in inner)
        case "dict":
            return {decode(key, tensors): decode(entry, tensors) for key, entry in inner}
        case "dtype":
            return getattr(torch, inner)
        case "device":
            return torch.device(inner)
    raise ValueError(f"an unknown tag {tag!r}")


def tensor_paths(tree: Any) -> list[str]:
    """The paths of an encoded argument list's tensors (`"0"`, `"1.mask"`), by tensor index."""
    found: dict[int, str] = {}

    def walk(node: Any, path: str) -> None:
        if not isinstance(node, dict):
            return
        ((tag, inner),) = node.items()
        if tag == "tensor":
            found.setdefault(inner, path)
        elif tag in ("list", "tuple"):
            for number, entry in enumerate(inner):
                walk(entry, f"{path}.{number}" if path else str(number))
        elif tag == "dict":
            for key, entry in inner:
                walk(entry, f"{path}.{key}" if path else str(key))

    walk(tree, "")
    return [found[index] for index in sorted(found)]
