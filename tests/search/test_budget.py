"""Limits and what counts against them."""

import pytest

from kerntree.cache.journal import Event
from kerntree.plans.errors import SettingsError
from kerntree.search.budget import Budget, Spend, duration, forecast, spent


def journal(*moments):
    return [Event(i, time, kind, {}) for i, (time, kind) in enumerate(moments)]


def test_the_time_between_two_lives_of_a_run_is_not_spent():
    events = journal((0, "run_started"), (10, "node"), (5000, "resumed"), (5007, "node"))
    assert spent(events).seconds == 17
    assert spent(events, now=5010).seconds == 20


def test_a_clock_set_back_takes_nothing_off():
    events = journal((0, "run_started"), (10, "node"), (4, "node"), (6, "node"))
    assert spent(events).seconds == 12


def test_every_evaluation_counts_and_nothing_else_does():
    events = journal((0, "run_started"), (1, "evaluated"), (2, "duel"), (3, "evaluated"))
    assert spent(events).evaluations == 2


def test_whichever_limit_is_reached_first_ends_it():
    budget = Budget(evaluations=10, seconds=100, reserve_seconds=20)
    assert budget.exhausted(Spend(evaluations=9, seconds=79)) is None
    assert budget.exhausted(Spend(evaluations=10, seconds=0)) == "10 evaluations are spent"
    assert budget.exhausted(Spend(evaluations=0, seconds=80)) == "100 seconds are spent"
    assert Budget().exhausted(Spend(evaluations=10**9, seconds=1e12)) is None


@pytest.mark.parametrize(
    "limits", [{"evaluations": -1}, {"seconds": -0.5}, {"seconds": float("nan")}]
)
def test_limits_that_cannot_be_are_refused(limits):
    with pytest.raises(SettingsError, match="give a number from 0 up"):
        Budget(**limits)


def test_the_forecast_says_what_is_left_at_the_pace_so_far():
    text = forecast(
        Budget(evaluations=100, seconds=600, reserve_seconds=30),
        Spend(evaluations=20, seconds=100),
    )
    assert text == (
        "80 of 100 evaluations left, 8 min 20 s of 10 min 00 s left, "
        "room for about 94 more evaluations"
    )
    assert forecast(Budget(), Spend()) == "no limit"
    assert forecast(Budget(evaluations=10), Spend(evaluations=5, seconds=50)) == (
        "5 of 10 evaluations left, about 50 s"
    )


def test_durations_read_well():
    assert [duration(s) for s in (3.4, 61, 7322)] == ["3 s", "1 min 01 s", "2 h 02 min"]
