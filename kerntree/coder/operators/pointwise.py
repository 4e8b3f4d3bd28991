"""Pointwise operators: arithmetic, comparisons, activations, casts and constants."""

from collections.abc import Mapping
from math import sqrt

from kerntree.coder.builder import InMemory, Register, Value
from kerntree.coder.errors import CannotLowerError
from kerntree.coder.kernel import PointFunction
from kerntree.coder.operators.call import Call, Lowering
from kerntree.coder.types import Scalar, is_float

Operand = Value | Scalar


def _unary(function: PointFunction) -> Lowering:
    def lower(call: Call) -> Value:
        x = call.tensor(0)
        return call.builder.point(function, x, dtype=call.spec.dtype)

    return lower


def _kept_type(function: PointFunction) -> Lowering:
    """Unary functions that leave integers alone."""

    def lower(call: Call) -> Value:
        x = call.tensor(0)
        if not is_float(x.dtype):
            return x
        return call.builder.point(function, x, dtype=x.dtype)

    return lower


def _test(function: PointFunction) -> Lowering:
    def lower(call: Call) -> Value:
        x = call.tensor(0)
        if not is_float(x.dtype):
            return call.builder.point("ne", x, x, dtype=x.dtype, result="bool")
        return call.builder.point(function, x, dtype=x.dtype, result="bool")

    return lower


def _binary(function: PointFunction) -> Lowering:
    def lower(call: Call) -> Value:
        return call.builder.point(function, *_two(call), dtype=call.spec.dtype)

    return lower


def _compare(function: PointFunction) -> Lowering:
    def lower(call: Call) -> Value:
        x, y = _two(call)
        return call.builder.point(function, x, y, dtype=call.common(x, y), result="bool")

    return lower


def _logical(function: PointFunction) -> Lowering:
    def lower(call: Call) -> Value:
        x = _truth(call, call.tensor(0))
        others = [_truth(call, call.tensor(1))] if function != "logical_not" else []
        return call.builder.point(function, x, *others, dtype="bool")

    return lower


def _truth(call: Call, x: Value) -> Value:
    if x.dtype == "bool":
        return x
    return call.builder.point("ne", x, 0, dtype=x.dtype, result="bool")


def _two(call: Call) -> tuple[Operand, Operand]:
    x, y = call.operand(0), call.operand(1)
    if x is None or y is None:
        raise CannotLowerError(f"{call.node.target} without two operands")
    return x, y


def _sum(sign: PointFunction, *, swapped: bool = False) -> Lowering:
    """add and sub with their factor `alpha`; rsub swaps the operands."""

    def lower(call: Call) -> Value:
        x, y = _two(call)
        alpha = call.number(2, "alpha", 1)
        if swapped:
            x, y = y, x
            if alpha != 1:
                y = call.builder.point("mul", y, alpha, dtype=call.spec.dtype)
        elif alpha != 1:
            y = call.builder.point("mul", y, alpha, dtype=call.spec.dtype)
        if call.spec.dtype == "bool":
            return call.builder.point("logical_or", x, y, dtype="bool")
        return call.builder.point(sign, x, y, dtype=call.spec.dtype)

    return lower


def _mul(call: Call) -> Value:
    x, y = _two(call)
    function: PointFunction = "logical_and" if call.spec.dtype == "bool" else "mul"
    return call.builder.point(function, x, y, dtype=call.spec.dtype)


def _div(call: Call) -> Value:
    x, y = _two(call)
    mode = call.raw(99, "rounding_mode")
    dtype = call.spec.dtype
    if mode is None:
        return call.builder.point("div", x, y, dtype=dtype)
    function: PointFunction = "floor_div" if mode == "floor" else "trunc_div"
    return call.builder.point(function, x, y, dtype=dtype)


def _pow(call: Call) -> Value:
    x, y = _two(call)
    b, dtype = call.builder, call.spec.dtype
    if isinstance(x, Register | InMemory) and isinstance(y, int | float) and is_float(dtype):
        match float(y):
            case 0.0:
                return b.reshaped_constant(b.constant(1, dtype), call.spec.shape)
            case 1.0:
                return b.cast(x, dtype)
            case 2.0:
                return b.point("square", x, dtype=dtype)
            case 3.0:
                return b.point("mul", b.point("square", x, dtype=dtype), x, dtype=dtype)
            case 0.5:
                return b.point("sqrt", x, dtype=dtype)
            case -0.5:
                return b.point("rsqrt", x, dtype=dtype)
            case -1.0:
                return b.point("reciprocal", x, dtype=dtype)
    if not is_float(dtype):
        if y == 2 and isinstance(x, Register | InMemory):
            return b.point("mul", x, x, dtype=dtype)
        raise CannotLowerError("an integer power")
    return b.point("pow", x, y, dtype=dtype)


def _where(call: Call) -> Value:
    condition = _truth(call, call.tensor(0))
    x, y = call.operand(1), call.operand(2)
    if x is None or y is None:
        raise CannotLowerError("where without values")
    return call.builder.point("where", condition, x, y, dtype=call.spec.dtype)


