"""One operator call as a lowering sees it: its arguments decoded, its operands as values."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kerntree.coder.builder import Builder, InMemory, Register, Value
from kerntree.coder.errors import CannotLowerError
from kerntree.coder.types import Scalar, promoted
from kerntree.plans.graph import Node, OperatorGraph, TensorSpec


@dataclass(frozen=True)
class Call:
    """A node with access to the values of its operands."""

    builder: Builder
    node: Node
    value: Callable[[str], Value]
    graph: OperatorGraph

    @property
    def spec(self) -> TensorSpec:
        """The spec of the first result."""
        return self.node.outputs[0]

    def raw(self, position: int, keyword: str = "", default: Any = None) -> Any:
        """A plain argument by position or keyword, with tagged numbers decoded."""
        if position < len(self.node.args):
            return _decoded(self.node.args[position])
        if keyword and keyword in self.node.kwargs:
            return _decoded(self.node.kwargs[keyword])
        return default

    def operand(self, position: int, keyword: str = "") -> Value | Scalar | None:
        """A tensor operand as a value, a number as itself, None if absent."""
        raw = self.raw(position, keyword)
        if isinstance(raw, dict) and "ref" in raw:
            return self.value(raw["ref"])
        if raw is None or isinstance(raw, bool | int | float):
            return raw
        raise CannotLowerError(f"{self.node.target} with {type(raw).__name__} as an operand")

    def tensor(self, position: int, keyword: str = "") -> Value:
        """An operand that must be a tensor."""
        value = self.operand(position, keyword)
        if isinstance(value, Register | InMemory):
            return value
        raise CannotLowerError(f"{self.node.target} without its tensor operand")

    def number(self, position: int, keyword: str = "", default: float = 0.0) -> Any:
        """An argument that must be a plain number."""
        value = self.operand(position, keyword)
        if value is None:
            return default
        if isinstance(value, bool | int | float):
            return value
        raise CannotLowerError(f"{self.node.target} with a tensor where a number is expected")

    def common(self, *operands: Value | Scalar | None) -> str:
        """The operands' common type by torch's promotion rules."""
        tensors = [o for o in operands if isinstance(o, Register | InMemory)]
        numbers = [o for o in operands if isinstance(o, bool | int | float)]
        specs = [TensorSpec(shape=t.shape, dtype=t.dtype, strides=t.shape) for t in tensors]
        return promoted(specs, numbers)


Lowering = Callable[[Call], Value | tuple[Value | None, ...]]


def _decoded(raw: Any) -> Any:
    if isinstance(raw, dict) and "float" in raw:
        return float(raw["float"])
    if isinstance(raw, list):
        return [_decoded(item) for item in raw]
    return raw
