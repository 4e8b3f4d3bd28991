"""Triton types, literals and point functions, with torch's meaning for NaN and infinities."""

import math
from collections.abc import Sequence

from kerntree.coder.types import Scalar, is_float

TYPES = {
    "float64": "tl.float64", "float32": "tl.float32", "float16": "tl.float16",
    "bfloat16": "tl.bfloat16", "int64": "tl.int64", "int32": "tl.int32", "int16": "tl.int16",
    "int8": "tl.int8", "uint8": "tl.uint8", "bool": "tl.int1",
}  # fmt: skip
LEAST = {
    "int64": str(-(1 << 63)), "int32": str(-(1 << 31)), "int16": str(-(1 << 15)), "int8": "-128",
    "uint8": "0", "float32": '-float("inf")', "float64": '-float("inf")',
}  # fmt: skip
MOST = {
    "int64": str((1 << 63) - 1), "int32": str((1 << 31) - 1), "int16": str((1 << 15) - 1),
    "int8": "127", "uint8": "255", "float32": 'float("inf")', "float64": 'float("inf")',
}  # fmt: skip


def literal(value: Scalar, dtype: str) -> str:
    """A number as Triton text; Triton gives it the type of what it meets."""
    if dtype == "bool":
        return str(bool(value))
    if not is_float(dtype):
        return str(int(value))
    value = float(value)
    if math.isnan(value):
        return 'float("nan")'
    if math.isinf(value):
        return 'float("inf")' if value > 0 else '-float("inf")'
    return repr(value)


_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<",
    "le": "<=", "gt": ">", "ge": ">=", "logical_and": "&", "logical_or": "|",
    "logical_xor": "^", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
}  # fmt: skip
LANGUAGE = frozenset(
    {"exp", "exp2", "log", "log2", "sin", "cos", "sqrt", "rsqrt", "erf", "floor", "ceil"}
)
LIBDEVICE = {
    "expm1": "expm1", "log10": "log10", "log1p": "log1p", "tan": "tan", "tanh": "tanh",
    "sinh": "sinh", "cosh": "cosh", "asin": "asin", "acos": "acos", "atan": "atan",
    "atan2": "atan2", "erfc": "erfc", "pow": "pow", "trunc": "trunc", "round": "nearbyint",
    "fmod": "fmod",
}  # fmt: skip
_NAN = "propagate_nan=tl.PropagateNan.ALL"


def point(function: str, operands: Sequence[str], dtype: str) -> str:
    """A point function of Triton expressions, computed in `dtype`."""
    real = is_float(dtype)
    a = operands[0]
    b = operands[1] if len(operands) > 1 else ""
    if function in _INFIX:
        return f"{a} {_INFIX[function]} {b}"
    if real and function in LANGUAGE:
        return f"tl.{function}({a})"
    if real and function in LIBDEVICE:
        return f"libdevice.{LIBDEVICE[function]}({', '.join(operands)})"
    zero = "0.0" if real else "0"
    match function:
        case "neg":
            return f"-{a}"
        case "abs":
            return f"tl.abs({a})"
        case "square":
            return f"{a} * {a}"
        case "reciprocal":
            return f"1.0 / {a}"
        case "sigmoid":
            return f"1.0 / (1.0 + tl.exp(-{a}))"
        case "relu":
            return f"tl.where({a} < 0, {zero}, {a})"
        case "sign":
            if dtype == "bool":
                return a
            return f"({a} > 0).to({TYPES[dtype]}) - ({a} < 0).to({TYPES[dtype]})"
        case "isnan":
            return f"{a} != {a}"
        case "isinf":
            return f'tl.abs({a}) == float("inf")'
        case "maximum" | "minimum":
            return f"tl.{function}({a}, {b}, {_NAN})" if real else f"tl.{function}({a}, {b})"
        case "remainder":
            return f"remainder_like_divisor({a}, {b})" if real else f"modulo({a}, {b})"
        case "floor_div":
            return f"divide_down({a}, {b})" if real else f"divide_down_whole({a}, {b})"
        case "trunc_div":
            return f"libdevice.trunc({a} / {b})" if real else f"{a} // {b}"
        case "fmod":
            return f"{a} % {b}"
        case "logical_not":
            return f"{a} == 0"
        case "bitwise_not":
            if dtype == "uint8":  # the interpreter has no such number with all bits set
                return f"{a} ^ 255"
            return f"{a} == 0" if dtype == "bool" else f"~{a}"
        case "where":
            return f"tl.where({a}, {b}, {operands[2]})"
        case "cast":
            return f"{a} != 0" if dtype == "bool" else f"({a}).to({TYPES[dtype]})"
    raise ValueError(f"no Triton for {function} of {dtype}")


HELPERS = {
    "multiply": """\
@triton.jit
def multiply(a, b):
    return a * b""",
    "remainder_like_divisor": '''\
@triton.jit
def remainder_like_divisor(a, b):
    """The remainder with the sign of the divisor, as Python's %."""
    rest = libdevice.fmod(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)''',
    "modulo": '''\
@triton.jit
def modulo(a, b):
    """The remainder with the sign of the divisor, as Python's %."""
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)''',
    "divide_down": '''\
@triton.jit
def divide_down(a, b):
    """Division rounded down."""
    rest = libdevice.fmod(a, b)
    quotient = (a - rest) / b
    quotient = tl.where((rest != 0) & ((b < 0) != (rest < 0)), quotient - 1, quotient)
    down = tl.floor(quotient)
    down = tl.where(quotient - down > 0.5, down + 1, down)
    down = tl.where(quotient == 0, (a / b) * 0.0, down)
    return tl.where(b == 0, a / b, down)''',
    "divide_down_whole": '''\
@triton.jit
def divide_down_whole(a, b):
    """Division rounded down."""
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), a // b - 1, a // b)''',
}
