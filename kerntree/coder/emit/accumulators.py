"""How each reduction starts, takes one more value, and joins two partial results, in C++.

An accumulator is one or two variables. Partial results are joined in a fixed order, so a kernel
gives the same bits for the same number of chunks whatever the number of threads.
"""

from dataclasses import dataclass

from kerntree.coder.emit.cpp_text import COMPUTED, literal, point
from kerntree.coder.kernel import Reduce
from kerntree.coder.types import is_float

_LEAST = {
    "int64_t": "INT64_MIN", "int32_t": "INT32_MIN", "int16_t": "INT16_MIN", "int8_t": "INT8_MIN",
    "uint8_t": "0", "bool": "false", "float": "-(float)INFINITY", "double": "-(double)INFINITY",
}  # fmt: skip
_MOST = {
    "int64_t": "INT64_MAX", "int32_t": "INT32_MAX", "int16_t": "INT16_MAX", "int8_t": "INT8_MAX",
    "uint8_t": "UINT8_MAX", "bool": "true", "float": "(float)INFINITY",
    "double": "(double)INFINITY",
}  # fmt: skip


@dataclass(frozen=True)
class Accumulator:
    """The variables of one reduction: C++ types, starting values, and the results they give."""

    reduce: Reduce
    types: tuple[str, ...]
    starts: tuple[str, ...]

    def take(self, state: tuple[str, ...], value: str, position: str, count: str) -> list[str]:
        """Statements that add one value. `position` is its index, `count` values with it."""
        ctype = self.types[0]
        suffix = "f" if ctype == "float" else ""
        s = state[0]
        match self.reduce.function:
            case "sum" | "prod":
                sign = "+" if self.reduce.function == "sum" else "*"
                if is_float(self.reduce.dtype):
                    return [f"{s} {sign}= {value};"]
                function = "add" if sign == "+" else "mul"
                return [f"{s} = {point(function, (s, value), self.reduce.dtype)};"]
            case "any":
                return [f"{s} |= {value};"]
            case "all":
                return [f"{s} &= {value};"]
            case "max" | "min":
                sign = ">" if self.reduce.function == "max" else "<"
                return [f"{s} = (({value} {sign} {s}) | ({value} != {value})) ? {value} : {s};"]
            case "argmax" | "argmin":
                sign = ">" if self.reduce.function == "argmax" else "<"
                at = state[1]
                nan = f"(({value} != {value}) & ({s} == {s}))"
                first = f"({at} < 0)"
                return [
                    f"const bool better = ({value} {sign} {s}) | {nan} | {first};",
                    f"{s} = better ? {value} : {s};",
                    f"{at} = better ? {position} : {at};",
                ]
            case "online_softmax":
                total = state[1]
                one = literal(1, self.reduce.dtype)
                return [
                    f"const {ctype} step = {value} - {s};",
                    f"const {ctype} shrink ="
                    f" {value} == {s} ? {one} : exp{suffix}(-fabs{suffix}(step));",
                    f"{total} = step > 0 ? {total} * shrink + {one} : {total} + shrink;",
                    f"{s} = (step > 0) | ({value} != {value}) ? {value} : {s};",
                ]
            case "moments":
                squares = state[1]
                return [
                    f"const {ctype} before = {value} - {s};",
                    # from an infinite mean, or to one, the way is no number
                    f"{s} += {_finite('before', ctype)} ? before * {count} : {value};",
                    f"{squares} += before * ({value} - {s});",
                ]
        raise AssertionError(self.reduce.function)

    def join(
        self, state: tuple[str, ...], other: tuple[str, ...], counts: tuple[str, str]
    ) -> list[str]:
        """Statements that join another partial result; `counts` are values in each so far."""
        s, o = state[0], other[0]
        ctype = self.types[0]
        suffix = "f" if ctype == "float" else ""
        match self.reduce.function:
            case "argmax" | "argmin":
                sign = ">" if self.reduce.function == "argmax" else "<"
                both = f"(({o} == {s}) | (({o} != {o}) & ({s} != {s})))"
                return [
                    f"if ({other[1]} >= 0 && ({state[1]} < 0 || {o} {sign} {s} ||"
                    f" ({o} != {o} && {s} == {s}) ||"
                    f" ({both} && {other[1]} < {state[1]}))) {{",
                    f"  {s} = {o};",
                    f"  {state[1]} = {other[1]};",
                    "}",
                ]
            case "online_softmax":
                one = literal(1, self.reduce.dtype)
                return [
                    f"const {ctype} peak = ({o} > {s}) | ({o} != {o}) ? {o} : {s};",
                    f"{state[1]} = {state[1]} * ({s} == peak ? {one} : exp{suffix}({s} - peak)) +"
                    f" {other[1]} * ({o} == peak ? {one} : exp{suffix}({o} - peak));",
                    f"{s} = peak;",
                ]
            case "moments":
                mine, theirs = counts
                return [
                    f"if ({theirs} > 0) {{",
                    f"  const {ctype} apart = {o} - {s};",
                    f"  const {ctype} share = ({ctype}){theirs} / ({ctype})({mine} + {theirs});",
                    f"  {s} += {_finite('apart', ctype)} ? apart * share : {o};",
                    f"  {state[1]} += {other[1]} + apart * apart * share * ({ctype}){mine};",
                    "}",
                ]
            case _:
                return self.take(state, o, "0", "0")

    def settled(self, state: tuple[str, ...], part: int) -> str:
        """A variable as it stands at the end of a row.

        Powers of what lies apart from an infinite maximum have no sum: the maximum itself is no
        number apart from it.
        """
        if self.reduce.function == "online_softmax" and part == 1:
            return f"{state[1]} + ({state[0]} - {state[0]})"
        return state[part]


def _finite(name: str, ctype: str) -> str:
    suffix = "f" if ctype == "float" else ""
    return f"fabs{suffix}({name}) < ({ctype})INFINITY"


def accumulator(reduce: Reduce) -> Accumulator:
    """The accumulator of a reduction."""
    ctype = COMPUTED[reduce.dtype]
    zero = literal(0, reduce.dtype)
    match reduce.function:
        case "sum":
            return Accumulator(reduce, (ctype,), (zero,))
        case "prod":
            return Accumulator(reduce, (ctype,), (literal(1, reduce.dtype),))
        case "any":
            return Accumulator(reduce, ("bool",), ("false",))
        case "all":
            return Accumulator(reduce, ("bool",), ("true",))
        case "max":
            return Accumulator(reduce, (ctype,), (_LEAST[ctype],))
        case "min":
            return Accumulator(reduce, (ctype,), (_MOST[ctype],))
        case "argmax":
            return Accumulator(reduce, (ctype, "int64_t"), (_LEAST[ctype], "-1"))
        case "argmin":
            return Accumulator(reduce, (ctype, "int64_t"), (_MOST[ctype], "-1"))
        case "online_softmax":
            return Accumulator(reduce, (ctype, ctype), (_LEAST[ctype], zero))
        case "moments":
            return Accumulator(reduce, (ctype, ctype), (zero, zero))