def _masked_fill(call: Call) -> Value:
    fill = call.operand(2)
    if fill is None:
        raise CannotLowerError("masked_fill without a value")
    return call.builder.point("where", call.tensor(1), fill, call.tensor(0), dtype=call.spec.dtype)


def _clamp(call: Call) -> Value:
    low, high = call.operand(1, "min"), call.operand(2, "max")
    x: Value = call.tensor(0)
    if low is not None:
        x = call.builder.point("maximum", x, low, dtype=call.spec.dtype)
    if high is not None:
        x = call.builder.point("minimum", x, high, dtype=call.spec.dtype)
    return x


def _hardtanh(call: Call) -> Value:
    b, dtype = call.builder, call.spec.dtype
    raised = b.point("maximum", call.tensor(0), call.number(1, "min_val", -1.0), dtype=dtype)
    return b.point("minimum", raised, call.number(2, "max_val", 1.0), dtype=dtype)


def _gelu(call: Call) -> Value:
    b, dtype, x = call.builder, call.spec.dtype, call.builder.read(call.tensor(0))
    half = b.point("mul", x, 0.5, dtype=dtype)
    if call.raw(1, "approximate", "none") == "tanh":
        cube = b.point("mul", b.point("square", x, dtype=dtype), x, dtype=dtype)
        inner = b.point("add", x, b.point("mul", cube, 0.044715, dtype=dtype), dtype=dtype)
        scaled = b.point("mul", inner, sqrt(2 / 3.141592653589793), dtype=dtype)
        bent = b.point("tanh", scaled, dtype=dtype)
    else:
        bent = b.point("erf", b.point("mul", x, sqrt(0.5), dtype=dtype), dtype=dtype)
    return b.point("mul", half, b.point("add", bent, 1.0, dtype=dtype), dtype=dtype)


def _silu(call: Call) -> Value:
    b, dtype, x = call.builder, call.spec.dtype, call.builder.read(call.tensor(0))
    return b.point("mul", x, b.point("sigmoid", x, dtype=dtype), dtype=dtype)


def _leaky_relu(call: Call) -> Value:
    b, dtype, x = call.builder, call.spec.dtype, call.builder.read(call.tensor(0))
    slope = call.number(1, "negative_slope", 0.01)
    positive = b.point("gt", x, 0, dtype=dtype, result="bool")
    return b.point("where", positive, x, b.point("mul", x, slope, dtype=dtype), dtype=dtype)


def _elu(call: Call) -> Value:
    b, dtype, x = call.builder, call.spec.dtype, call.builder.read(call.tensor(0))
    alpha, scale = call.number(1, "alpha", 1.0), call.number(2, "scale", 1.0)
    inner = call.number(3, "input_scale", 1.0)
    grown = b.point("expm1", b.point("mul", x, inner, dtype=dtype), dtype=dtype)
    negative = b.point("mul", grown, alpha * scale, dtype=dtype)
    straight = b.point("mul", x, scale, dtype=dtype)
    below = b.point("le", x, 0, dtype=dtype, result="bool")
    return b.point("where", below, negative, straight, dtype=dtype)


def _softplus(call: Call) -> Value:
    b, dtype, x = call.builder, call.spec.dtype, call.builder.read(call.tensor(0))
    beta, threshold = call.number(1, "beta", 1.0), call.number(2, "threshold", 20.0)
    scaled = b.point("mul", x, beta, dtype=dtype)
    soft = b.point("div", b.point("log1p", b.point("exp", scaled, dtype=dtype), dtype=dtype), beta,
                   dtype=dtype)  # fmt: skip
    linear = b.point("gt", scaled, threshold, dtype=dtype, result="bool")
    return b.point("where", linear, x, soft, dtype=dtype)


def _hard_gate(call: Call) -> Value:
    b, dtype = call.builder, call.spec.dtype
    shifted = b.point("add", call.tensor(0), 3.0, dtype=dtype)
    clamped = b.point("minimum", b.point("maximum", shifted, 0.0, dtype=dtype), 6.0, dtype=dtype)
    return b.point("div", clamped, 6.0, dtype=dtype)


def _hardswish(call: Call) -> Value:
    x = call.builder.read(call.tensor(0))
    b, dtype = call.builder, call.spec.dtype
    shifted = b.point("add", x, 3.0, dtype=dtype)
    clamped = b.point("minimum", b.point("maximum", shifted, 0.0, dtype=dtype), 6.0, dtype=dtype)
    return b.point("div", b.point("mul", x, clamped, dtype=dtype), 6.0, dtype=dtype)


def _addc(function: PointFunction) -> Lowering:
    def lower(call: Call) -> Value:
        b, dtype = call.builder, call.spec.dtype
        factor = call.number(3, "value", 1)
        product = b.point(function, call.tensor(1), call.tensor(2), dtype=dtype)
        scaled = b.point("mul", product, factor, dtype=dtype) if factor != 1 else product
        return b.point("add", call.tensor(0), scaled, dtype=dtype)

    return lower


