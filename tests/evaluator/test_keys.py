import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerntree.cache.memo import key_of
from kerntree.evaluator.keys import (
    canonical_source,
    evaluation_parts,
    problem_parts,
    samples_key,
    source_key,
)
from kerntree.evaluator.settings import EvaluatorSettings, TimingRules, Trials
from kerntree.plans.candidate import Candidate
from kerntree.plans.graph import contiguous
from kerntree.plans.problem import Case, InputSpec, OutputSpec, Problem

SPEC = contiguous((2, 3), "float32")
CASE = Case(
    name="one",
    inputs=(InputSpec(path="0", name="x", tensor=SPEC),),
    outputs=(OutputSpec(path="", tensor=SPEC),),
    output_tree=0,
)
PROBLEM = Problem(name="p", path="/a/p.py", folder="/a", source="class Model: ...", cases=(CASE,))
CANDIDATE = Candidate(
    source="class ModelNew: ...", language="cpp", tunables={"T": (1, 2)}, config={"T": 1}
)
BASE = {
    "problem": PROBLEM,
    "siblings": {},
    "candidate": CANDIDATE,
    "config": {},
    "device": {"model": "x"},
    "versions": {"torch": "2.13"},
    "settings": EvaluatorSettings(),
}


def parts(**changes):
    given_ = {**BASE, **changes}
    return evaluation_parts(
        problem_parts(given_["problem"], siblings=given_["siblings"]),
        given_["candidate"],
        given_["config"],
        device=given_["device"],
        versions=given_["versions"],
        settings=given_["settings"],
    )


def key(**changes):
    return key_of(parts(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"problem": PROBLEM.replaced(source="class Model: pass")},
        {"problem": PROBLEM.replaced(mode="eval")},
        {"problem": PROBLEM.replaced(cases=(CASE.replaced(weight=2.0),))},
        {"siblings": {"ops.py": "d1"}},
        {"candidate": CANDIDATE.replaced(source="class ModelNew: pass")},
        {"config": {"T": 2}},
        {"device": {"model": "y"}},
        {"versions": {"torch": "2.11"}},
        {"settings": EvaluatorSettings(precision="half")},
        {"settings": EvaluatorSettings(outputs_only=True)},
        {"settings": EvaluatorSettings(trials=Trials(given=3))},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_decides_an_evaluation_changes_its_key(changes):
    assert key(**changes) != key()


@pytest.mark.parametrize(
    "changes",
    [
        {"problem": PROBLEM.replaced(path="/b/p.py", folder="/b", name="q")},
        {"problem": PROBLEM.replaced(source="class Model: ...\r\n\r\n")},
        {"problem": PROBLEM.replaced(warnings=("odd",))},
        {"candidate": CANDIDATE.replaced(program={"groups": []}, kernels=("k",))},
        {"config": {"T": 1}},
        {"settings": EvaluatorSettings(timing=TimingRules(pairs_high=40))},
        {"settings": EvaluatorSettings(trials=Trials(renew_after=3))},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_does_not_decide_it_leaves_the_key(changes):
    assert key(**changes) == key()


def test_configs_of_one_source_share_its_key():
    assert source_key(parts(config={"T": 2})) == source_key(parts())
    assert source_key(parts(device={"model": "y"})) != source_key(parts())
    assert source_key(parts()) != key()


def test_samples_have_a_key_for_each_case():
    assert samples_key("k", "one") != samples_key("k", "two")
    assert samples_key("k", "one") != samples_key("j", "one")


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=60))
def test_the_canonical_source_is_its_own(source):
    once = canonical_source(source)
    assert canonical_source(once) == once
    assert canonical_source(source.replace("\n", "\r\n")) == once
