"""The reference in float64: what its result is, up to float64's own rounding.

The module, its inputs and every float32, float16 or bfloat16 tensor it makes or casts to are
promoted, by a dispatch mode that sees each operator; so `x.float()` inside `forward` does not
bring the lower precision back.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

PROMOTED = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}


class CannotDoubleError(Exception):
    """The reference does something that has no meaning in float64."""


def doubled(value: Any) -> Any:
    """A copy of a nest of values, its low-precision tensors as float64 (complex128)."""
    return tree_map(
        lambda leaf: (
            leaf.detach().to(PROMOTED.get(leaf.dtype, leaf.dtype), copy=True)
            if isinstance(leaf, torch.Tensor)
            else leaf
        ),
        value,
    )


def double_module(module: torch.nn.Module) -> torch.nn.Module:
    """Promotes parameters, buffers and tensors kept as plain attributes, in place.

    Parameters are replaced, not written: whoever shares them keeps their own.
    """
    module.to(torch.float64)
    for part in module.modules():
        for key, value in list(vars(part).items()):
            if key in ("_parameters", "_buffers", "_modules"):
                continue
            tensors = (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))
            if any(tensor.dtype in PROMOTED for tensor in tensors):
                object.__setattr__(part, key, doubled(value))
    return module


@contextmanager
def double_precision() -> Iterator[None]:
    """Inside, new tensors are float64 and casts to lower precision stay in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Promote():  # type: ignore[no-untyped-call]
            yield
    finally:
        torch.set_default_dtype(before)


class _Promote(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch does not annotate it
    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.ops.aten.view.dtype:
            raise CannotDoubleError("reinterprets the bits of a tensor (view with a dtype)")
        writes = func._schema.is_mutable
        convert: Callable[[Any], Any] = _promoted_type if writes else _promoted
        result = func(*tree_map(convert, args), **tree_map(convert, kwargs or {}))
        return result if writes else tree_map(_promoted, result)


def _promoted(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        dtype = PROMOTED.get(value.dtype)
        return value if dtype is None else value.detach().to(dtype)
    return _promoted_type(value)


def _promoted_type(value: Any) -> Any:
    return PROMOTED.get(value, value) if isinstance(value, torch.dtype) else value
