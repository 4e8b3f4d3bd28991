"""Whether a result has the form of the reference's: structure, shapes, types, own memory."""

from collections.abc import Sequence
from typing import Any

import torch

from kerntree.evaluator.tensor_block import Layout


class WrongForm(Exception):
    """The result is not of the reference's form; the message says where."""


def check_result(
    tree: Any,
    result: Any,
    layout: Layout,
    *,
    inputs: Sequence[torch.Tensor],
    aliases: bool,
    device: torch.device | None = None,
) -> list[torch.Tensor]:
    """The result's tensors in the order of `tree`'s leaves; raises `WrongForm`.

    `layout` starts with the outputs' specs. Unless `aliases`, no output may share memory with an
    input. Outputs must be on `device`, where one is named.
    """
    leaves: dict[int, torch.Tensor] = {}
    _walk(tree, result, "output", leaves)
    outputs = [leaves[index] for index in sorted(leaves)]
    for number, (tensor, placed) in enumerate(zip(outputs, layout.tensors, strict=False)):
        expected = placed.spec
        dtype = str(tensor.dtype).removeprefix("torch.")
        if tuple(tensor.shape) != expected.shape:
            raise WrongForm(
                f"output {number} has shape {tuple(tensor.shape)}, not {expected.shape}"
            )
        if dtype != expected.dtype:
            raise WrongForm(f"output {number} is {dtype}, not {expected.dtype}")
        if device is not None and tensor.device.type != device.type:
            raise WrongForm(f"output {number} is on {tensor.device}, not on {device}")
    if not aliases:
        owned = {t.untyped_storage().data_ptr() for t in inputs if t.numel()}
        for number, tensor in enumerate(outputs):
            if tensor.numel() and tensor.untyped_storage().data_ptr() in owned:
                raise WrongForm(f"output {number} shares its memory with an input")
    return outputs


def _walk(tree: Any, value: Any, where: str, leaves: dict[int, torch.Tensor]) -> None:
    if isinstance(tree, int):
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise WrongForm(f"{where} is a {type(value).__name__}, not a tensor")
        leaves[tree] = value
        return
    ((kind, inner),) = tree.items()
    if kind == "value":
        if value != inner:
            raise WrongForm(f"{where} is {value!r:.80}, not {inner!r:.80}")
        return
    expected: type[Any] = {"tuple": tuple, "list": list, "dict": dict}[kind]
    if not isinstance(value, expected) or len(value) != len(inner):
        raise WrongForm(f"{where} is not a {kind} of {len(inner)}")
    items = inner.items() if kind == "dict" else enumerate(inner)
    for key, entry in items:
        if kind == "dict" and key not in value:
            raise WrongForm(f"{where} has no entry {key!r}")
        _walk(entry, value[key], f"{where}[{key!r}]", leaves)


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors hold the same bits, NaN included."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if torch.equal(first, second):
        return True
    one, other = (t.contiguous().reshape(-1).view(torch.uint8) for t in (first, second))
    return torch.equal(one, other)
