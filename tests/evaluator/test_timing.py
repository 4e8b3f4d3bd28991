import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerntree.evaluator.guard import PlainGuard
from kerntree.evaluator.settings import TimingRules
from kerntree.evaluator.timing import (
    BlockTimes,
    WeightedLogs,
    abba,
    always_unexplained_ns,
    calls_per_block,
    combined,
    enough,
    interval_of_median,
    log_ratios,
    pairs_needed,
    summarize,
    unexplained_ns,
)
from kerntree.plans.evaluation import Verdict
from kerntree.plans.problem import Case

RULES = TimingRules()
CASE = Case(name="one", inputs=(), outputs=(), output_tree=None)


def noisy_blocks(generator, *, mean_ns, pairs, calls=4):
    """Blocks with what a shared machine does: spread, slow drift, and every tenth call hit."""
    drift = 1 + 0.1 * np.sin(np.arange(pairs) / 5)
    blocks = []
    for number in range(pairs):
        times = mean_ns * drift[number] * np.exp(generator.normal(0, 0.03, calls))
        times *= np.where(generator.random(calls) < 0.1, generator.uniform(1.5, 5, calls), 1)
        blocks.append(BlockTimes(tuple(times), float(times.sum() * 1.5)))
    return blocks


def gain(generator, *, speedup, confidence):
    rules = RULES
    pairs = rules.duel_pairs * rules.duel_rounds
    logs = log_ratios(
        noisy_blocks(generator, mean_ns=1e6 / speedup, pairs=pairs),
        noisy_blocks(generator, mean_ns=1e6, pairs=pairs),
    )
    return combined([WeightedLogs(logs, 1.0)], confidence=confidence, generator=generator)


def test_even_candidates_seldom_win_and_a_gain_of_five_percent_is_mostly_found():
    generator = np.random.default_rng(7)
    confidence = RULES.duel_confidence
    false = sum(gain(generator, speedup=1.0, confidence=confidence).low > 0 for _ in range(400))
    found = sum(gain(generator, speedup=1.05, confidence=confidence).low > 0 for _ in range(100))
    assert false <= 8
    assert found >= 70


def test_stopping_early_does_not_make_winners_of_even_candidates():
    generator = np.random.default_rng(11)
    wins = 0
    for _ in range(200):
        fast = noisy_blocks(generator, mean_ns=1e6, pairs=RULES.pairs_high)
        slow = noisy_blocks(generator, mean_ns=1e6, pairs=RULES.pairs_high)
        logs: tuple[float, ...] = ()
        for pairs in range(1, RULES.pairs_high + 1):
            logs = log_ratios(fast[:pairs], slow[:pairs])
            if enough(logs, rules=RULES):
                break
        wins += interval_of_median(logs, confidence=0.95, generator=generator).low > 0
    assert wins <= 14  # 2.5 % are expected of a two-sided 95 % interval


def test_a_quiet_comparison_stops_at_the_least_number_of_pairs():
    assert not enough((0.1,) * (RULES.pairs_low - 1), rules=RULES)
    assert enough((0.1,) * RULES.pairs_low, rules=RULES)


def test_a_noisy_comparison_stops_at_the_greatest_number_of_pairs():
    wild = tuple((-1.0) ** k for k in range(RULES.pairs_high))
    assert not enough(wild[:-1], rules=RULES)
    assert enough(wild, rules=RULES)


def test_the_number_of_pairs_grows_with_the_spread_of_the_first():
    needed = [
        pairs_needed(tuple(scale * value for value in (-3, -2, -1, -1, 1, 1, 2, 3)), rules=RULES)
        for scale in (0.001, 0.01, 0.015, 0.1)
    ]
    assert needed[0] == RULES.pairs_low < needed[2] < needed[3] == RULES.pairs_high
    assert needed == sorted(needed)


def test_a_hopeless_candidate_is_not_measured_for_long():
    assert not enough((-3.0, -1.0), rules=RULES)
    assert enough((-3.0, -2.5, -3.5), rules=RULES)
    assert not enough((-1.0, -1.5, -0.5), rules=RULES)


def test_pairs_alternate_which_side_goes_first():
    order = list(abba(4))
    assert order[0] == ("candidate", "baseline")
    assert order[1] == ("baseline", "candidate")
    assert order[2:] == order[:2]
    assert next(iter(abba(1, first="baseline"))) == ("baseline", "candidate")


