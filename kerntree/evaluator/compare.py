"""How far a result may lie from the float64 oracle, and whether it does.

Pure functions on tensors. An output passes if, over the whole of it and over each of up to 64
contiguous slices, the RMS of its error and its worst element stay within

    max(4 x PyTorch's own error on the same inputs, k x eps(dtype) x scale)

and NaN and infinities stand where PyTorch or the oracle has them. Integers and booleans must equal
the oracle's or PyTorch's own value at each position.

The constants. A float32 result is stored and accumulated in float32, so its error grows with the
length of its sums: a plain loop over n terms has a relative RMS error of about 0.29 eps sqrt(n/3).
k = 64 admits n up to 10^5 (with one accumulator; sixteen lanes admit 256 times as many), 7.6e-6 in
all. Operands rounded to TF32 give 2.9e-4 and to bfloat16 2.3e-3, a factor of 38 and more above
it. The worst of many normally distributed errors is six times their RMS: k = 512 there. A half
type is accumulated in float32 and rounded once, at 0.29 eps, whatever the length: k = 2, and 8 for
the worst element.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from pydantic import JsonValue

from kerntree.plans.evaluation import OutputError

OWN_ERROR_FACTOR = 4.0
RMS_FACTOR = {"float16": 2.0, "bfloat16": 2.0}  # k for the RMS of the error
WORST_FACTOR = {"float16": 8.0, "bfloat16": 8.0}  # k for the worst element
WIDE_RMS_FACTOR, WIDE_WORST_FACTOR = 64.0, 512.0  # float32 and float64
KERNELBENCH_TOLERANCE = {"float16": 1e-2, "bfloat16": 1e-2}  # atol = rtol; 1e-4 for the others

_SLICES = 64
_LEAST_SLICE = 64  # elements: fewer say nothing about the scale of the sums behind them
_SCALE_FLOOR = 1 / 64  # of the output's RMS: a slice that cancels to nothing is not exact
_CHUNK = 1 << 18  # elements converted to float64 at a time: 2 MiB stay in the cache
_CHUNK_ON_DEVICE = 1 << 25  # 256 MiB each: a GPU is slow in small pieces
_TINY = 1e-290  # stands for a scale of zero, where only exact results have no error


@dataclass(frozen=True)
class SliceScale:
    """One contiguous range of a flattened output, and what is known of it beforehand.

    `scale` is the RMS of the expected values, with a floor; `own_rms` and `own_worst` are
    PyTorch's own errors, relative to that scale.
    """

    start: int
    stop: int
    scale: float
    own_rms: float
    own_worst: float
    finite: bool  # whether all expected values are


@dataclass(frozen=True, eq=False)
class Expected:
    """What one output must be. `oracle` and `own` are flat; complex values as pairs of reals.

    `response` is the RMS change of the output when each input is moved by one eps of its type:
    what input rounding alone does, known for small outputs, where cancellation may leave a value
    far below the scale of the sum behind it.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    oracle: torch.Tensor
    own: torch.Tensor
    response: float
    slices: tuple[SliceScale, ...]
    whole: SliceScale


@dataclass(frozen=True)
class OutputFinding:
    """The verdict on one output: `message` and `evidence` are empty where it passes."""

    error: OutputError
    message: str = ""
    evidence: dict[str, JsonValue] | None = None

    @property
    def ok(self) -> bool:
        return not self.message


