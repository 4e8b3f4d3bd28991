"""Point functions of whole numbers in C++, which wrap at the ends of their type as torch's do."""

_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*"}
_UNSIGNED = {"int32_t": "uint32_t", "int64_t": "uint64_t"}
_DIVISION = {
    "trunc_div": "whole_quotient", "floor_div": "whole_quotient_down", "fmod": "whole_rest",
    "remainder": "whole_rest_like_divisor",
}  # fmt: skip


def whole_point(function: str, operands: tuple[str, ...], ctype: str) -> str | None:
    """The function as an expression; None where it is the same as that of real numbers."""
    a = operands[0]
    if function == "square":
        function, operands = "mul", (a, a)
    if function in _ARITHMETIC:
        # narrow types are computed as int, which holds what they give
        unsigned = _UNSIGNED.get(ctype)
        x, y = (f"({unsigned}){o}" if unsigned else o for o in operands)
        return f"({ctype})({x} {_ARITHMETIC[function]} {y})"
    if function in _DIVISION:
        return f"{_DIVISION[function]}<{ctype}>({', '.join(operands)})"
    match function:
        case "neg":
            return whole_point("sub", ("0", a), ctype)
        case "abs":
            return f"({a} < 0 ? {whole_point('neg', operands, ctype)} : {a})"
    return None


WHOLE_DIVISION = """\
// Division of whole numbers; by zero it gives zero, which torch refuses with an error.
template <typename T> static inline bool whole_inverts(T b) { return (T)-1 < 0 && b == (T)-1; }
template <typename T> static inline T whole_quotient(T a, T b) {
  if (whole_inverts<T>(b)) return (T)(0 - (uint64_t)a);
  return b == 0 ? 0 : (T)(a / b);
}
template <typename T> static inline T whole_rest(T a, T b) {
  return b == 0 || whole_inverts<T>(b) ? 0 : (T)(a % b);
}
template <typename T> static inline T whole_quotient_down(T a, T b) {
  T quotient = whole_quotient<T>(a, b), rest = whole_rest<T>(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? (T)(quotient - 1) : quotient;
}
template <typename T> static inline T whole_rest_like_divisor(T a, T b) {
  T rest = whole_rest<T>(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? (T)(rest + b) : rest;
}
"""
