"""The race of configs where every case has tunables of its own."""

from math import prod

import pytest

from kerntree.plans.candidate import Candidate
from kerntree.search.case_race import CaseTrial, next_of_race
from kerntree.search.tree import config_key

SIZES = (1, 2, 4, 8, 16)
CASES = ("small", "large")
TUNABLES = {f"{size}_{case}": SIZES for case in CASES for size in ("ROWS", "WARPS")}
BY_CASE = {case: (f"ROWS_{case}", f"WARPS_{case}") for case in CASES}
PEAKS = {"small": (1, 4), "large": (16, 8)}


def candidate(tunables=TUNABLES, by_case=BY_CASE):
    return Candidate(
        source="", language="triton", tunables=tunables, case_tunables=by_case,
        config={name: values[1] for name, values in tunables.items()},
    )  # fmt: skip


def case_value(case, config):
    found = (config[f"ROWS_{case}"], config[f"WARPS_{case}"])
    steps = zip(found, PEAKS[case], strict=True)
    return -float(sum(abs(SIZES.index(a) - SIZES.index(b)) for a, b in steps))


def trial(config, refused=lambda config: False):
    if refused(config):
        return CaseTrial(config, None, {})
    values = {case: case_value(case, config) for case in CASES}
    return CaseTrial(config, sum(values.values()) / len(values), values)


def race(tuned, *, measure=trial, neighbours=8, limit=14, history=()):
    trials = list(history) or [measure(tuned.config)]
    while True:
        config = next_of_race(tuned, trials, neighbours=neighbours, limit=limit, seed=0)
        if config is None:
            return trials
        assert config_key(config) not in {config_key(t.config) for t in trials}
        assert all(value in tuned.tunables[name] for name, value in config.items())
        trials.append(measure(config))


def test_cases_climb_side_by_side_to_different_peaks():
    trials = race(candidate())
    best = max(trials, key=lambda t: t.value)
    assert best.config == {"ROWS_small": 1, "WARPS_small": 4, "ROWS_large": 16, "WARPS_large": 8}
    assert len(trials) <= 14 < prod(len(values) for values in TUNABLES.values())


@pytest.mark.parametrize("limit", [3, 4, 6, 9])
def test_the_last_trial_joins_the_best_of_each_case(limit):
    trials = race(candidate(), neighbours=4, limit=limit)
    assert len(trials) == limit
    for case in CASES:
        before = max(case_value(case, t.config) for t in trials[:-1])
        assert case_value(case, trials[-1].config) >= before


def test_what_did_not_work_ends_no_race_and_is_not_joined():
    def measure(config):
        return trial(config, refused=lambda c: c["WARPS_large"] == 8)

    trials = race(candidate(), measure=measure)
    best = max((t for t in trials if t.value is not None), key=lambda t: t.value)
    assert best.config["WARPS_large"] != 8
    assert case_value("small", best.config) == 0.0


def test_a_race_taken_up_again_goes_on_as_it_would_have():
    whole = race(candidate())
    for cut in (1, 3, 7):
        assert race(candidate(), history=whole[:cut]) == whole


def test_tunables_for_all_cases_follow_the_whole_reward():
    tunables = {**TUNABLES, "LANES": SIZES}

    def measure(config):
        base = trial(config)
        extra = -abs(SIZES.index(config["LANES"]) - 4)
        return CaseTrial(config, base.value + extra, base.case_values)

    trials = race(candidate(tunables), measure=measure)
    assert max(trials, key=lambda t: t.value).config["LANES"] == 16


def test_without_cases_it_is_the_plain_race():
    trials = race(candidate(by_case={}), neighbours=4, limit=5)
    first = trials[0].config
    assert [t.config for t in trials[1:]][:2] == [
        {**first, "ROWS_small": 4},
        {**first, "ROWS_small": 1},
    ]