def expect(
    path: str, oracle: torch.Tensor, own: torch.Tensor, *, response: float = 0.0
) -> Expected:
    """Prepares the comparison of one output with the oracle's and PyTorch's own result.

    Both have the output's shape; `own` has its dtype, `oracle` is float64 (complex128) where that
    is a floating type. Raises `ValueError` for shapes that differ.
    """
    if oracle.shape != own.shape:
        raise ValueError(f"the oracle's shape is {list(oracle.shape)}, not {list(own.shape)}")
    shape, dtype = tuple(own.shape), str(own.dtype).removeprefix("torch.")
    oracle, own = _flat(oracle), _flat(own)
    if not own.dtype.is_floating_point:
        whole = SliceScale(0, own.numel(), 1.0, 0.0, 0.0, True)
        return Expected(path, shape, dtype, oracle, own, 0.0, (), whole)
    bounds = _bounds(shape, own.numel())
    squares, counts = zip(*(_square(oracle, own, *b) for b in bounds), strict=True)
    overall = math.sqrt(sum(squares) / max(sum(counts), 1))
    floor = max(overall * _SCALE_FLOOR, _TINY)
    slices = []
    total, worst = 0.0, 0.0
    for bound, square, count in zip(bounds, squares, counts, strict=True):
        scale = max(math.sqrt(square / max(count, 1)), floor)
        finite = count == bound[1] - bound[0]
        gap = _gaps(own, oracle, own, *bound, scale, finite=finite)
        total += gap.square
        worst = max(worst, gap.worst)
        rms = math.sqrt(gap.square / max(count, 1)) / scale
        slices.append(SliceScale(*bound, scale, rms, gap.worst, finite))
    overall = max(overall, _TINY)
    own_rms = math.sqrt(total / max(sum(counts), 1)) / overall
    finite = all(part.finite for part in slices)
    whole = SliceScale(0, own.numel(), overall, own_rms, worst, finite)
    return Expected(path, shape, dtype, oracle, own, response, tuple(slices), whole)


def compare(
    actual: torch.Tensor, expected: Expected, *, case: str, inputs: str, kernelbench: bool
) -> OutputFinding:
    """Judges one output.

    `inputs` names the distribution; `kernelbench` asks for KernelBench's tolerance against
    PyTorch's own result as well.
    """
    dtype = str(actual.dtype).removeprefix("torch.")
    form = (tuple(actual.shape), dtype)
    if form != (expected.shape, expected.dtype):
        error = _error(expected, case=case, inputs=inputs, rms=math.inf, worst=math.inf)
        message = (
            f"{_called(expected)} is {dtype} of shape {list(actual.shape)}, not "
            f"{expected.dtype} of shape {list(expected.shape)}"
        )
        return OutputFinding(error, message, {"output": expected.path})
    flat = _flat(actual)
    if not flat.dtype.is_floating_point:
        return _compare_exactly(flat, expected, case=case, inputs=inputs)
    return _compare_floats(flat, expected, case=case, inputs=inputs, kernelbench=kernelbench)


def _compare_exactly(
    flat: torch.Tensor, expected: Expected, *, case: str, inputs: str
) -> OutputFinding:
    wrong = ~((flat == expected.oracle) | (flat == expected.own))
    count = int(wrong.sum())
    share = count / max(flat.numel(), 1)
    error = _error(expected, case=case, inputs=inputs, rms=share, worst=float(count > 0))
    if not count:
        return OutputFinding(error)
    index = int(wrong.to(torch.uint8).argmax())
    what = f"{count} of {flat.numel()} elements differ; they must be equal"
    return _failure(error, expected, flat, index, what)


