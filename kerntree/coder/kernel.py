"""The loop-nest form of one group: what a kernel computes, before a schedule says how.

A kernel runs over one domain of points. Its dimensions are either kept (one result a position) or
reduced. Instructions are in SSA form; each result is a *point* value (differs along reduced
dimensions) or a *row* value (does not). Addresses are affine in the domain's indices.

    softmax over rows of a (4096, 8192) matrix
    dims   i0: 4096 kept, i1: 8192 reduced
    x      = load   x[8192*i0 + i1]
    m      = reduce max x
    e      = exp (x - m)
    s      = reduce sum e
    y      = e / s
             store  y[8192*i0 + i1]
"""

from dataclasses import dataclass
from typing import Literal

ReduceFunction = Literal[
    "sum", "prod", "max", "min", "argmax", "argmin", "any", "all", "online_softmax", "moments"
]

PointFunction = Literal[
    "add", "sub", "mul", "div", "neg", "abs", "sign", "reciprocal", "sqrt", "rsqrt", "square",
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "tanh", "sinh",
    "cosh", "asin", "acos", "atan", "atan2", "erf", "erfc", "pow", "floor", "ceil", "round",
    "trunc", "fmod", "remainder", "floor_div", "trunc_div", "maximum", "minimum", "relu",
    "sigmoid", "isnan", "isinf", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or",
    "logical_not", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not",
    "where", "cast",
]  # fmt: skip


@dataclass(frozen=True)
class Dim:
    """One dimension of the domain, outermost first. Kept dimensions come before reduced ones.

    `at_run_time`: the kernel takes the extent as an argument, and `extent` is one that it may
    have. Only the outermost dimension, kept, may be so: no address depends on its extent.
    """

    extent: int
    reduced: bool
    at_run_time: bool = False


@dataclass(frozen=True)
class Access:
    """Where a domain point lies in a tensor: `offset + sum(stride[d] * index[d])`, in elements.

    `tensor` is a graph value's name. A stride of 0 means that the tensor does not differ along
    that dimension.
    """

    tensor: str
    strides: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True)
class Load:
    """Reads a tensor element; half types are widened to float32 when loaded."""

    result: str
    access: Access
    dtype: str


@dataclass(frozen=True)
class LoadIndexed:
    """Reads `access + stride * index`, where `index` is an integer value (gather, embedding).

    Negative indices count from `extent`; an index outside is the caller's error, as in torch,
    and must not read outside the tensor.
    """

    result: str
    access: Access
    index: str
    stride: int
    extent: int
    dtype: str


@dataclass(frozen=True)
class Constant:
    """A number; `dtype` is the type it is computed in."""

    result: str
    value: float | int | bool
    dtype: str


@dataclass(frozen=True)
class Index:
    """The position along one dimension of the domain, as int64."""

    result: str
    dim: int


@dataclass(frozen=True)
class Point:
    """A pointwise function of earlier values, computed in `dtype` (the operands' common type).

    For comparisons the result is bool; for `where` the first operand is the condition; for `cast`
    the result has `dtype`. Semantics are torch's, NaN and infinities included.
    """

    result: str
    function: PointFunction
    operands: tuple[str, ...]
    dtype: str


@dataclass(frozen=True)
class Reduce:
    """Reduces a point (or row) value over all reduced dimensions; the results are row values.

    `argmax` and `argmin` give the flat position over the reduced dimensions, first of equals, NaN
    winning. `online_softmax` has results (maximum, sum of exp(x - maximum)); `moments` has
    (mean, sum of squared deviations from it). `dtype` is the accumulator's type.
    """

    results: tuple[str, ...]
    function: ReduceFunction
    operand: str
    dtype: str


@dataclass(frozen=True)
class At:
    """A point value taken at one position of the only reduced dimension: a row value (gather).

    The instructions that `operand` depends on are computed again at that position. Negative
    positions count from the end; a position outside must not be read.
    """

    result: str
    operand: str
    position: str
    dtype: str


@dataclass(frozen=True)
class Store:
    """Writes a value to a fresh contiguous tensor; half types are rounded to nearest even."""

    access: Access
    operand: str
    dtype: str


Instruction = Load | LoadIndexed | Constant | Index | Point | Reduce | At | Store


@dataclass(frozen=True)
class Kernel:
    """One launch: `reads` and `writes` name the tensors, in the order of its parameters."""

    name: str
    dims: tuple[Dim, ...]
    body: tuple[Instruction, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]

    @property
    def kept(self) -> tuple[int, ...]:
        """Indices of the kept dimensions."""
        return tuple(d for d, dim in enumerate(self.dims) if not dim.reduced)

    @property
    def reduced(self) -> tuple[int, ...]:
        """Indices of the reduced dimensions."""
        return tuple(d for d, dim in enumerate(self.dims) if dim.reduced)
