"""C++ types, literals and point functions, with torch's meaning for NaN and infinities."""

import math

from kerntree.coder.emit.cpp_whole import WHOLE_DIVISION, whole_point
from kerntree.coder.types import Scalar

STORED = {
    "float64": "double", "float32": "float", "float16": "_Float16", "bfloat16": "uint16_t",
    "int64": "int64_t", "int32": "int32_t", "int16": "int16_t", "int8": "int8_t",
    "uint8": "uint8_t", "bool": "bool",
}  # fmt: skip
COMPUTED = {**STORED, "float16": "float", "bfloat16": "float"}


def literal(value: Scalar, dtype: str) -> str:
    """A number as C++ text."""
    if dtype == "bool":
        return "true" if value else "false"
    if COMPUTED[dtype] not in ("float", "double"):
        if dtype == "int64":  # the least is no literal: C++ negates what it has no type for
            return "INT64_MIN" if value == -(1 << 63) else f"INT64_C({int(value)})"
        return str(int(value))
    suffix = "f" if COMPUTED[dtype] == "float" else ""
    value = float(value)
    if math.isnan(value):
        return "(float)NAN" if suffix else "(double)NAN"
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}({COMPUTED[dtype]})INFINITY"
    return (
        f"{value!r}{suffix}" if "." in repr(value) or "e" in repr(value) else f"{value!r}.0{suffix}"
    )


_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<",
    "le": "<=", "gt": ">", "ge": ">=", "logical_and": "&", "logical_or": "|",
    "logical_xor": "^", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
}  # fmt: skip

# Functions of the C library; those with vector forms in glibc's libmvec are declared so below.
_LIBRARY = frozenset({
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "tanh", "sinh",
    "cosh", "asin", "acos", "atan", "atan2", "erf", "erfc", "pow", "sqrt", "floor", "ceil",
    "trunc", "fmod",
})  # fmt: skip

VECTOR_MATH_OLD = ("exp", "log", "sin", "cos", "pow")  # glibc 2.22
VECTOR_MATH_NEW = (  # glibc 2.35
    "acos", "asin", "atan", "atan2", "cosh", "erf", "erfc", "exp2", "expm1", "log10", "log1p",
    "log2", "sinh", "tan", "tanh",
)  # fmt: skip


def point(function: str, operands: tuple[str, ...], dtype: str) -> str:
    """A point function of C++ expressions, computed in `dtype`."""
    ctype = COMPUTED[dtype]
    real = ctype in ("float", "double")
    suffix = "f" if ctype == "float" else ""
    a = operands[0]
    b = operands[1] if len(operands) > 1 else ""
    one = literal(1, dtype) if real else "1"
    whole = None if real or ctype == "bool" else whole_point(function, operands, ctype)
    if whole is not None:
        return whole
    if function in _INFIX:
        text = f"{a} {_INFIX[function]} {b}"
        return text if real or ctype in ("bool", "int64_t") else f"({ctype})({text})"
    if function in _LIBRARY and real:
        return f"{function}{suffix}({', '.join(operands)})"
    match function:
        case "neg":
            return f"-{a}"
        case "abs":
            return f"fabs{suffix}({a})"
        case "square":
            return f"{a} * {a}"
        case "reciprocal":
            return f"{one} / {a}"
        case "rsqrt":
            return f"{one} / sqrt{suffix}({a})"
        case "sigmoid":
            return f"{one} / ({one} + exp{suffix}(-{a}))"
        case "relu":
            return f"({a} < 0 ? 0 : {a})"
        case "round":
            return f"nearbyint{suffix}({a})"
        case "sign":
            return f"({ctype})((0 < {a}) - ({a} < 0))"
        case "isnan":
            return f"({a} != {a})"
        case "isinf":
            return f"(fabs{suffix}({a}) == ({ctype})INFINITY)"
        case "maximum":
            return f"(({a} > {b}) | ({a} != {a}) ? {a} : {b})"
        case "minimum":
            return f"(({a} < {b}) | ({a} != {a}) ? {a} : {b})"
        case "remainder":
            return f"remainder_like_divisor({a}, {b})"
        case "floor_div":
            return f"divide_down({a}, {b})"
        case "trunc_div":
            return f"trunc{suffix}({a} / {b})"
        case "logical_not":
            return f"!{a}"
        case "bitwise_not":
            return f"!{a}" if ctype == "bool" else f"({ctype})~{a}"
        case "where":
            return f"({a} ? {b} : {operands[2]})"
        case "cast":
            return f"({a} != 0)" if ctype == "bool" else f"({ctype}){a}"
    raise ValueError(f"no C++ for {function} of {dtype}")


