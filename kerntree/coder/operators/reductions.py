"""Reductions and gathers."""

from collections.abc import Mapping
from math import inf, prod

from kerntree.coder.builder import InMemory, Register, Value
from kerntree.coder.errors import CannotLowerError
from kerntree.coder.kernel import ReduceFunction
from kerntree.coder.operators.call import Call, Lowering
from kerntree.coder.types import is_float


def _dims(call: Call, position: int = 1, keyword: str = "dim") -> list[int]:
    raw = call.raw(position, keyword)
    rank = len(call.tensor(0).shape)
    dims = [raw] if isinstance(raw, int) else list(raw or range(rank))
    return [d % rank for d in dims] if rank else []


def _count(call: Call, dims: list[int]) -> int:
    return prod(call.tensor(0).shape[d] for d in dims)


_OF_BOOL: dict[ReduceFunction, ReduceFunction] = {"max": "any", "min": "all"}


def _plain(function: ReduceFunction, *, keep_position: int = 2) -> Lowering:
    def lower(call: Call) -> Value:
        keepdim = bool(call.raw(keep_position, "keepdim", False))
        x: Value = call.tensor(0)
        if function in ("sum", "prod"):
            x = call.builder.cast(x, call.spec.dtype)
        if function in ("any", "all") and x.dtype != "bool":
            x = call.builder.point("ne", x, 0, dtype=x.dtype, result="bool")
        kind = _OF_BOOL.get(function, function) if x.dtype == "bool" else function
        return call.builder.reduce(kind, x, _dims(call), keepdim=keepdim, dtype=call.spec.dtype)

    return lower


def _mean(call: Call) -> Value:
    dims = _dims(call)
    keepdim = bool(call.raw(2, "keepdim", False))
    dtype = call.spec.dtype
    x = call.builder.cast(call.tensor(0), dtype)
    total = call.builder.reduce("sum", x, dims, keepdim=keepdim, dtype=dtype)
    return call.builder.point("div", total, _count(call, dims), dtype=dtype)


def _var(call: Call) -> Value:
    return variance(call)[0]


def _var_mean(call: Call) -> tuple[Value | None, ...]:
    return variance(call)


def variance(call: Call) -> tuple[Value, Value]:
    """Variance with torch's correction, and the mean."""
    dims, dtype, b = _dims(call), call.spec.dtype, call.builder
    keepdim = bool(call.raw(99, "keepdim", False))
    correction = call.raw(99, "correction")
    n = _count(call, dims)
    degrees = max(n - (1 if correction is None else correction), 0)
    x = b.read(call.tensor(0))
    total = b.reduce("sum", x, dims, keepdim=True, dtype=dtype)
    mean = b.point("div", total, n, dtype=dtype)
    squares = b.point("square", b.point("sub", x, mean, dtype=dtype), dtype=dtype)
    spread = b.reduce("sum", squares, dims, keepdim=keepdim, dtype=dtype)
    shape = spread.shape
    shown = Register(mean.name, spread.dims, shape, dtype)
    return b.point("div", spread, float(degrees), dtype=dtype), shown


def _arg(function: ReduceFunction) -> Lowering:
    def lower(call: Call) -> Value:
        keepdim = bool(call.raw(2, "keepdim", False))
        x = call.tensor(0)
        if not is_float(x.dtype) and x.dtype != "int64":
            x = call.builder.cast(x, "int64")
        return call.builder.reduce(function, x, _dims(call), keepdim=keepdim, dtype=x.dtype)

    return lower


def _extreme_with_index(function: ReduceFunction, where: ReduceFunction) -> Lowering:
    def lower(call: Call) -> tuple[Value | None, ...]:
        keepdim = bool(call.raw(2, "keepdim", False))
        x, dims, dtype = call.builder.read(call.tensor(0)), _dims(call), call.spec.dtype
        if x.dtype == "bool":
            raise CannotLowerError("the place of a bool's extreme")
        value = call.builder.reduce(function, x, dims, keepdim=keepdim, dtype=dtype)
        index = call.builder.reduce(where, x, dims, keepdim=keepdim, dtype=dtype)
        return value, index

    return lower


