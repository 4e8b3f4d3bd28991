"""The race of configs."""

import subprocess
import sys
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerntree.plans.candidate import Candidate
from kerntree.search.tree import config_key
from kerntree.search.tuner import Trial, next_config, projected

TUNABLES = {"BLOCK": (16, 32, 64, 128, 256), "UNROLL": (1, 2, 4), "FIXED": (8,)}


def race(tunables, value, *, start=None, history=(), neighbours=4, limit=12, seed=0):
    """The whole race from `start`; the trials in order."""
    trials = list(history)
    if not trials:
        first = start or {name: values[0] for name, values in tunables.items()}
        trials.append(Trial(first, value(first)))
    while True:
        config = next_config(tunables, trials, neighbours=neighbours, limit=limit, seed=seed)
        if config is None:
            return trials
        trials.append(Trial(config, value(config)))


def peak(config):
    return -abs(TUNABLES["BLOCK"].index(config["BLOCK"]) - 3) - abs(config["UNROLL"] - 4)


def test_neighbours_come_in_the_order_of_the_tunables():
    start = {"BLOCK": 32, "UNROLL": 2, "FIXED": 8}
    trials = race(TUNABLES, lambda c: 0.0 if c == start else -1.0, start=start, limit=5)
    assert [trial.config for trial in trials[1:]] == [
        {**start, "BLOCK": 64},
        {**start, "BLOCK": 16},
        {**start, "UNROLL": 4},
        {**start, "UNROLL": 1},
    ]


def test_climbs_to_the_peak():
    trials = race(TUNABLES, peak, neighbours=8, limit=12)
    assert max(trials, key=lambda t: t.value).config == {"BLOCK": 128, "UNROLL": 4, "FIXED": 8}


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), max_size=3),
    limit=st.integers(1, 14),
    seed=st.integers(0, 5),
    broken=st.integers(0, 3),
)
def test_no_config_twice_none_inadmissible_and_no_more_than_allowed(sizes, limit, seed, broken):
    tunables = {f"T{i}": tuple(2**k for k in range(size)) for i, size in enumerate(sizes)}

    def value(config):
        return None if broken and sum(config.values()) % 4 < broken else float(sum(config.values()))

    trials = race(tunables, value, limit=limit, seed=seed)
    keys = [config_key(trial.config) for trial in trials]
    assert len(keys) == len(set(keys)) == min(limit, prod(sizes))
    for trial in trials:
        assert list(trial.config) == list(tunables)
        assert all(v in tunables[name] for name, v in trial.config.items())


@pytest.mark.parametrize("cut", [1, 3, 6, 9])
def test_a_race_taken_up_again_goes_on_as_it_would_have(cut):
    whole = race(TUNABLES, peak, seed=3)
    assert race(TUNABLES, peak, history=whole[:cut], seed=3) == whole


def test_the_seed_matters_once_the_model_proposes():
    races = {
        tuple(config_key(t.config) for t in race(TUNABLES, peak, neighbours=0, seed=s))
        for s in range(4)
    }
    assert len(races) > 1


def test_infeasible_configs_do_not_end_the_race():
    trials = race(TUNABLES, lambda config: None if config["BLOCK"] < 64 else peak(config))
    assert max(t.value for t in trials if t.value is not None) >= -1


def test_nothing_to_tune_ends_at_once():
    assert race({}, lambda config: 0.0) == [Trial({}, 0.0)]
    assert len(race({"FIXED": (8,)}, lambda config: 0.0)) == 1


def test_a_parents_config_is_projected_to_what_this_candidate_admits():
    own = Candidate(
        source="",
        language="cpp",
        tunables={"BLOCK": (16, 64), "UNROLL": (1, 2)},
        config={"BLOCK": 16, "UNROLL": 2},
    )
    assert projected({"BLOCK": 128, "OTHER": 3}, own) == {"BLOCK": 64, "UNROLL": 2}
    assert projected({}, own) == own.config


def test_importing_the_tuner_does_not_import_optuna():
    code = (
        "import sys, kerntree.search.loop; print(*[name in sys.modules for name in sys.argv[1:]])"
    )
    command = [sys.executable, "-c", code, "optuna", "torch"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
