"""What every explorer must hold to, and what sets each apart."""

import pytest

from kerntree.cache.journal import read_events
from kerntree.plans.candidate import Candidate
from kerntree.plans.errors import SettingsError
from kerntree.plans.evaluation import Evaluation, Stage, Verdict
from kerntree.plans.strategy import Strategy
from kerntree.search.budget import Budget
from kerntree.search.events import Evaluated, Linked, NodeAdded, Proposed, RealizeFailed
from kerntree.search.explorers import EXPLORERS, Expansion, explorer_named
from kerntree.search.reward import odds, worth
from kerntree.search.tree import Tree, fold

every = pytest.mark.parametrize("name", EXPLORERS)


def candidate(name):
    return Candidate(source=name, language="python")


def added(name, parent=None, strategy=None):
    identity = candidate(name).identity
    above = None if parent is None else candidate(parent).identity
    return NodeAdded(identity=identity, candidate=candidate(name), parent=above, strategy=strategy)


def proposed(name, *priors, kind="fuse"):
    steps = tuple(
        Strategy(kind=kind, target=str(i), instruction="", prior=p) for i, p in enumerate(priors)
    )
    return Proposed(node=candidate(name).identity, strategies=steps)


def evaluated(name, reward):
    evaluation = Evaluation(
        key=name,
        verdict=Verdict.WRONG if reward is None else Verdict.CORRECT,
        stage=Stage.TIME,
        config={},
        reward=reward,
        reward_low=reward,
        reward_high=reward,
    )
    return Evaluated(node=candidate(name).identity, config={}, evaluation=evaluation)


def tree_of(*events):
    tree = Tree()
    for event in events:
        tree.apply(event)
    return tree


def at(name, index):
    return Expansion(candidate(name).identity, index)


SMALL = (
    added("root"),
    evaluated("root", 0.0),
    proposed("root", 0.5, 0.3, 0.1),
    added("a", "root", 0),
    evaluated("a", 1.0),
    proposed("a", 0.5, 0.5),
    added("b", "root", 1),
    evaluated("b", None),
)


@every
def test_asks_for_each_untried_step_exactly_once(name):
    asked = EXPLORERS[name](0).ask(tree_of(*SMALL), 10, step=0)
    assert sorted(asked, key=str) == sorted([at("root", 2), at("a", 0), at("a", 1)], key=str)


@every
@pytest.mark.parametrize("n", [0, 1, 2])
def test_asks_for_no_more_than_wanted(name, n):
    assert len(EXPLORERS[name](0).ask(tree_of(*SMALL), n, step=0)) == n


@every
def test_never_asks_for_what_is_pending(name):
    pending = (at("a", 0), at("root", 2))
    assert EXPLORERS[name](0).ask(tree_of(*SMALL), 3, step=0, pending=pending) == [at("a", 1)]


@every
def test_answers_nothing_where_nothing_is_left(name):
    explorer = EXPLORERS[name](0)
    assert explorer.ask(Tree(), 1, step=0) == []
    assert explorer.ask(tree_of(added("root"), proposed("root")), 1, step=0) == []
    failed = RealizeFailed(parent=candidate("root").identity, strategy=0, message="")
    spent = tree_of(added("root"), proposed("root", 1.0), failed)
    assert explorer.ask(spent, 1, step=0) == []


