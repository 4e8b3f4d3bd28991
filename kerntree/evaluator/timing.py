"""The statistics of timing: paired blocks, bootstrap intervals, when to stop. No clock, no I/O.

Candidate and baseline are measured in turn, in ABBA order, so that drift of the machine falls on
both alike; the unit of resampling is the pair of neighbouring blocks, since calls within a block
are not independent (Georges et al., OOPSLA 2007, on sources of variance).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kerntree.evaluator.settings import TimingRules
from kerntree.plans.evaluation import CaseTiming

Floats = NDArray[np.float64]
_RESAMPLES = 1000
_HOPELESS_AFTER = 3  # pairs
_MAD_TO_SIGMA = 1.4826
Side = Literal["candidate", "baseline"]


@dataclass(frozen=True)
class BlockTimes:
    """One block: nanoseconds that each call claims, and the wall time that the supervisor saw."""

    calls_ns: tuple[float, ...]
    wall_ns: float

    @property
    def median_ns(self) -> float:
        return float(np.median(self.calls_ns))


@dataclass(frozen=True)
class Interval:
    """A median and its interval."""

    middle: float
    low: float
    high: float


@dataclass(frozen=True)
class WeightedLogs:
    """log2 ratios of the pairs of one case, and the weight of the case."""

    logs: tuple[float, ...]
    weight: float


def abba(pairs: int, *, first: Side = "candidate") -> Iterator[tuple[Side, Side]]:
    """The order of the two sides in each pair: AB, BA, AB, …"""
    second: Side = "baseline" if first == "candidate" else "candidate"
    for number in range(pairs):
        yield (first, second) if number % 2 == 0 else (second, first)


def calls_per_block(call_seconds: float, rules: TimingRules) -> int:
    """How many calls, each with its overhead, make a block of about `rules.block_seconds`."""
    if call_seconds <= 0:
        return rules.calls
    return int(min(max(rules.block_seconds / call_seconds, 1), rules.calls))


def log_ratios(
    candidate: Sequence[BlockTimes], baseline: Sequence[BlockTimes]
) -> tuple[float, ...]:
    """log2(baseline / candidate) of each pair; above 0: the candidate is faster."""
    return tuple(
        float(np.log2(slow.median_ns / fast.median_ns))
        for fast, slow in zip(candidate, baseline, strict=True)
    )


def interval_of_median(
    values: Sequence[float], *, confidence: float, generator: np.random.Generator
) -> Interval:
    """The median with a bootstrap interval (percentile); the median alone for one value."""
    data = np.asarray(values, dtype=np.float64)
    middle = float(np.median(data))
    low, high = _percentiles(_resampled_medians(data, generator), confidence)
    return Interval(middle, min(low, middle), max(high, middle))


def combined(
    cases: Sequence[WeightedLogs], *, confidence: float, generator: np.random.Generator
) -> Interval:
    """The weighted mean over cases of their median log2 ratios, with its interval.

    Each case is resampled by itself. Raises `ValueError` without cases.
    """
    total = sum(case.weight for case in cases)
    if not cases or total <= 0:
        raise ValueError("a reward needs a case of positive weight")
    draws = np.zeros(_RESAMPLES)
    middle = 0.0
    for case in cases:
        data = np.asarray(case.logs, dtype=np.float64)
        share = case.weight / total
        middle += share * float(np.median(data))
        draws += share * _resampled_medians(data, generator)
    low, high = _percentiles(draws, confidence)
    return Interval(middle, min(low, middle), max(high, middle))


def pairs_needed(first: Sequence[float], *, rules: TimingRules) -> int:
    """How many pairs make the interval as narrow as `rules.width`, judged by the first ones.

    The number is fixed once, from the spread of the first `rules.pairs_low` pairs alone (Stein,
    1945). Stopping whenever the interval looks narrow, or when the candidate has won, would make
    winners of even candidates: three times as many as the interval promises.
    """
    data = np.asarray(first, dtype=np.float64)
    spread = _MAD_TO_SIGMA * float(np.median(np.abs(data - np.median(data))))
    half = float(np.log2(1 + rules.width / 2))
    # the standard error of a median is 1.2533 sigma / sqrt(n); 1.96 of them make 95 %
    pairs = int(np.ceil((1.96 * 1.2533 * spread / half) ** 2))
    return min(max(pairs, rules.pairs_low), rules.pairs_high)


def enough(logs: Sequence[float], *, rules: TimingRules) -> bool:
    """Whether to stop measuring a case after these pairs."""
    if len(logs) >= _HOPELESS_AFTER and float(np.median(logs)) < -np.log2(rules.hopeless):
        return True
    if len(logs) < rules.pairs_low:
        return False
    return len(logs) >= pairs_needed(logs[: rules.pairs_low], rules=rules)


def summarize(
    case: str,
    *,
    baseline_name: str,
    candidate: Sequence[BlockTimes],
    baseline: Sequence[BlockTimes],
    confidence: float,
    floor_ns: float | None,
    generator: np.random.Generator,
) -> CaseTiming:
    """The record of one case. Raises `ValueError` without a pair."""
    if not candidate:
        raise ValueError(f"case {case} has no timing samples")
    ratio = interval_of_median(
        log_ratios(candidate, baseline), confidence=confidence, generator=generator
    )
    own = interval_of_median(
        [block.median_ns for block in candidate], confidence=confidence, generator=generator
    )
    return CaseTiming(
        case=case,
        baseline=baseline_name,
        candidate_ns=tuple(value for block in candidate for value in block.calls_ns),
        baseline_ns=tuple(value for block in baseline for value in block.calls_ns),
        median_ns=own.middle,
        median_low_ns=own.low,
        median_high_ns=own.high,
        baseline_median_ns=float(np.median([block.median_ns for block in baseline])),
        ratio=2.0**ratio.middle,
        ratio_low=2.0**ratio.low,
        ratio_high=2.0**ratio.high,
        floor_ns=floor_ns,
    )


def unexplained_ns(blocks: Sequence[BlockTimes]) -> float:
    """Wall time per call that the claims do not account for: the median over blocks."""
    return float(np.median([_unexplained(block) for block in blocks] or [0.0]))


def always_unexplained_ns(blocks: Sequence[BlockTimes]) -> float:
    """The least such time among the blocks that claim to be the faster half.

    A busy machine makes some blocks wait. Work that ends after its call has returned makes all
    of them wait that gain by it.
    """
    if not blocks:
        return 0.0
    half = float(np.median([block.median_ns for block in blocks]))
    return min(_unexplained(block) for block in blocks if block.median_ns <= half)


def _unexplained(block: BlockTimes) -> float:
    return (block.wall_ns - sum(block.calls_ns)) / max(len(block.calls_ns), 1)


def _resampled_medians(data: Floats, generator: np.random.Generator) -> Floats:
    if data.size == 1:
        return np.full(_RESAMPLES, data[0])
    picks = generator.integers(0, data.size, size=(_RESAMPLES, data.size))
    return np.asarray(np.median(data[picks], axis=1), dtype=np.float64)


def _percentiles(draws: Floats, confidence: float) -> tuple[float, float]:
    tail = 50 * (1 - confidence)
    low, high = np.percentile(draws, [tail, 100 - tail])
    return float(low), float(high)