PRELUDE = """\
#include <math.h>
#include <stdint.h>
#include <string.h>
"""

HELPERS = {
    "from_bfloat16": """\
static inline float from_bfloat16(uint16_t half) {
  uint32_t bits = (uint32_t)half << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
""",
    "to_bfloat16": """\
// Rounds to nearest even; NaN stays NaN.
static inline uint16_t to_bfloat16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
  return value != value ? 0x7fc0 : (uint16_t)rounded;
}
""",
    "remainder_like_divisor": """\
// The remainder with the sign of the divisor, as Python's %.
static inline float remainder_like_divisor(float a, float b) {
  float rest = fmodf(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
static inline double remainder_like_divisor(double a, double b) {
  double rest = fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
""",
    "divide_down": """\
// Division rounded down.
template <typename T> static inline T divide_down_real(T a, T b, T rest) {
  if (b == 0) return a / b;
  T quotient = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
  if (quotient == 0) return (T)copysign(0.0, (double)(a / b));
  T down = (T)floor((double)quotient);
  return quotient - down > (T)0.5 ? down + 1 : down;
}
static inline float divide_down(float a, float b) { return divide_down_real(a, b, fmodf(a, b)); }
static inline double divide_down(double a, double b) { return divide_down_real(a, b, fmod(a, b)); }
""",
    "whole_division": WHOLE_DIVISION,
    "stream": """\
// Writes a full block past the caches where the address allows, plainly elsewhere.
template <typename T, int N> static inline void stream(const T* from, T* to) {
#if defined(__AVX512F__)
  if (N * sizeof(T) % 64 == 0 && (uintptr_t)to % 64 == 0) {
    for (int k = 0; k < (int)(N * sizeof(T) / 64); ++k)
      _mm512_stream_si512((__m512i*)to + k, _mm512_loadu_si512((const __m512i*)from + k));
    return;
  }
#elif defined(__AVX__)
  if (N * sizeof(T) % 32 == 0 && (uintptr_t)to % 32 == 0) {
    for (int k = 0; k < (int)(N * sizeof(T) / 32); ++k)
      _mm256_stream_si256((__m256i*)to + k, _mm256_loadu_si256((const __m256i*)from + k));
    return;
  }
#endif
  memcpy(to, from, N * sizeof(T));
}
static inline void end_stream() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}
""",
    "expect_huge_pages": """\
// Asks for huge pages under a large fresh output: a page fault for 2 MiB instead of 4 KiB.
static void expect_huge_pages(void* start, size_t bytes) {
#ifdef MADV_HUGEPAGE
  uintptr_t page = 1 << 21;
  uintptr_t first = ((uintptr_t)start + page - 1) / page * page;
  uintptr_t last = ((uintptr_t)start + bytes) / page * page;
  if (last > first) madvise((void*)first, last - first, MADV_HUGEPAGE);
#endif
}
""",
}
CALLED = {  # what tells that a helper is called
    "remainder_like_divisor(": "remainder_like_divisor", "divide_down(": "divide_down",
    "whole_": "whole_division",
}  # fmt: skip
HEADERS = {
    "stream": "#if defined(__x86_64__)\n#include <immintrin.h>\n#endif\n",
    "expect_huge_pages": "#include <sys/mman.h>\n",
}


def vector_math(used: set[str]) -> str:
    """Declarations that let the compiler call glibc's vector forms of these functions."""
    lines = []
    for names, guard in (
        (VECTOR_MATH_OLD, "__GLIBC_PREREQ(2, 22)"),
        (VECTOR_MATH_NEW, "__GLIBC_PREREQ(2, 35)"),
    ):
        chosen = [name for name in names if name in used]
        if not chosen:
            continue
        lines.append("#if defined(__x86_64__) && defined(__GLIBC__)")
        lines.append(f"#if {guard}")
        lines.append('extern "C" {')
        for name in chosen:
            for ctype, suffix in (("float", "f"), ("double", "")):
                types = ", ".join([ctype] * (2 if name in ("pow", "atan2") else 1))
                lines.append(
                    f'__attribute__((simd("notinbranch"))) {ctype} {name}{suffix}({types});'
                )
        lines += ["}", "#endif", "#endif"]
    return "\n".join(lines) + "\n" if lines else ""
