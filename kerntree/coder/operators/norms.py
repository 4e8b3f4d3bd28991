"""Softmax and the normalizations, as reductions with pointwise work around them."""

from collections.abc import Mapping
from math import prod

from kerntree.coder.builder import Builder, Register, Value
from kerntree.coder.errors import CannotLowerError
from kerntree.coder.operators.call import Call, Lowering


def _softmax(call: Call) -> Value:
    b, dtype = call.builder, call.spec.dtype
    x = b.cast(call.tensor(0), dtype)
    dim = [int(call.number(1))]
    peak = b.reduce("max", x, dim, keepdim=True, dtype=dtype)
    grown = b.point("exp", b.point("sub", x, peak, dtype=dtype), dtype=dtype)
    total = b.reduce("sum", grown, dim, keepdim=True, dtype=dtype)
    return b.point("mul", grown, b.point("reciprocal", total, dtype=dtype), dtype=dtype)


def _log_softmax(call: Call) -> Value:
    b, dtype = call.builder, call.spec.dtype
    x = b.cast(call.tensor(0), dtype)
    dim = [int(call.number(1))]
    peak = b.reduce("max", x, dim, keepdim=True, dtype=dtype)
    shifted = b.point("sub", x, peak, dtype=dtype)
    total = b.reduce("sum", b.point("exp", shifted, dtype=dtype), dim, keepdim=True, dtype=dtype)
    return b.point("sub", shifted, b.point("log", total, dtype=dtype), dtype=dtype)


def _moments(
    b: Builder, x: Register, dims: list[int], eps: float
) -> tuple[Register, Register, Register]:
    """Mean, reciprocal standard deviation and centred values over `dims`."""
    dtype = "float64" if x.dtype == "float64" else "float32"
    n = prod(x.shape[d] for d in dims)
    x = b.cast(x, dtype)
    mean = b.point("div", b.reduce("sum", x, dims, keepdim=True, dtype=dtype), n, dtype=dtype)
    centred = b.point("sub", x, mean, dtype=dtype)
    squares = b.reduce(
        "sum", b.point("square", centred, dtype=dtype), dims, keepdim=True, dtype=dtype
    )
    spread = b.point("add", b.point("div", squares, n, dtype=dtype), eps, dtype=dtype)
    return mean, b.point("rsqrt", spread, dtype=dtype), centred


def _affine(b: Builder, x: Register, weight: Value | None, bias: Value | None) -> Register:
    if weight is not None:
        x = b.point("mul", x, weight, dtype=x.dtype)
    if bias is not None:
        x = b.point("add", x, bias, dtype=x.dtype)
    return x


def _optional(call: Call, position: int) -> Value | None:
    return None if call.operand(position) is None else call.tensor(position)


def _layer_norm(call: Call) -> tuple[Value | None, ...]:
    b = call.builder
    x = b.read(call.tensor(0))
    normalized = call.raw(1)
    dims = list(range(len(x.shape) - len(normalized), len(x.shape)))
    mean, rstd, centred = _moments(b, x, dims, float(call.number(4)))
    y = b.point("mul", centred, rstd, dtype=centred.dtype)
    y = _affine(b, y, _optional(call, 2), _optional(call, 3))
    return b.cast(y, x.dtype), mean, rstd


def _rms_norm(call: Call) -> tuple[Value | None, ...]:
    b = call.builder
    x = b.read(call.tensor(0))
    normalized, eps = call.raw(1), call.raw(3)
    if eps is None:
        raise CannotLowerError("an RMS norm without an explicit epsilon")
    dims = list(range(len(x.shape) - len(normalized), len(x.shape)))
    dtype = "float64" if x.dtype == "float64" else "float32"
    n = prod(normalized)
    wide = b.cast(x, dtype)
    squares = b.reduce("sum", b.point("square", wide, dtype=dtype), dims, keepdim=True, dtype=dtype)
    spread = b.point("add", b.point("div", squares, n, dtype=dtype), float(eps), dtype=dtype)
    rstd = b.point("rsqrt", spread, dtype=dtype)
    y = _affine(b, b.point("mul", wide, rstd, dtype=dtype), _optional(call, 2), None)
    return b.cast(y, x.dtype), rstd


