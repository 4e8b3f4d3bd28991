"""Types of values: what they are stored as, and what they are computed in."""

from collections.abc import Iterable

from kerntree.plans.graph import FLOAT_TYPES, ITEM_BYTES, TensorSpec

_INTEGERS = ("int8", "uint8", "int16", "int32", "int64")
_FLOATS = ("float16", "bfloat16", "float32", "float64")
Scalar = bool | int | float


def compute_type(dtype: str) -> str:
    """The type a value is computed in: half types widen to float32."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def wrapped(number: int, dtype: str) -> int:
    """A whole number as the type holds it: past one end of its range it goes on at the other."""
    bits = 8 * ITEM_BYTES[dtype]
    least = 0 if dtype == "uint8" else -(1 << (bits - 1))
    return (number - least) % (1 << bits) + least


def is_float(dtype: str) -> bool:
    return dtype in FLOAT_TYPES


def promoted(tensors: Iterable[TensorSpec], scalars: Iterable[Scalar] = ()) -> str:
    """The common type of operands by torch's rules (default float type float32).

    Tensors with dimensions outrank zero-dimensional ones, and those outrank plain numbers, unless
    the lower rank is of a higher category (bool, integer, float).
    """
    specs = list(tensors)
    ranks = [
        [spec.dtype for spec in specs if spec.shape],
        [spec.dtype for spec in specs if not spec.shape],
        [_scalar_type(value) for value in scalars],
    ]
    result = ""
    for rank in ranks:
        common = ""
        for dtype in rank:
            common = _wider(common, dtype)
        if common and (not result or _category(common) > _category(result)):
            result = common
    return result or "float32"


def _scalar_type(value: Scalar) -> str:
    if isinstance(value, bool):
        return "bool"
    return "int64" if isinstance(value, int) else "float32"


def _category(dtype: str) -> int:
    return 0 if dtype == "bool" else 1 if dtype in _INTEGERS else 2


def _wider(first: str, second: str) -> str:
    if not first or first == second:
        return second
    if _category(first) != _category(second):
        return max(first, second, key=_category)
    if {first, second} == {"float16", "bfloat16"}:
        return "float32"
    if "uint8" in (first, second) and "int8" in (first, second):
        return "int16"
    order = _FLOATS if _category(first) == 2 else _INTEGERS
    return max(first, second, key=order.index)
