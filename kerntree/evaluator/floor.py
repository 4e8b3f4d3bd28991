"""The impossible-time floor: what the bytes and operations of a case take on any program.

It must never refuse an honest kernel, so it errs low: upper bounds of the device, bytes that
caches may hold, and nothing for what a clever program could leave out.
"""

from kerntree.evaluator.device import Limits
from kerntree.plans.graph import FLOAT_TYPES, Node, OperatorGraph, references
from kerntree.plans.problem import Case

_POINTWISE = frozenset({
    "abs", "add", "addcdiv", "addcmul", "ceil", "clamp", "clamp_max", "clamp_min", "cos", "div",
    "elu", "eq", "erf", "exp", "expm1", "floor", "ge", "gelu", "gt", "hardsigmoid", "hardswish",
    "hardtanh", "le", "leaky_relu", "log", "log10", "log1p", "log2", "logical_not", "lt",
    "maximum", "minimum", "mish", "mul", "ne", "neg", "pow", "reciprocal", "relu", "remainder",
    "round", "rsqrt", "sigmoid", "sign", "silu", "sin", "sinh", "softplus", "sqrt", "square",
    "sub", "tan", "tanh", "trunc", "_to_copy", "clone",
})  # fmt: skip
_REDUCING = frozenset({
    "_softmax", "_log_softmax", "amax", "amin", "argmax", "argmin", "cumsum", "logsumexp",
    "max", "mean", "min", "native_group_norm", "native_layer_norm", "norm", "prod", "sum",
    "var", "var_mean",
})  # fmt: skip
_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})
_RESHAPING = frozenset({
    "view", "reshape", "permute", "transpose", "t", "unsqueeze", "squeeze", "expand", "alias",
    "getitem", "full", "empty", "scalar_tensor", "arange",
})  # fmt: skip
_VIEWING = _RESHAPING | {"slice", "select", "narrow", "as_strided", "diagonal", "unfold", "split"}
_KNOWN = _POINTWISE | _REDUCING | _PRODUCTS | _RESHAPING


def floor_ns(case: Case, limits: Limits) -> float | None:
    """The least nanoseconds that one call of a case can take, or None where nothing is sure.

    Every output must be written, wherever the reference does not return a view; inputs count
    only if each operator between them and the outputs needs all it is given, so that a slice or
    a lookup claims nothing.
    """
    graph = case.graph
    if graph is None:
        return None
    whole = all(_needs_all(node) for node in graph.nodes)
    moved = _written_bytes(graph)
    operations = 0.0
    if whole:
        read = {name for node in graph.nodes for arg in node.args for name in references(arg)}
        moved += sum(
            _distinct_bytes(entry.spec.shape, entry.spec.strides, entry.spec.bytes)
            for entry in graph.inputs
            if entry.kind == "user" and entry.name in read
        )
        operations = sum(_product_operations(graph, node) for node in graph.nodes)
    cached = min(moved, limits.resident)
    seconds = max(
        cached / limits.cache_bandwidth + (moved - cached) / limits.bandwidth,
        operations / limits.operations,
    )
    return seconds * 1e9


def _operator(node: Node) -> str:
    parts = node.target.split(".")
    return parts[1] if parts[0] == "aten" and len(parts) > 1 else parts[0]


def _needs_all(node: Node) -> bool:
    if _operator(node) not in _KNOWN:
        return False
    # a multiplication by zero, or a power of zero, makes its operand needless
    constants = [value for value in node.args if isinstance(value, int | float)]
    return not (_operator(node) in {"mul", "pow"} and 0 in constants)


def may_alias(case: Case) -> bool:
    """Whether an output of the reference may share its memory with an input.

    True where the graph is unknown, an output is an input or a view of one, or what is returned
    is also written back.
    """
    graph = case.graph
    if graph is None:
        return True
    views = _views(graph)
    returned = {output.value for output in graph.outputs if output.kind == "output"}
    changed = {output.value for output in graph.outputs if output.kind != "output"}
    return bool(returned & (views | _views_of(graph, changed) | changed))


def _views(graph: OperatorGraph) -> set[str]:
    """Inputs, their views, and constants: values that no kernel need write."""
    return _views_of(graph, {entry.name for entry in graph.inputs})


def _views_of(graph: OperatorGraph, roots: set[str]) -> set[str]:
    views = set(roots)
    for node in graph.nodes:
        first = next(iter(references(node.args[0])), None) if node.args else None
        if _operator(node) in _VIEWING and (first is None or first in views):
            views.add(node.name)
    return views


def _written_bytes(graph: OperatorGraph) -> int:
    views = _views(graph)
    written = 0
    for value in dict.fromkeys(output.value for output in graph.outputs):
        if value in views:
            continue
        spec = graph.spec(value)
        written += _distinct_bytes(spec.shape, spec.strides, spec.bytes)
    return written


def _distinct_bytes(shape: tuple[int, ...], strides: tuple[int, ...], whole: int) -> int:
    """Bytes behind a tensor: what is expanded counts once."""
    repeated = 1
    for extent, stride in zip(shape, strides, strict=True):
        if stride == 0 and extent > 1:
            repeated *= extent
    return whole // repeated


def _product_operations(graph: OperatorGraph, node: Node) -> float:
    """Multiply-adds of a matrix product, as operations; half of them, for Strassen's sake."""
    if _operator(node) not in _PRODUCTS or len(node.outputs) != 1:
        return 0.0
    left = node.args[1] if _operator(node) in {"addmm", "baddbmm"} else node.args[0]
    inner = graph.spec(references(left)[0]).shape[-1]
    spec = node.outputs[0]
    return float(spec.elements * inner) if spec.dtype in FLOAT_TYPES else 0.0