def _group_norm(call: Call) -> tuple[Value | None, ...]:
    b = call.builder
    source = call.tensor(0)
    n, c, hw, groups = (int(call.number(i)) for i in (3, 4, 5, 6))
    shape = (n, groups, c // groups, hw)
    x = b.read(b.viewed(source, shape))
    mean, rstd, centred = _moments(b, x, [2, 3], float(call.number(7)))
    y = b.point("mul", centred, rstd, dtype=centred.dtype)
    by_channel = [_optional(call, 1), _optional(call, 2)]
    viewed = [
        None if entry is None else b.viewed(entry, (1, groups, c // groups, 1))
        for entry in by_channel
    ]
    y = _affine(b, y, *viewed)
    return (
        b.viewed(b.cast(y, source.dtype), source.shape),
        b.viewed(mean, (n, groups)),
        b.viewed(rstd, (n, groups)),
    )


def _channels(b: Builder, value: Value, rank: int) -> Value:
    return b.viewed(value, (1, value.shape[0], *(1,) * (rank - 2)))


def _batch_norm_inference(call: Call) -> tuple[Value | None, ...]:
    b, x = call.builder, call.tensor(0)
    rank = len(x.shape)
    mean, variance = (_channels(b, call.tensor(i), rank) for i in (3, 4))
    dtype = "float64" if x.dtype == "float64" else "float32"
    eps = float(call.number(len(call.node.args) - 1))
    rstd = b.point("rsqrt", b.point("add", variance, eps, dtype=dtype), dtype=dtype)
    y = b.point("mul", b.point("sub", x, mean, dtype=dtype), rstd, dtype=dtype)
    weight, bias = (_optional(call, i) for i in (1, 2))
    y = _affine(
        b,
        y,
        None if weight is None else _channels(b, weight, rank),
        None if bias is None else _channels(b, bias, rank),
    )
    return b.cast(y, x.dtype), None, None


def _batch_norm_training(
    call: Call, *, momentum: float, eps: float, statistics: bool
) -> tuple[Value | None, ...]:
    b, source = call.builder, call.tensor(0)
    rank = len(source.shape)
    dims = [d for d in range(rank) if d != 1]
    x = b.read(source)
    mean, rstd, centred = _moments(b, x, dims, eps)
    y = b.point("mul", centred, rstd, dtype=centred.dtype)
    weight, bias = (_optional(call, i) for i in (1, 2))
    y = _affine(
        b,
        y,
        None if weight is None else _channels(b, weight, rank),
        None if bias is None else _channels(b, bias, rank),
    )
    channels = (source.shape[1],)
    results: list[Value | None] = [
        b.cast(y, source.dtype), b.viewed(mean, channels), b.viewed(rstd, channels)
    ]  # fmt: skip
    if statistics:
        n = prod(source.shape) // source.shape[1]
        dtype = mean.dtype
        spread = b.point("sub", b.point("reciprocal", b.point("square", rstd, dtype=dtype),
                                        dtype=dtype), eps, dtype=dtype)  # fmt: skip
        unbiased = b.point("mul", spread, n / max(n - 1, 1), dtype=dtype)
        for old, new in ((call.tensor(3), mean), (call.tensor(4), unbiased)):
            kept = b.point("mul", old, 1 - momentum, dtype=dtype)
            added = b.point("mul", b.viewed(new, channels), momentum, dtype=dtype)
            results.append(b.point("add", kept, added, dtype=dtype))
    return tuple(results)


def _batch_norm_no_stats(call: Call) -> tuple[Value | None, ...]:
    if not call.raw(3):
        raise CannotLowerError("batch norm without statistics in evaluation mode")
    return _batch_norm_training(call, momentum=0.0, eps=float(call.number(5)), statistics=False)


def _batch_norm_functional(call: Call) -> tuple[Value | None, ...]:
    if not call.raw(5):
        raise CannotLowerError("functional batch norm in evaluation mode")
    return _batch_norm_training(
        call, momentum=float(call.number(6)), eps=float(call.number(7)), statistics=True
    )


NORMS: Mapping[str, Lowering] = {
    "aten._softmax.default": _softmax,
    "aten._log_softmax.default": _log_softmax,
    "aten.native_layer_norm.default": _layer_norm,
    "aten._fused_rms_norm.default": _rms_norm,
    "aten.native_group_norm.default": _group_norm,
    "aten._native_batch_norm_legit_no_training.default": _batch_norm_inference,
    "aten._native_batch_norm_legit.no_stats": _batch_norm_no_stats,
    "aten._native_batch_norm_legit_functional.default": _batch_norm_functional,
}
