"""How the rule planner ranks."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerntree.plans.candidate import Candidate
from kerntree.plans.finding import Finding
from kerntree.plans.problem import Problem
from kerntree.plans.protocols import Planner
from kerntree.plans.rules import RulePlanner
from kerntree.plans.strategy import Strategy

PROBLEM = Problem(name="p", path="p.py", folder=".", source="", cases=())
CANDIDATE = Candidate(source="", language="cpp")


@dataclass(frozen=True)
class Tried:
    strategy: Strategy
    correct: bool
    gain: float | None = None


def strategy(kind: str, *, gain: float = 0.0, unlocks: float = 0.0) -> Strategy:
    return Strategy(
        kind=kind,
        target="k",
        instruction="Do it.",
        expected_gain=gain,
        enabling=unlocks > gain,
        parameters={"unlocks": unlocks},
    )


def ranked(
    *applicable: Strategy, finding: Finding | None = None, history: tuple[Tried, ...] = ()
) -> dict[str, Strategy]:
    planner: Planner = RulePlanner()
    proposed = planner.propose(
        PROBLEM,
        CANDIDATE,
        plan=(),
        applicable=applicable,
        evaluation=None,
        finding=finding,
        history=history,
    )
    assert [s.prior for s in proposed] == sorted((s.prior for s in proposed), reverse=True)
    return {s.kind: s for s in proposed}


def test_nothing_applicable_gives_no_proposal():
    assert ranked() == {}


def test_the_larger_expected_gain_comes_first():
    assert list(ranked(strategy("tile", gain=0.1), strategy("vectorize", gain=2.0))) == [
        "vectorize",
        "tile",
    ]


def test_an_enabling_step_is_worth_what_it_unlocks():
    proposed = ranked(strategy("lower", gain=-3.0, unlocks=1.5), strategy("other", gain=0.2))
    assert next(iter(proposed)) == "lower"
    assert proposed["lower"].enabling
    assert "within reach" in proposed["lower"].rationale


def test_the_finding_breaks_ties():
    finding = Finding(limit="launches", statement="12 launches", recommended=("fuse",))
    proposed = ranked(strategy("tile"), strategy("fuse"), finding=finding)
    assert proposed["fuse"].prior > proposed["tile"].prior
    assert "12 launches" in proposed["fuse"].rationale


def test_failures_of_a_kind_lower_its_prior_and_raise_its_risk():
    applicable = (strategy("tile", gain=1.0), strategy("stream", gain=1.0))
    before = ranked(*applicable)
    after = ranked(*applicable, history=(Tried(strategy("tile"), False),) * 3)
    assert after["tile"].prior < before["tile"].prior
    assert after["tile"].risk == pytest.approx(0.75)
    assert after["stream"].prior == before["stream"].prior


def test_failures_do_not_count_as_losses_of_time():
    after = ranked(strategy("tile", gain=1.0), history=(Tried(strategy("tile"), False),))
    assert after["tile"].expected_gain == 1.0


def test_measured_gains_correct_the_expectation():
    expected = strategy("stream", gain=1.0)
    disappointed = ranked(expected, history=(Tried(expected, True, -0.5),) * 3)
    assert disappointed["stream"].expected_gain == pytest.approx(0.25)
    untimed = ranked(expected, history=(Tried(expected, True, None),) * 3)
    assert untimed["stream"].expected_gain == 1.0


@given(
    entries=st.lists(
        st.tuples(st.sampled_from("abcd"), st.floats(-20, 20), st.floats(-20, 20)), max_size=12
    ),
    tried=st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=8),
)
def test_priors_are_a_distribution_at_most(entries, tried):
    proposed = RulePlanner().propose(
        PROBLEM,
        CANDIDATE,
        plan=(),
        applicable=[strategy(k, gain=g, unlocks=u) for k, g, u in entries],
        evaluation=None,
        finding=None,
        history=[Tried(strategy(kind), correct) for kind, correct in tried],
    )
    assert len(proposed) == len(entries)
    assert all(0 <= s.prior <= 1 for s in proposed)
    assert sum(s.prior for s in proposed) <= 1 + 1e-9


def test_many_steps_that_promise_nothing_do_not_outweigh_the_one_that_does():
    idle = [strategy("tile") for _ in range(100)]
    proposed = RulePlanner().propose(
        PROBLEM,
        CANDIDATE,
        plan=(),
        applicable=[*idle, strategy("fuse", gain=1.0)],
        evaluation=None,
        finding=None,
        history=(),
    )
    assert proposed[0].kind == "fuse"
    assert proposed[0].prior > 0.4
    assert proposed[-1].prior > 0
