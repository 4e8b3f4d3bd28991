"""How each reduction starts, takes a tile of values, and comes to one value a row, in Triton.

A state is one or two tiles of shape [ROWS, width], or [width] where a program has a single row:
partial results of as many lanes, or of as many programs that share a row. `finish` joins either
along the last axis; the order is fixed, so that a kernel gives the same bits each time. Only
built-in reductions are used where they can be.
"""

from dataclasses import dataclass

from kerntree.coder.emit.triton_text import LEAST, MOST, TYPES
from kerntree.coder.kernel import Reduce
from kerntree.coder.types import is_float

_NAN = "propagate_nan=tl.PropagateNan.ALL"
_NOWHERE = str((1 << 63) - 1)


@dataclass(frozen=True)
class Reduction:
    """One reduction: its types and starting values.

    `single`: a program has one row, whose values are scalars. `quiet_peak`: a maximum need not
    tell of NaN, since what depends on it meets the NaN anyway.
    """

    reduce: Reduce
    single: bool = False
    quiet_peak: bool = False

    @property
    def function(self) -> str:
        return self.reduce.function

    @property
    def types(self) -> tuple[str, ...]:
        """Types of the state, as graph types."""
        dtype = self.reduce.dtype
        match self.function:
            case "any" | "all":
                return ("int32",)
            case "argmax" | "argmin":
                return (dtype, "int64")
            case "online_softmax" | "moments":
                return (dtype, dtype)
            case _:
                return (dtype,)

    @property
    def starts(self) -> tuple[str, ...]:
        """Starting values: what an empty row has."""
        dtype = self.reduce.dtype
        match self.function:
            case "sum":
                return ("0.0" if is_float(dtype) else "0",)
            case "prod":
                return ("1.0" if is_float(dtype) else "1",)
            case "any":
                return ("0",)
            case "all":
                return ("1",)
            case "max":
                return (LEAST[dtype],)
            case "min":
                return (MOST[dtype],)
            case "argmax":
                return (LEAST[dtype], "-1")
            case "argmin":
                return (MOST[dtype], "-1")
            case "online_softmax":
                return (LEAST[dtype], "0.0")
            case "moments":
                return ("0.0", "0.0")
        raise AssertionError(self.function)

    def take(
        self, state: tuple[str, ...], value: str, position: str, share: str, inside: str
    ) -> list[str]:
        """Statements that add a tile, lane by lane. `inside` masks columns, or is empty.

        `share` is one over the number of tiles so far, this one included.
        """
        s = state[0]
        filled = f"tl.where({inside}, {value}, {self.starts[0]})" if inside else value
        match self.function:
            case "sum":
                return [f"{s} += {filled}"]
            case "prod":
                return [f"{s} *= {filled}"]
            case "any":
                return [f"{s} |= ({filled}).to(tl.int32)"]
            case "all":
                return [f"{s} &= ({filled}).to(tl.int32)"]
            case "max" | "min":
                nan = f", {_NAN}" if is_float(self.reduce.dtype) else ""
                return [f"{s} = tl.{self.function}imum({s}, {filled}{nan})"]
            case "argmax" | "argmin":
                sign = ">" if self.function == "argmax" else "<"
                at = state[1]
                better = f"({value} {sign} {s}) | ({at} < 0)"
                if is_float(self.reduce.dtype):
                    better += f" | (({value} != {value}) & ({s} == {s}))"
                better = f"({better}) & {inside}" if inside else better
                return [
                    f"better = {better}",
                    f"{s} = tl.where(better, {value}, {s})",
                    f"{at} = tl.where(better, {position}, {at})",
                ]
            case "online_softmax":
                total = state[1]
                lines = [
                    f"step = {value} - {s}",
                    f"shrink = tl.where({value} == {s}, 1.0, tl.exp(-tl.abs(step)))",
                ]
                grown = f"tl.where(step > 0, {total} * shrink + 1.0, {total} + shrink)"
                grown = f"tl.where({inside}, {grown}, {total})" if inside else grown
                higher = "step > 0" if self.quiet_peak else f"(step > 0) | ({value} != {value})"
                higher = f"({higher}) & {inside}" if inside else higher
                return [
                    *lines,
                    f"{total} = {grown}",
                    f"{s} = tl.where({higher}, {value}, {s})",
                ]
            case "moments":
                squares = state[1]
                before = f"{value} - {s}"
                before = f"tl.where({inside}, {before}, 0.0)" if inside else before
                after = f"before * ({value} - {s})"
                after = f"tl.where({inside}, {after}, 0.0)" if inside else after
                return [
                    f"before = {before}",
                    # from an infinite mean, or to one, the way is no number
                    f'{s} += tl.where(tl.abs(before) < float("inf"), before * {share}, {value})',
                    f"{squares} += {after}",
                ]
        raise AssertionError(self.function)

    def whole(self, value: str, position: str, count: str, inside: str) -> tuple[list[str], ...]:
        """Statements and expressions for a row that lies in one tile: (lines, results)."""
        filled = f"tl.where({inside}, {value}, {self.starts[0]})" if inside else value
        match self.function:
            case "any" | "all":
                return [], [self._along("max" if self.function == "any" else "min",
                                   f"({filled}).to(tl.int32)") + " != 0"]  # fmt: skip
            case "argmax" | "argmin":
                return self.finish((filled, f"{position}.to(tl.int64)"), count, inside)
            case "online_softmax":
                grown = f"tl.exp({value} - base)"
                grown = f"tl.where({inside}, {grown}, 0.0)" if inside else grown
                lines, (peak,) = self._peak(filled)
                base = 'base = tl.where(peak == -float("inf"), 0.0, peak)'  # an empty part
                return [*lines, f"peak = {peak}", base], ["peak", self._along("sum", grown)]
            case "moments":
                apart = f"{value} - middle"
                apart = f"tl.where({inside}, {apart}, 0.0)" if inside else apart
                return (
                    [f"middle = {self._along('sum', filled)} / {count}", f"apart = {apart}"],
                    ["middle", self._along("sum", "apart * apart")],
                )
            case _:
                return self.finish((filled,), count, "")

    def finish(
        self, state: tuple[str, ...], count: str, inside: str
    ) -> tuple[list[str], list[str]]:
        """Joins a state along its second axis: (lines, expressions of the results).

        `count` are the values behind each entry, a tile of numbers; only `moments` needs it.
        `inside` masks entries, where some hold nothing.
        """
        s = state[0]
        match self.function:
            case "sum":
                return [], [self._along("sum", s)]
            case "prod":
                along = "0, multiply" if self.single else "1, multiply, keep_dims=True"
                return [], [f"tl.reduce({s}, {along})"]
            case "any":
                return [], [f"{self._along('max', s)} != 0"]
            case "all":
                return [], [f"{self._along('min', s)} != 0"]
            case "max" | "min":
                return self._peak(s)
            case "argmax" | "argmin":
                lines, (peak,) = self._peak(s)
                equal = "entries == peak"
                if is_float(self.reduce.dtype):
                    equal = f"({equal}) | (entries != entries)"
                equal = f"({equal}) & ({state[1]} >= 0)"
                equal = f"{equal} & {inside}" if inside else equal
                place = f"tl.where({equal}, {state[1]}, {_NOWHERE})"
                return (
                    [*lines, f"peak = {peak}", f"entries = {s}"],
                    ["peak", self._along("min", place)],
                )
            case "online_softmax":
                grown = f"tl.where({s} == peak, {state[1]}, {state[1]} * tl.exp({s} - peak))"
                lines, (peak,) = self._peak(s)
                return [*lines, f"peak = {peak}"], ["peak", self._along("sum", grown)]
            case "moments":
                total, behind = self._along("sum", f"count * {s}"), self._along("sum", "count")
                return (
                    [
                        f"count = {count}",
                        f"middle = {total} / {behind}",
                        f"apart = {s} - middle",
                    ],
                    ["middle", self._along("sum", f"{state[1]} + count * apart * apart")],
                )
        raise AssertionError(self.function)

    @property
    def result_part(self) -> int:
        """Which of the expressions is the first result: the place, for argmax and argmin."""
        return 1 if self.function in ("argmax", "argmin") else 0

    def _peak(self, values: str) -> tuple[list[str], list[str]]:
        function = "max" if self.function == "online_softmax" else self.function.removeprefix("arg")
        peak = self._along(function, values)
        if not is_float(self.reduce.dtype) or self.quiet_peak:
            return [], [peak]
        return (
            [f"lost = {self._along('max', f'({values} != {values}).to(tl.int32)')} != 0"],
            [f'tl.where(lost, float("nan"), {peak})'],
        )

    def settled(self, text: str, part: int, first: str) -> str:
        """A result as it stands at the end of a row, whose first result is named `first`.

        Powers of what lies apart from an infinite maximum have no sum: the maximum itself is no
        number apart from it.
        """
        if self.function == "online_softmax" and part == 1:
            return f"{text} + ({first} - {first})"
        return text

    def empty(self, shape: str) -> list[str]:
        """Tiles with the starting values."""
        return [
            f"tl.full({shape}, {start}, {TYPES[dtype]})"
            for start, dtype in zip(self.starts, self.types, strict=True)
        ]

    def _along(self, function: str, values: str) -> str:
        along = "axis=0" if self.single else "axis=1, keep_dims=True"
        return f"tl.{function}({values}, {along})"
