"""The tree as a fold of events: its invariants hold whatever is tried in whatever order."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerntree.cache.errors import CacheError
from kerntree.cache.journal import Event
from kerntree.plans.candidate import Candidate
from kerntree.plans.evaluation import Duel, Evaluation, Stage, Verdict
from kerntree.plans.strategy import Strategy
from kerntree.search.events import (
    Dueled,
    Evaluated,
    Linked,
    NodeAdded,
    Proposed,
    RealizeFailed,
    Record,
    Reverified,
    decode,
    to_data,
)
from kerntree.search.reward import cautious, worth
from kerntree.search.tree import Tree, ancestors, children_first, config_key, fold, plan_of

WIDTH = 3


def candidate(number):
    return Candidate(source=str(number), language="python", config={"B": 1})


def name(number):
    return candidate(number).identity


def evaluation(reward, *, config=None, verdict=Verdict.CORRECT, spread=0.1):
    good = verdict is Verdict.CORRECT
    return Evaluation(
        key="k",
        verdict=verdict,
        stage=Stage.TIME,
        config=config or {"B": 1},
        reward=reward if good else None,
        reward_low=reward - spread if good else None,
        reward_high=reward + spread if good else None,
    )


def added(number, parent=None, strategy=None):
    return NodeAdded(
        identity=name(number),
        candidate=candidate(number),
        parent=None if parent is None else name(parent),
        strategy=strategy,
    )


def proposed(number, width=WIDTH):
    steps = (Strategy(kind="k", target=f"{number}.{i}", instruction="") for i in range(width))
    return Proposed(node=name(number), strategies=tuple(steps))


def measured(number, reward, **options):
    result = evaluation(reward, **options)
    return Evaluated(node=name(number), config=result.config, evaluation=result)


def journaled(events):
    return [Event(i, float(i), e.kind, to_data(e)) for i, e in enumerate(events)]


def made(*events):
    return fold(journaled(events))


@st.composite
def histories(draw):
    """Events as a search makes them: nodes, links (back to any known state), failures, values."""
    events = [added(0), proposed(0)]
    free = [(0, i) for i in range(WIDTH)]
    count = 1
    for _ in range(draw(st.integers(0, 14))):
        parent, index = free.pop(draw(st.integers(0, len(free) - 1)))
        what = draw(st.sampled_from(["new", "new", "link", "fail"]))
        if what == "fail":
            events.append(RealizeFailed(parent=name(parent), strategy=index, message="no"))
        elif what == "link":
            child = name(draw(st.integers(0, count - 1)))
            events.append(Linked(parent=name(parent), strategy=index, child=child))
        else:
            events += [added(count, parent, index), measured(count, draw(st.floats(-3, 3)))]
            events.append(proposed(count))
            free += [(count, i) for i in range(WIDTH)]
            count += 1
        if not free:
            break
    return events


@settings(max_examples=60, deadline=None)
@given(histories())
def test_invariants(events):
    tree = made(*events)
    tried = [e for node in tree.nodes.values() for e in node.edges or () if e.tried]
    assert tree.steps == len(tried) == tree.nodes[tree.root].visits
    for node in tree.nodes.values():
        assert node.identity in {tree.root} or node.parents
        assert tree.root in ancestors(tree, node.identity)
        for parent, index in node.parents:
            assert tree.edge(parent, index).child == node.identity
        if not any(e.loop for e in tried):
            # Every step below is counted at a state once, and once on each edge that leads there.
            for parent, index in node.parents:
                assert tree.edge(parent, index).visits <= node.visits + 1
    for edge in tried:
        assert edge.visits >= 1
    order = [node.identity for node in children_first(tree)]
    assert sorted(order) == sorted(tree.nodes)
    place = {identity: i for i, identity in enumerate(order)}
    for edge in tried:
        if edge.child is not None and not edge.loop:
            assert place[edge.child] < place[edge.parent]


@settings(max_examples=40, deadline=None)
@given(histories())
def test_the_best_below_is_the_maximum_of_what_can_be_reached(events):
    tree = made(*events)
    known = worth(tree)
    for identity in tree.nodes:
        reachable = [n for n in tree.nodes if identity in ancestors(tree, n)]
        values = [cautious(e) for n in reachable for e in tree.nodes[n].measured.values()]
        assert known.below[identity] == max(values, default=None)
        free = any(not e.tried for n in reachable for e in tree.nodes[n].edges or ())
        assert known.open[identity] == free
    for reward in (-9.0, 0.0, 9.0):
        assert 0.0 <= known.scaled(reward) <= 1.0


@settings(max_examples=40, deadline=None)
@given(histories())
def test_the_journal_alone_makes_the_tree(events):
    direct = Tree()
    for event in events:
        direct.apply(event)
    assert direct == made(*events)
    assert [decode(event) for event in journaled(events)] == events


def test_infinite_intervals_survive_the_journal():
    duel = Duel(challenger=evaluation(1.0), gain=0.0, gain_low=-math.inf, gain_high=math.inf)
    event = Dueled(node="n", config={}, duel=duel, accepted=False)
    text = json.dumps(to_data(event), allow_nan=False)
    assert decode(Event(0, 0.0, "duel", json.loads(text))) == event


def test_events_of_other_parts_are_left_alone_and_strange_ones_named():
    assert decode(Event(0, 0.0, "request_sent", {})) is None
    with pytest.raises(CacheError, match=r"event 3 \(linked\) was written by another version"):
        decode(Event(3, 0.0, "linked", {"nothing": 1}))


def test_a_way_back_up_is_no_parent():
    back = Linked(parent=name(1), strategy=0, child=name(0))
    tree = made(added(0), proposed(0), added(1, 0, 0), proposed(1), back)
    assert tree.edge(name(1), 0).loop
    assert tree.nodes[name(0)].parents == []


def test_a_state_with_two_parents_counts_a_step_below_once():
    tree = made(
        added(0),
        proposed(0),
        added(1, 0, 0),
        proposed(1),
        added(2, 0, 1),
        proposed(2),
        added(3, 1, 0),
        Linked(parent=name(2), strategy=0, child=name(3)),
        proposed(3),
        added(4, 3, 0),
    )
    assert tree.nodes[name(0)].visits == tree.steps == 5
    assert [tree.edge(name(0), i).visits for i in range(2)] == [3, 3]


def test_the_plan_goes_by_the_best_parent():
    tree = made(
        added(0),
        proposed(0),
        added(1, 0, 0),
        measured(1, 0.1),
        proposed(1),
        added(2, 0, 1),
        measured(2, 0.9),
        proposed(2),
        added(3, 1, 0),
        Linked(parent=name(2), strategy=2, child=name(3)),
    )
    assert [step.target for step in plan_of(tree, name(3))] == ["0.1", "2.2"]


def test_a_cautious_value_is_the_low_end_and_a_fresh_measurement_replaces_a_lucky_one():
    lucky = measured(1, 3.0, spread=1.5)
    start = (added(0), proposed(0), added(1, 0, 0), lucky)
    assert worth(made(*start)).own[name(1)] == 1.5
    duel = Duel(challenger=evaluation(0.2), gain=0.2, gain_low=0.1, gain_high=0.3)
    event = Dueled(node=name(1), config={"B": 1}, duel=duel, accepted=True)
    assert worth(made(*start, event)).own[name(1)] == pytest.approx(0.1)


def test_a_record_that_fails_its_last_measurement_gives_way_to_the_one_before():
    good = Duel(challenger=evaluation(1.0), gain=1.0, gain_low=0.9, gain_high=1.1)
    events = [added(0), proposed(0)]
    for number in (1, 2):
        events += [added(number, 0, number), measured(number, float(number))]
        events.append(Dueled(node=name(number), config={"B": 1}, duel=good, accepted=True))
    assert made(*events).incumbent == Record(node=name(2), config={"B": 1})
    bad = Duel(challenger=evaluation(-1.0), gain=-1.0, gain_low=-1.1, gain_high=-0.9)
    events.append(Reverified(node=name(2), config={"B": 1}, duel=bad, confirmed=False))
    assert made(*events).incumbent == Record(node=name(1), config={"B": 1})


def test_a_lost_evaluation_says_nothing_of_a_node_until_it_is_lost_again():
    once = made(added(0), measured(0, 0.0, verdict=Verdict.LOST))
    assert not once.nodes[name(0)].measured
    twice = made(added(0), *[measured(0, 0.0, verdict=Verdict.LOST)] * 2)
    assert twice.nodes[name(0)].failed
    known = made(added(0), measured(0, 1.0), *[measured(0, 0.0, verdict=Verdict.LOST)] * 3)
    assert known.nodes[name(0)].measured[config_key({"B": 1})].correct
