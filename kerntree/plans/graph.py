"""The operator graph: what the reference computes, as plain data.

A child of the evaluator takes it from `torch.export` with core ATen decompositions; nothing here
imports torch.
"""

from typing import Literal

from pydantic import JsonValue

from kerntree.plans.frozen import Frozen

ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
    "complex64": 8, "complex128": 16,
}  # fmt: skip
FLOAT_TYPES = frozenset({"float64", "float32", "float16", "bfloat16"})


class TensorSpec(Frozen):
    """Shape (elements), dtype (torch's name without the prefix) and strides (elements)."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]

    @property
    def elements(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def bytes(self) -> int:
        """Bytes that the elements take when stored contiguously."""
        return self.elements * ITEM_BYTES.get(self.dtype, 8)


def contiguous(shape: tuple[int, ...], dtype: str) -> TensorSpec:
    """The spec of a contiguous tensor."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return TensorSpec(shape=shape, dtype=dtype, strides=tuple(reversed(strides)))


class GraphInput(Frozen):
    """A value that enters the graph.

    `target` is the path of a user input (`"0"`, `"1.mask"`: see `InputSpec.path`), the qualified
    name of a parameter or buffer (`"norm.weight"`), or the name of a constant. A constant of few
    elements carries its `values`, flattened; a larger one has none and is not lowerable.
    """

    name: str
    kind: Literal["user", "parameter", "buffer", "constant"]
    target: str
    spec: TensorSpec
    values: tuple[float | int | bool, ...] | None = None


class Node(Frozen):
    """One operator call.

    `target` is torch's name (`"aten.add.Tensor"`, or `"getitem"` for one result of several).
    In `args` and `kwargs` a JSON value stands for itself, except the tagged objects
    `{"ref": name}` (a graph input or an earlier node), `{"float": "inf" | "-inf" | "nan"}`,
    `{"dtype": "float32"}`, `{"device": "cpu"}`, `{"layout": "strided"}` and
    `{"memory_format": "contiguous_format"}`. `outputs` has one spec for each tensor returned;
    an operator that returns several is read only through `getitem` nodes.
    """

    name: str
    target: str
    args: tuple[JsonValue, ...] = ()
    kwargs: dict[str, JsonValue] = {}
    outputs: tuple[TensorSpec, ...]


class GraphOutput(Frozen):
    """A value that leaves the graph: returned, or written back to an input or buffer.

    `value` names a node or graph input. `target` is the index of the output leaf (`"0"`), the
    path of the mutated user input, or the qualified name of the mutated buffer.
    """

    kind: Literal["output", "input_mutation", "buffer_mutation"]
    value: str
    target: str


class OperatorGraph(Frozen):
    """Operators in execution order, with everything that enters and leaves."""

    inputs: tuple[GraphInput, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[GraphOutput, ...]

    def spec(self, name: str) -> TensorSpec:
        """The spec of a graph input or of a node's only output; raises `KeyError`."""
        for entry in self.inputs:
            if entry.name == name:
                return entry.spec
        return self.node(name).outputs[0]

    def node(self, name: str) -> Node:
        """The node of that name; raises `KeyError`."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)


def references(value: JsonValue) -> list[str]:
    """The names that an argument refers to, in order, with repetitions."""
    if isinstance(value, dict):
        ref = value.get("ref")
        return [ref] if isinstance(ref, str) else []
    if isinstance(value, list):
        return [name for item in value for name in references(item)]
    return []


def operands(node: Node) -> list[str]:
    """The names of the values that a node reads, in order, with repetitions."""
    names = [name for value in node.args for name in references(value)]
    return names + [name for value in node.kwargs.values() for name in references(value)]