@pytest.mark.parametrize(
    ("seconds", "calls"), [(0.0, RULES.calls), (1e-6, RULES.calls), (10.0, 1), (0.005, 4)]
)
def test_a_block_is_as_many_calls_as_fit(seconds, calls):
    assert calls_per_block(seconds, RULES) == calls


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(-3, 3), min_size=1, max_size=30),
    st.integers(0, 2**32 - 1),
    st.floats(-2, 2),
)
def test_the_interval_holds_its_median_and_shifts_with_the_values(values, seed, shift):
    first = interval_of_median(values, confidence=0.95, generator=np.random.default_rng(seed))
    moved = interval_of_median(
        [value + shift for value in values],
        confidence=0.95,
        generator=np.random.default_rng(seed),
    )
    assert min(values) - 1e-12 <= first.low <= first.middle <= first.high <= max(values) + 1e-12
    assert moved.low == pytest.approx(first.low + shift, abs=1e-9)
    assert moved.high == pytest.approx(first.high + shift, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(10.0, 1e9), min_size=4, max_size=12), st.floats(0.25, 4.0))
def test_ratios_ignore_the_speed_of_the_machine(times, scale):
    fast = [BlockTimes((t,), t) for t in times]
    slow = [BlockTimes((2 * t,), 2 * t) for t in times]
    scaled = [BlockTimes((t * scale,), t) for t in times]
    slow_scaled = [BlockTimes((2 * t * scale,), t) for t in times]
    assert log_ratios(fast, slow) == pytest.approx([1.0] * len(times))
    assert log_ratios(scaled, slow_scaled) == pytest.approx([1.0] * len(times))


def test_a_reward_weighs_the_cases():
    generator = np.random.default_rng(0)
    even, double = WeightedLogs((0.0,) * 4, 3.0), WeightedLogs((1.0,) * 4, 1.0)
    interval = combined([even, double], confidence=0.95, generator=generator)
    assert interval.middle == pytest.approx(0.25)
    assert (interval.low, interval.high) == pytest.approx((0.25, 0.25))
    with pytest.raises(ValueError, match="weight"):
        combined([], confidence=0.95, generator=generator)


def test_one_outlier_in_a_block_changes_nothing():
    generator = np.random.default_rng(0)
    quiet = BlockTimes((100.0, 101.0, 102.0), 400.0)
    hit = BlockTimes((100.0, 101.0, 90_000.0), 90_400.0)
    timing = summarize(
        "one",
        baseline_name="eager",
        candidate=[quiet] * 7 + [hit],
        baseline=[BlockTimes((202.0,) * 3, 800.0)] * 8,
        confidence=0.95,
        floor_ns=1.0,
        generator=generator,
    )
    assert timing.median_ns == 101.0
    assert timing.ratio == pytest.approx(2.0)
    assert timing.ratio_low == timing.ratio_high == timing.ratio
    assert len(timing.candidate_ns) == 24


def objection(*, claim_us, wall_us, overhead_us=1000.0, floor_ns=None, calls=4):
    candidate = [BlockTimes((claim_us * 1e3,) * calls, wall_us * 1e3 * calls)] * 4
    baseline = [BlockTimes((5e5,) * calls, (5e5 + overhead_us * 1e3) * calls)] * 4
    found = PlainGuard().after(CASE, candidate=candidate, baseline=baseline, floor_ns=floor_ns)
    return None if found is None else (found.verdict, found.message)


def test_honest_times_raise_no_objection():
    assert objection(claim_us=500, wall_us=1500) is None
    assert objection(claim_us=50, wall_us=1100, floor_ns=20_000.0) is None
    assert objection(claim_us=5000, wall_us=6200) is None


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (objection(claim_us=2000, wall_us=1500), "clocks"),
        (objection(claim_us=10, wall_us=3000), "longer"),
        (objection(claim_us=10, wall_us=1010, floor_ns=2e4), "impossible"),
    ],
)
def test_times_that_cannot_be_true_are_refused(found, words):
    assert found is not None
    assert found[0] is Verdict.FORGED
    assert words in found[1]


def test_unexplained_time_is_per_call():
    assert unexplained_ns([BlockTimes((10.0, 10.0), 60.0)] * 3) == 20.0
    assert unexplained_ns([]) == 0.0


def test_a_busy_moment_is_not_taken_for_work_that_ends_late():
    quiet, waiting = BlockTimes((10.0, 10.0), 24.0), BlockTimes((10.0, 10.0), 900.0)
    assert always_unexplained_ns([quiet, *[waiting] * 7]) == 2.0
    late, honest = BlockTimes((1.0, 1.0), 40.0), BlockTimes((20.0, 20.0), 42.0)
    assert always_unexplained_ns([late, late, late, honest]) == 19.0
    assert always_unexplained_ns([]) == 0.0
    assert math.isclose(BlockTimes((1.0, 2.0, 9.0), 20.0).median_ns, 2.0)
