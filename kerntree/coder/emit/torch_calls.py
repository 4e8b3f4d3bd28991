"""Operators that stay with torch, as Python text."""

from collections.abc import Callable
from typing import Any

from kerntree.plans.graph import Node


def call_text(node: Node, name_of: Callable[[str], str], *, device: str = "") -> str:
    """The expression that computes a node; `name_of` gives a value's Python name.

    `device` is the expression that replaces a device named in the graph.
    """

    def argument(value: Any) -> str:
        return _argument(value, name_of, device)

    if node.target == "getitem":
        source, index = node.args
        return f"{argument(source)}[{index}]"
    parts = [argument(arg) for arg in node.args]
    parts += [f"{key}={argument(arg)}" for key, arg in node.kwargs.items()]
    return f"torch.ops.{node.target}({', '.join(parts)})"


def _argument(value: Any, name_of: Callable[[str], str], device: str) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_argument(item, name_of, device) for item in value)}]"
    if not isinstance(value, dict):
        return repr(value)
    ((tag, inner),) = value.items()
    match tag:
        case "ref":
            return name_of(inner)
        case "float":
            return f'float("{inner}")'
        case "device":
            return device or f'torch.device("{inner}")'
        case "dtype" | "memory_format":
            return f"torch.{inner}"
        case "layout":
            return f"torch.{inner}"
    raise ValueError(f"an argument tagged {tag!r}")
