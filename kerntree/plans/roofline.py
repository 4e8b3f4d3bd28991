"""Bytes and operations that an operator needs at least, and the time a device needs for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from kerntree.plans.graph import ITEM_BYTES, Node, OperatorGraph, TensorSpec, operands
from kerntree.plans.problem import Case


@dataclass(frozen=True, kw_only=True)
class DeviceLimits:
    """What a device cannot exceed: bytes to and from memory, and elementary operations."""

    bandwidth_bytes_per_second: float
    operations_per_second: float


TYPICAL_CPU = DeviceLimits(bandwidth_bytes_per_second=2.0e10, operations_per_second=8.0e10)
TYPICAL_GPU = DeviceLimits(bandwidth_bytes_per_second=4.0e12, operations_per_second=3.0e13)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Bytes moved, and elementary operations.

    `operations` is the least (one an element, two a multiply-add); `work` weighs functions by what
    they usually take, and is an estimate.
    """

    bytes: int = 0
    operations: float = 0.0
    work: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            bytes=self.bytes + other.bytes,
            operations=self.operations + other.operations,
            work=self.work + other.work,
        )


FREE = frozenset(
    f"aten.{name}"
    for name in (
        "view.default", "_unsafe_view.default", "reshape.default", "unsqueeze.default",
        "squeeze.default", "squeeze.dim", "squeeze.dims", "permute.default", "transpose.int",
        "t.default", "expand.default", "slice.Tensor", "select.int", "alias.default",
        "detach.default", "flatten.default", "split_with_sizes.default", "split.Tensor",
        "unbind.int",
    )
) | {"getitem"}  # fmt: skip

# Operators that need not read all of their first operand.
_PARTIAL = frozenset(
    f"aten.{name}"
    for name in (
        "slice.Tensor", "select.int", "embedding.default", "gather.default",
        "index_select.default", "index.Tensor",
    )
)  # fmt: skip

# What a function takes in elementary operations where it is computed by vector code.
FUNCTION_WORK = {
    **dict.fromkeys(("div", "sqrt", "reciprocal", "remainder", "fmod", "floor_div"), 4.0),
    **dict.fromkeys(("rsqrt", "argmax", "argmin"), 6.0),
    **dict.fromkeys(("exp", "exp2", "log", "log2", "log10", "sigmoid", "sin", "cos"), 10.0),
    **dict.fromkeys(("expm1", "log1p", "tanh", "erf", "gelu", "silu", "pow"), 15.0),
    **dict.fromkeys(("_softmax", "_log_softmax", "erfc", "tan", "mish"), 20.0),
    "online_softmax": 14.0, "moments": 6.0, "square": 1.0,
    "native_layer_norm": 8.0, "native_group_norm": 8.0, "_fused_rms_norm": 6.0,
}  # fmt: skip

# Fast algorithms need fewer multiplications than the definition: Winograd's F(4x4, 3x3) a quarter.
_FEWEST_CONVOLUTION = 0.2


def floor_seconds(cost: Cost, limits: DeviceLimits) -> float:
    """The least time for that cost, in seconds: memory and arithmetic overlap perfectly."""
    return max(
        cost.bytes / limits.bandwidth_bytes_per_second,
        cost.operations / limits.operations_per_second,
    )


def graph_cost(graph: OperatorGraph) -> Cost:
    """The least that the whole graph takes: what it reads, once, and what it returns, once."""
    live = _live(graph)
    readers: dict[str, list[Node]] = {}
    for node in live:
        for name in set(operands(node)):
            readers.setdefault(name, []).append(node)
    total = Cost()
    for entry in graph.inputs:
        if entry.name in readers:
            total += Cost(bytes=_read_bytes(entry.name, entry.spec, readers[entry.name]))
    made = {node.name: node for node in live}
    for value in {output.value for output in graph.outputs}:
        if value in made:
            total += Cost(bytes=_stored_bytes(made[value].outputs[0]))
    for node in live:
        least = _node_operations(graph, node)
        total += Cost(operations=least, work=least * _work_of(node))
    return total


def case_cost(case: Case) -> Cost:
    """The least for one case; from the outputs and tensor inputs alone where there is no graph.

    Without a graph it is not known what the reference reads of its inputs: only outputs count.
    """
    if case.graph is not None:
        return graph_cost(case.graph)
    return Cost(bytes=sum(_stored_bytes(output.tensor) for output in case.outputs))


def group_cost(graph: OperatorGraph, nodes: Sequence[str]) -> Cost:
    """What operators take when torch runs them one by one, each from memory to memory."""
    total = Cost()
    for name in nodes:
        node = graph.node(name)
        if node.target in FREE:
            continue
        read = sum(graph.spec(ref).bytes for ref in set(operands(node)) if _is_plain(graph, ref))
        if node.target in _PARTIAL:
            read = min(read, node.outputs[0].bytes)
        least = _node_operations(graph, node)
        total += Cost(
            bytes=read + sum(spec.bytes for spec in node.outputs),
            operations=least,
            work=least * _work_of(node),
        )
    return total


def _live(graph: OperatorGraph) -> list[Node]:
    needed = {output.value for output in graph.outputs}
    live: list[Node] = []
    for node in reversed(graph.nodes):
        if node.name in needed:
            needed.update(operands(node))
            live.append(node)
    return live[::-1]


def _read_bytes(name: str, spec: TensorSpec, readers: Sequence[Node]) -> int:
    touched = 0
    for node in readers:
        first = operands(node)[0]
        partial = node.target in _PARTIAL and first == name and operands(node).count(name) == 1
        touched += (
            node.outputs[0].elements * ITEM_BYTES.get(spec.dtype, 8) if partial else (spec.bytes)
        )
    return min(_stored_bytes(spec), touched)


def _stored_bytes(spec: TensorSpec) -> int:
    """Bytes of the distinct elements: a stride of 0 repeats one."""
    distinct = prod(
        1 if stride == 0 else extent
        for extent, stride in zip(spec.shape, spec.strides, strict=True)
    )
    return distinct * ITEM_BYTES.get(spec.dtype, 8) if spec.elements else 0


def _is_plain(graph: OperatorGraph, name: str) -> bool:
    """Whether the name has one spec (a tuple of results is read through getitem only)."""
    try:
        graph.spec(name)
    except (KeyError, IndexError):
        return False
    return True


def _node_operations(graph: OperatorGraph, node: Node) -> float:
    if node.target in FREE or not node.outputs:
        return 0.0
    kind = _function(node)
    out = node.outputs[0]
    refs = operands(node)
    if kind in ("mm", "bmm", "addmm", "baddbmm"):
        first = refs[1] if kind in ("addmm", "baddbmm") else refs[0]
        return 2.0 * out.elements * graph.spec(first).shape[-1]
    if kind == "convolution":
        weight = graph.spec(refs[1])
        channels = max(out.shape[1], 1) if len(out.shape) > 1 else 1
        return _FEWEST_CONVOLUTION * 2.0 * out.elements * weight.elements / channels
    if node.target in _PARTIAL:
        return 0.0
    read = max((graph.spec(ref).elements for ref in refs if _is_plain(graph, ref)), default=0)
    reduces = out.elements < read
    return float(read if reduces else out.elements)


def _function(node: Node) -> str:
    return node.target.removeprefix("aten.").split(".")[0]


def _work_of(node: Node) -> float:
    return FUNCTION_WORK.get(_function(node), 1.0)