@every
def test_same_tree_and_step_give_the_same_answer_and_leave_the_tree_alone(name):
    tree = tree_of(*SMALL)
    answers = [EXPLORERS[name](7).ask(tree, 2, step=3) for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    assert tree == tree_of(*SMALL)


@every
def test_follows_no_loop(name):
    back = Linked(parent=candidate("a").identity, strategy=0, child=candidate("root").identity)
    tree = tree_of(*SMALL, back)
    asked = EXPLORERS[name](0).ask(tree, 10, step=0)
    assert sorted(asked, key=str) == sorted([at("root", 2), at("a", 1)], key=str)


@every
def test_searches_to_the_end(search, toy, name):
    evaluator = toy.Evaluator(lambda taken, config: float(len(taken)))
    result = search(
        toy.Coder(("a", "b", "c")), evaluator, explorer=name, budget=Budget(evaluations=50)
    )
    assert (result.reason, len(evaluator.ran)) == ("nothing is left to try", 8)


@pytest.mark.parametrize("name", [name for name in EXPLORERS if name != "mcts"])
def test_the_seed_matters_where_choices_are_random(name):
    wide = tree_of(added("root"), evaluated("root", 0.0), proposed("root", *[0.05] * 20))
    more = tree_of(
        added("root"),
        evaluated("root", 0.0),
        proposed("root", *[0.2] * 5),
        *[
            event
            for i in range(4)
            for event in (
                added(f"c{i}", "root", i),
                evaluated(f"c{i}", 0.1 * i),
                proposed(f"c{i}", 1.0),
            )
        ],
    )
    tree = more if name == "best-first" else wide
    asked = {tuple(EXPLORERS[name](seed).ask(tree, 1, step=0)) for seed in range(20)}
    assert len(asked) > 1


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(SettingsError, match="no explorer is named greedy: choose from mcts"):
        explorer_named("greedy")


def test_mcts_finds_a_planted_best_in_most_seeds(search, toy):
    """Twelve steps in any order, of which three together are worth far more than they are alone."""
    kinds = tuple("abcdefghijkl")

    def planted(taken, config):
        return (
            2.0
            if {"c", "e", "g"} <= taken
            else 0.4 * len(taken & {"c", "e", "g"}) - 0.2 * len(taken - {"c", "e", "g"})
        )

    found = 0
    for seed in range(10):
        coder = toy.Coder(kinds[seed:] + kinds[:seed])
        evaluator = toy.Evaluator(planted, noise=0.05)
        budget = Budget(evaluations=40)
        result = search(coder, evaluator, name=f"s{seed}", seed=seed, budget=budget)
        found += result.best_evaluation is not None and result.best_evaluation.reward == 2.0
    assert found >= 8


def test_mcts_spreads_over_branches_when_asked_for_several():
    tree = tree_of(
        added("root"),
        evaluated("root", 0.0),
        proposed("root", 0.5, 0.5),
        added("a", "root", 0),
        evaluated("a", 1.0),
        proposed("a", *[0.25] * 4),
        added("b", "root", 1),
        evaluated("b", 0.95),
        proposed("b", *[0.25] * 4),
    )
    asked = EXPLORERS["mcts"](0).ask(tree, 4, step=0)
    assert {expansion.node for expansion in asked} == {
        candidate("a").identity,
        candidate("b").identity,
    }


def test_mcts_prefers_the_branch_that_won():
    assert EXPLORERS["mcts"](0).ask(tree_of(*SMALL), 1, step=0)[0].node == candidate("a").identity


def test_failures_lower_the_odds_of_their_kind_and_not_the_parent():
    before = tree_of(*SMALL[:-2])
    after = tree_of(*SMALL)
    assert odds(after).of("fuse") < odds(before).of("fuse")
    assert odds(after).of("tile") == 1.0
    root = candidate("root").identity
    assert worth(after).own[root] == worth(before).own[root]
    assert worth(after).below[root] == worth(before).below[root] == 1.0


def test_best_first_throttles_the_root():
    events = [added("root"), evaluated("root", 5.0), proposed("root", *[0.1] * 10)]
    for i in range(5):
        events += [added(f"c{i}", "root", i), evaluated(f"c{i}", 0.0), proposed(f"c{i}", 1.0)]
    asked = [EXPLORERS["best-first"](0).ask(tree_of(*events), 1, step=s)[0] for s in range(20)]
    assert candidate("root").identity not in {expansion.node for expansion in asked}


def test_best_of_n_goes_deep_first(search, toy):
    coder = toy.Coder(tuple("abcdefgh"))
    evaluator = toy.Evaluator(lambda taken, config: 0.0)
    search(coder, evaluator, explorer="best-of-n", budget=Budget(evaluations=7))
    sizes = [len(n.candidate.program) for n in fold(read_events(search.path)).nodes.values()]
    assert sizes == [0, 1, 2, 3, 4, 5, 6]


def test_mcts_goes_on_below_a_step_that_won_nothing_where_much_is_expected():
    after = Strategy(kind="k", target="", instruction="", prior=0.5, expected_gain=2.0)
    tree = tree_of(
        added("root"),
        evaluated("root", 0.0),
        proposed("root", 0.5, 0.5),
        added("a", "root", 0),
        evaluated("a", -0.3),
        Proposed(node=candidate("a").identity, strategies=(after,)),
    )
    assert EXPLORERS["mcts"](0).ask(tree, 1, step=0) == [at("a", 0)]
    hopeless = tree_of(*SMALL[:4], evaluated("a", -0.3), proposed("a", 0.5))
    assert EXPLORERS["mcts"](0).ask(hopeless, 1, step=0) != [at("a", 0)]
