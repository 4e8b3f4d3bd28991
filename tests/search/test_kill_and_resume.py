"""The experiment of benchmarks/kill_and_resume.py, in small."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kill_and_resume.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("kill_and_resume", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_killed_at_random_moments_a_run_ends_and_repeats_nothing(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "temporary_files", set)  # other tests write there meanwhile
    found = script.trial(kills=1, evaluations=2, seed=5, place=tmp_path, longest=12.0)
    assert found["kills"] == 1
    assert found["builds"] > 0
    assert found["faults"] == []


def event(sequence, kind, **data):
    return {"sequence": sequence, "time": float(sequence), "kind": kind, "data": data}


def test_a_repeated_measurement_would_be_found(script):
    node = event(0, "node", identity="n", candidate={"source": "int x;"})
    once = event(2, "evaluated", node="n", config={"A": 1}, evaluation={"verdict": "correct"})
    again = event(4, "evaluated", node="n", config={"A": 1}, evaluation={"verdict": "correct"})
    assert script.twice([node, once]) == []
    assert len(script.twice([node, once, again])) == 1


def test_a_build_that_led_to_nothing_would_be_found(script):
    node = event(0, "node", identity="n", candidate={"source": "int x;"})
    first = event(2, "evaluated", node="n", config={"A": 1}, evaluation={"verdict": "correct"})
    second = event(4, "evaluated", node="n", config={"A": 2}, evaluation={"verdict": "correct"})
    events = [node, first, second]
    honest = script.Build(1.0, "int x;", {"A": 1})
    repeated = script.Build(3.0, "int x;", {"A": 1})
    cut_off = script.Build(5.0, "int x;", {"A": 3})
    assert script.unexplained([honest, cut_off], events, (0, 3)) == []
    assert len(script.unexplained([repeated], events, (0, 3))) == 1