def _vector_norm(call: Call) -> Value:
    order = float(call.number(1, "ord", 2))
    dims = _dims(call, 2)
    keepdim = bool(call.raw(3, "keepdim", False))
    b, dtype = call.builder, call.spec.dtype
    x = b.cast(call.tensor(0), dtype)
    if order == 0:
        nonzero = b.cast(b.point("ne", x, 0, dtype=dtype, result="bool"), dtype)
        return b.reduce("sum", nonzero, dims, keepdim=keepdim, dtype=dtype)
    if order == 2:
        squares = b.point("square", x, dtype=dtype)
        total = b.reduce("sum", squares, dims, keepdim=keepdim, dtype=dtype)
        return b.point("sqrt", total, dtype=dtype)
    size = b.point("abs", x, dtype=dtype)
    if order in (inf, -inf):
        return b.reduce("max" if order > 0 else "min", size, dims, keepdim=keepdim, dtype=dtype)
    if order == 1:
        return b.reduce("sum", size, dims, keepdim=keepdim, dtype=dtype)
    powers = b.point("pow", size, order, dtype=dtype)
    total = b.reduce("sum", powers, dims, keepdim=keepdim, dtype=dtype)
    return b.point("pow", total, 1.0 / order, dtype=dtype)


def _gather(call: Call) -> Value:
    source, index = call.tensor(0), call.tensor(2)
    dim = int(call.number(1)) % max(len(source.shape), 1)
    if len(index.shape) != len(source.shape) or index.shape[dim] != 1:
        raise CannotLowerError("a gather of several elements along a dimension")
    if any(index.shape[d] != source.shape[d] for d in range(len(source.shape)) if d != dim):
        raise CannotLowerError("a gather from part of a tensor")
    if isinstance(source, Register):
        return call.builder.at(source, dim, index)
    return _indexed(call, source, dim, call.builder.read(index), aligned=True)


def _embedding(call: Call) -> Value:
    return _table(call, call.tensor(0), 0, call.tensor(1))


def _index_select(call: Call) -> Value:
    table = call.tensor(0)
    return _table(call, table, int(call.number(1)) % len(table.shape), call.tensor(2))


def _table(call: Call, table: Value, dim: int, index: Value) -> Value:
    if not isinstance(table, InMemory):
        raise CannotLowerError("a look-up in a value that is not in memory")
    return _indexed(call, table, dim, call.builder.read(index), aligned=False)


def _indexed(call: Call, table: InMemory, dim: int, index: Register, *, aligned: bool) -> Register:
    b, shape = call.builder, call.spec.shape
    position = b.cast(index, "int64")
    if aligned:
        others = tuple(position.dims[d] for d in range(len(table.dims)) if d != dim)
        dims = position.dims
    else:
        before = tuple(b.axes.fresh(extent) for extent in table.shape[:dim])
        after = tuple(b.axes.fresh(extent) for extent in table.shape[dim + 1 :])
        others, dims = (*before, *after), (*before, *position.dims, *after)
    name = b.load_indexed(table, dim, position, others)
    return Register(name, dims, shape, table.dtype)


REDUCTIONS: Mapping[str, Lowering] = {
    "aten.sum.dim_IntList": _plain("sum"),
    "aten.sum.default": _plain("sum"),
    "aten.prod.default": _plain("prod"),
    "aten.prod.dim_int": _plain("prod"),
    "aten.amax.default": _plain("max"),
    "aten.amin.default": _plain("min"),
    "aten.max.default": _plain("max"),
    "aten.min.default": _plain("min"),
    "aten.any.default": _plain("any"),
    "aten.any.dim": _plain("any"),
    "aten.any.dims": _plain("any"),
    "aten.all.default": _plain("all"),
    "aten.all.dim": _plain("all"),
    "aten.mean.dim": _mean,
    "aten.mean.default": _mean,
    "aten.var.correction": _var,
    "aten.var_mean.correction": _var_mean,
    "aten.argmax.default": _arg("argmax"),
    "aten.argmin.default": _arg("argmin"),
    "aten.max.dim": _extreme_with_index("max", "argmax"),
    "aten.min.dim": _extreme_with_index("min", "argmin"),
    "aten.linalg_vector_norm.default": _vector_norm,
    "aten.gather.default": _gather,
    "aten.embedding.default": _embedding,
    "aten.index_select.default": _index_select,
}
