"""View operators: they move no data, they rename a value's dimensions."""

from collections.abc import Mapping

from kerntree.coder.builder import InMemory, Value
from kerntree.coder.errors import CannotLowerError
from kerntree.coder.operators.call import Call, Lowering


def _same(call: Call) -> Value:
    return call.tensor(0)


def _view(call: Call) -> Value:
    return call.builder.viewed(call.tensor(0), call.spec.shape)


def _permute(call: Call) -> Value:
    x = call.tensor(0)
    order = [d % len(x.shape) for d in call.raw(1)]
    return call.builder.permuted(x, order)


def _transpose(call: Call) -> Value:
    x = call.tensor(0)
    rank = len(x.shape)
    order = list(range(rank))
    if call.node.target == "aten.t.default":
        order.reverse()
    else:
        i, j = int(call.number(1)) % rank, int(call.number(2)) % rank
        order[i], order[j] = order[j], order[i]
    return call.builder.permuted(x, order)


def _expand(call: Call) -> Value:
    return call.builder.expanded(call.tensor(0), call.spec.shape)


def _slice(call: Call) -> Value:
    x = call.tensor(0)
    dim = int(call.number(1, "dim", 0)) % len(x.shape)
    extent = x.shape[dim]
    start, step = call.raw(2, "start"), int(call.number(4, "step", 1))
    start = 0 if start is None else start
    start = min(max(start + extent if start < 0 else start, 0), extent)
    if start == 0 and step == 1 and call.spec.shape[dim] == extent:
        return x
    return _in_memory(call, x, dim, start, step, call.spec.shape[dim])


def _select(call: Call) -> Value:
    x = call.tensor(0)
    dim, index = int(call.number(1)) % len(x.shape), int(call.number(2))
    index += x.shape[dim] if index < 0 else 0
    part = _in_memory(call, x, dim, index, 1, 1)
    return call.builder.viewed(part, call.spec.shape)


def _in_memory(call: Call, x: Value, dim: int, start: int, step: int, count: int) -> Value:
    if not isinstance(x, InMemory):
        raise CannotLowerError("a slice of a value that is not in memory")
    return call.builder.sliced(x, dim, start, step, count)


VIEWS: Mapping[str, Lowering] = {
    **{
        f"aten.{name}.default": _view
        for name in ("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "flatten")
    },
    "aten.squeeze.dim": _view,
    "aten.squeeze.dims": _view,
    "aten.permute.default": _permute,
    "aten.transpose.int": _transpose,
    "aten.t.default": _transpose,
    "aten.expand.default": _expand,
    "aten.slice.Tensor": _slice,
    "aten.select.int": _select,
    **{f"aten.{name}.default": _same for name in ("clone", "alias", "detach", "lift_fresh_copy")},
}
VIEW_TARGETS = frozenset(VIEWS) - {"aten.clone.default", "aten.lift_fresh_copy.default"}