def _compare_floats(
    flat: torch.Tensor, expected: Expected, *, case: str, inputs: str, kernelbench: bool
) -> OutputFinding:
    total, elements, worst, at = 0.0, 0, 0.0, 0
    failed: tuple[float, int, str] | None = None  # how far over the limit, where, why
    for number, part in enumerate(expected.slices):
        gap = _gaps(
            flat,
            expected.oracle,
            expected.own,
            part.start,
            part.stop,
            part.scale,
            finite=part.finite,
        )
        if gap.misplaced is not None:
            error = _error(expected, case=case, inputs=inputs, rms=math.inf, worst=math.inf)
            what = "NaN and infinities must stand exactly where PyTorch has them"
            return _failure(error, expected, flat, gap.misplaced, what)
        total, elements = total + gap.square, elements + gap.count
        if gap.worst > worst:
            worst, at = gap.worst, gap.at
        rms = math.sqrt(gap.square / max(gap.count, 1)) / part.scale
        where = f"slice {number + 1} of {len(expected.slices)}: "
        for value, limit, what in (
            (rms, _rms_limit(expected, part), "relative RMS error"),
            (gap.worst, _worst_limit(expected, part), "worst error, relative to the scale,"),
        ):
            if not value <= limit and (failed is None or value / limit > failed[0]):
                excess = value / limit
                failed = (excess, gap.at, f"{where}{what} {value:.3g} is above {limit:.3g}")
    rms = math.sqrt(total / max(elements, 1)) / expected.whole.scale
    limit = _rms_limit(expected, expected.whole)
    if failed is None and not rms <= limit:
        failed = (rms / limit, at, f"relative RMS error {rms:.3g} is above {limit:.3g}")
    error = _error(expected, case=case, inputs=inputs, rms=rms, worst=worst)
    if failed is not None:
        return _failure(error, expected, flat, failed[1], failed[2])
    if kernelbench and (index := _outside_kernelbench(flat, expected)) is not None:
        tolerance = KERNELBENCH_TOLERANCE.get(expected.dtype, 1e-4)
        what = f"outside KernelBench's tolerance (atol = rtol = {tolerance:g}) of PyTorch's result"
        return _failure(error, expected, flat, index, what)
    return OutputFinding(error)


def _rms_limit(expected: Expected, part: SliceScale) -> float:
    floor = max(_eps(expected.dtype), expected.response / part.scale)
    return max(
        OWN_ERROR_FACTOR * part.own_rms,
        RMS_FACTOR.get(expected.dtype, WIDE_RMS_FACTOR) * floor,
    )


def _worst_limit(expected: Expected, part: SliceScale) -> float:
    floor = max(_eps(expected.dtype), expected.response / part.scale)
    return max(
        OWN_ERROR_FACTOR * part.own_worst,
        WORST_FACTOR.get(expected.dtype, WIDE_WORST_FACTOR) * floor,
    )


def _eps(dtype: str) -> float:
    return torch.finfo(getattr(torch, dtype)).eps


@dataclass(frozen=True)
class _Gaps:
    square: float  # sum of squared errors over the finite elements
    count: int  # how many those are
    worst: float  # largest error over max(scale, |expected|)
    at: int  # its position
    misplaced: int | None  # the first NaN or infinity that should not be, or is missing


def _gaps(
    actual: torch.Tensor,
    oracle: torch.Tensor,
    own: torch.Tensor,
    start: int,
    stop: int,
    scale: float,
    *,
    finite: bool,
) -> _Gaps:
    square, count, worst, at = 0.0, 0, -1.0, start
    for low, high in _chunks(actual, start, stop):
        a, e, t = (x[low:high].to(torch.float64) for x in (actual, oracle, own))
        used = high - low
        gap = a - e
        part = float(torch.dot(gap, gap))
        if not (math.isfinite(part) and finite):
            like_own, like_oracle = _alike(a, t), _alike(a, _rounded(oracle[low:high], own.dtype))
            if not bool((like_own | like_oracle).all()):
                first = int((~(like_own | like_oracle)).nonzero()[0, 0])
                return _Gaps(square, count, worst, at, low + first)
            usable = a.isfinite() & (e.isfinite() | t.isfinite())
            e = torch.where(e.isfinite() & like_oracle, e, t)  # overflow on one side only
            a, e = torch.where(usable, a, 0.0), torch.where(usable, e, 0.0)
            used = int(usable.sum())
            gap = a - e
            part = float(torch.dot(gap, gap))
        square += part
        count += used
        relative = gap.abs_().div_(e.abs().clamp_(min=scale))
        position = int(relative.argmax())
        if float(relative[position]) > worst:
            worst, at = float(relative[position]), low + position
    return _Gaps(square, count, max(worst, 0.0), at, None)


def _square(oracle: torch.Tensor, own: torch.Tensor, start: int, stop: int) -> tuple[float, int]:
    """The sum of squares of the expected values, and how many of them are finite."""
    total, count = 0.0, 0
    for low, high in _chunks(oracle, start, stop):
        values, theirs = (x[low:high].to(torch.float64) for x in (oracle, own))
        square = float(torch.dot(values, values))
        used = high - low
        if not math.isfinite(square + float(theirs.sum())):
            finite = values.isfinite() & theirs.isfinite()
            values = torch.where(finite, values, 0.0)
            square, used = float(torch.dot(values, values)), int(finite.sum())
        total += square
        count += used
    return total, count