def _cast(call: Call) -> Value:
    return call.builder.cast(call.tensor(0), call.spec.dtype)


def _copy(call: Call) -> Value:
    return call.builder.cast(
        call.builder.expanded(call.tensor(1), call.spec.shape), call.spec.dtype
    )


def _fill(value_position: int) -> Lowering:
    def lower(call: Call) -> Value:
        number = call.number(value_position)
        constant = call.builder.constant(number, call.spec.dtype)
        return call.builder.reshaped_constant(constant, call.spec.shape)

    return lower


def _filled(number: int) -> Lowering:
    def lower(call: Call) -> Value:
        constant = call.builder.constant(number, call.spec.dtype)
        return call.builder.reshaped_constant(constant, call.spec.shape)

    return lower


def _arange(call: Call) -> Value:
    numbers = [call.number(i) for i in range(len(call.node.args))]
    start, step = (
        (numbers[0], numbers[2] if len(numbers) > 2 else 1) if len(numbers) > 1 else (0, 1)
    )
    b, dtype = call.builder, call.spec.dtype
    position = b.index(call.spec.shape, 0)
    scaled = b.point("mul", b.cast(position, dtype), step, dtype=dtype)
    return b.point("add", scaled, start, dtype=dtype)


_UNARY: tuple[PointFunction, ...] = (
    "neg", "abs", "reciprocal", "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log10",
    "log1p", "sin", "cos", "tan", "tanh", "sinh", "cosh", "asin", "acos", "atan", "erf", "erfc",
    "relu", "sigmoid",
)  # fmt: skip
_COMPARISONS: tuple[PointFunction, ...] = ("eq", "ne", "lt", "le", "gt", "ge")

POINTWISE: Mapping[str, Lowering] = {
    **{f"aten.{name}.default": _unary(name) for name in _UNARY},
    **{f"aten.{n}.default": _kept_type(n) for n in ("floor", "ceil", "round", "trunc")},
    **{f"aten.{n}.default": _test(n) for n in ("isnan", "isinf")},
    **{f"aten.{n}.{o}": _compare(n) for n in _COMPARISONS for o in ("Tensor", "Scalar")},
    **{
        f"aten.{n}.default": _logical(n)
        for n in ("logical_and", "logical_or", "logical_not", "logical_xor")
    },
    **{
        f"aten.{n}.{o}": _binary(n)
        for n in ("bitwise_and", "bitwise_or", "bitwise_xor", "fmod", "remainder")
        for o in ("Tensor", "Scalar")
    },
    "aten.sign.default": _unary("sign"),
    "aten.bitwise_not.default": _unary("bitwise_not"),
    "aten.maximum.default": _binary("maximum"),
    "aten.minimum.default": _binary("minimum"),
    "aten.atan2.default": _binary("atan2"),
    "aten.add.Tensor": _sum("add"),
    "aten.add.Scalar": _sum("add"),
    "aten.sub.Tensor": _sum("sub"),
    "aten.sub.Scalar": _sum("sub"),
    "aten.rsub.Scalar": _sum("sub", swapped=True),
    "aten.rsub.Tensor": _sum("sub", swapped=True),
    "aten.mul.Tensor": _mul,
    "aten.mul.Scalar": _mul,
    "aten.div.Tensor": _div,
    "aten.div.Scalar": _div,
    "aten.div.Tensor_mode": _div,
    "aten.div.Scalar_mode": _div,
    "aten.pow.Tensor_Scalar": _pow,
    "aten.pow.Tensor_Tensor": _pow,
    "aten.pow.Scalar": _pow,
    "aten.where.self": _where,
    "aten.where.ScalarSelf": _where,
    "aten.where.ScalarOther": _where,
    "aten.masked_fill.Scalar": _masked_fill,
    "aten.masked_fill.Tensor": _masked_fill,
    "aten.clamp.default": _clamp,
    "aten.clamp.Tensor": _clamp,
    "aten.hardtanh.default": _hardtanh,
    "aten.gelu.default": _gelu,
    "aten.silu.default": _silu,
    "aten.leaky_relu.default": _leaky_relu,
    "aten.elu.default": _elu,
    "aten.softplus.default": _softplus,
    "aten.hardsigmoid.default": _hard_gate,
    "aten.hardswish.default": _hardswish,
    "aten.addcmul.default": _addc("mul"),
    "aten.addcdiv.default": _addc("div"),
    "aten._to_copy.default": _cast,
    "aten.copy.default": _copy,
    "aten.scalar_tensor.default": _fill(0),
    "aten.full.default": _fill(1),
    "aten.full_like.default": _fill(1),
    "aten.zeros.default": _filled(0),
    "aten.zeros_like.default": _filled(0),
    "aten.ones.default": _filled(1),
    "aten.ones_like.default": _filled(1),
    "aten.arange.default": _arange,
    "aten.arange.start_step": _arange,
}