def _outside_kernelbench(actual: torch.Tensor, expected: Expected) -> int | None:
    tolerance = KERNELBENCH_TOLERANCE.get(expected.dtype, 1e-4)
    for low, high in _chunks(actual, 0, actual.numel()):
        a, t = (x[low:high].to(torch.float64) for x in (actual, expected.own))
        far = (a - t).abs_().sub_(t.abs().mul_(tolerance))
        if expected.whole.finite and float(far.max()) <= tolerance:
            continue
        close = a.isclose(t, rtol=tolerance, atol=tolerance, equal_nan=True)
        if not bool(close.all()):
            return low + int((~close).nonzero()[0, 0])
    return None


def _alike(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Where both are finite, or both NaN, or the same infinity."""
    both = one.isfinite() & other.isfinite()
    return both | (one.isnan() & other.isnan()) | (one == other)


def _rounded(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return values.to(dtype).to(torch.float64)


def _flat(values: torch.Tensor) -> torch.Tensor:
    values = values.detach()
    return (torch.view_as_real(values) if values.is_complex() else values).reshape(-1)


def _bounds(shape: tuple[int, ...], elements: int) -> list[tuple[int, int]]:
    """At most 64 ranges of the flattened output, cut between rows where there are enough."""
    if elements == 0:
        return [(0, 0)]
    count = max(1, min(_SLICES, elements // _LEAST_SLICE))
    row = shape[-1] if shape else 1
    unit = row if elements % row == 0 and elements // row >= count else 1
    rows = elements // unit
    cuts = [rows * number // count * unit for number in range(count + 1)]
    return [(low, high) for low, high in pairwise(cuts) if high > low]


def _chunks(values: torch.Tensor, start: int, stop: int) -> Iterator[tuple[int, int]]:
    step = _CHUNK if values.device.type == "cpu" else _CHUNK_ON_DEVICE
    for low in range(start, stop, step):
        yield low, min(low + step, stop)


def _error(expected: Expected, *, case: str, inputs: str, rms: float, worst: float) -> OutputError:
    floating = bool(expected.slices)
    return OutputError(
        case=case,
        inputs=inputs,
        output=expected.path,
        relative_rms=rms,
        relative_rms_torch=expected.whole.own_rms,
        relative_rms_limit=_rms_limit(expected, expected.whole) if floating else 0.0,
        worst=worst,
        worst_torch=expected.whole.own_worst,
        worst_limit=_worst_limit(expected, expected.whole) if floating else 0.0,
    )


def _failure(
    error: OutputError, expected: Expected, flat: torch.Tensor, position: int, what: str
) -> OutputFinding:
    index = _unraveled(position, expected)
    values: dict[str, JsonValue] = {
        "expected": _shown(expected.oracle[position]),
        "got": _shown(flat[position]),
        "torch": _shown(expected.own[position]),
    }
    message = (
        f"{_called(expected)} {index}: expected {values['expected']}, got {values['got']} "
        f"(PyTorch: {values['torch']}); {what}"
    )
    evidence: dict[str, JsonValue] = {"output": expected.path, "index": list(index), **values}
    return OutputFinding(error, message, {**evidence, "rule": what})


def _unraveled(position: int, expected: Expected) -> list[int]:
    if expected.dtype.startswith("complex"):
        position //= 2
    index = []
    for extent in reversed(expected.shape):
        index.append(position % extent)
        position //= extent
    return index[::-1]


def _shown(value: torch.Tensor) -> JsonValue:
    number: bool | int | float = value.item()
    return repr(number) if isinstance(number, float) and not math.isfinite(number) else number


def _called(expected: Expected) -> str:
    if expected.path.startswith("changed "):
        return expected.path
    return f"output {expected.path!r}" if expected.path else "the output"
