"""The run loop: what it measures, what becomes a record, and that it can be cut anywhere."""

import pytest

from kerntree.cache.journal import read_events
from kerntree.coder.own import OwnKernel, WithOwnKernels
from kerntree.plans.evaluation import Replay, Verdict
from kerntree.search.budget import Budget
from kerntree.search.events import Dueled, Evaluated, Reverified, decode
from kerntree.search.progress import closing_lines
from kerntree.search.snapshot import snapshot
from kerntree.search.tree import config_key, fold

TUNABLES = {"BLOCK": (16, 32, 64, 128)}
KINDS = ("fuse", "tile", "vectorize", "reorder")
WORTH = {"fuse": 1.0, "tile": 0.3, "vectorize": 0.5, "reorder": -0.4}


def additive(taken, config):
    return sum(WORTH.get(kind, 0.0) for kind in taken) - 0.5


def tuned(taken, config):
    return additive(taken, config) - 0.1 * abs(TUNABLES["BLOCK"].index(config["BLOCK"]) - 2)


def events_of(path):
    return [decode(event) for event in read_events(path)]


def pairs(path):
    return [(e.node, config_key(e.config)) for e in events_of(path) if isinstance(e, Evaluated)]


def test_finds_the_best_set_of_steps(search, toy):
    evaluator = toy.Evaluator(additive)
    result = search(toy.Coder(KINDS), evaluator)
    tree = fold(read_events(search.path))
    assert result.finished
    assert tree.nodes[result.best_node].candidate.program == ["fuse", "tile", "vectorize"]
    assert result.best_evaluation.reward == pytest.approx(1.3)
    assert result.reverified.gain == pytest.approx(1.3)
    assert evaluator.duels[-1][1] is None


def test_the_record_is_read_as_a_graph_in_the_end(search, toy):
    evaluator = toy.Evaluator(additive)
    evaluator.as_graph = Replay(message="capture failed")
    result = search(toy.Coder(KINDS), evaluator)
    (request,) = evaluator.replayed
    assert request.candidate.identity == result.best_node
    shown = snapshot(read_events(search.path))
    assert shown.replay == evaluator.as_graph
    assert "not timed as a CUDA graph: capture failed" in closing_lines(shown, "run")


def test_where_there_are_no_graphs_nothing_is_said_of_them(search, toy):
    search(toy.Coder(KINDS), toy.Evaluator(additive))
    assert snapshot(read_events(search.path)).replay is None


def test_commuting_steps_are_measured_once(search, toy):
    evaluator = toy.Evaluator(additive)
    result = search(toy.Coder(KINDS), evaluator, budget=Budget(evaluations=1000))
    assert result.reason == "nothing is left to try"
    assert len(evaluator.ran) == len(set(evaluator.ran)) == 2 ** len(KINDS)


def test_races_to_the_best_config(search, toy):
    result = search(toy.Coder(KINDS, tunables=TUNABLES), toy.Evaluator(tuned))
    assert result.best_config == {"BLOCK": 64}


def test_the_evaluation_budget_holds(search, toy):
    evaluator = toy.Evaluator(tuned)
    result = search(toy.Coder(KINDS, tunables=TUNABLES), evaluator, budget=Budget(evaluations=7))
    assert (len(evaluator.ran), result.reason) == (7, "7 evaluations are spent")
    assert result.best_node is not None


def test_the_time_budget_holds_and_the_reserve_is_kept(search, toy):
    result = search(
        toy.Coder(KINDS),
        toy.Evaluator(additive),
        budget=Budget(seconds=60.0, reserve_seconds=20.0),
    )
    assert result.reason == "60 seconds are spent"
    assert 40 <= snapshot(read_events(search.path)).spend.seconds <= 60


def test_lucky_timing_is_no_record(search, toy):
    evaluator = toy.Evaluator(additive, lucky=frozenset({"reorder"}))
    result = search(toy.Coder(KINDS), evaluator)
    tree = fold(read_events(search.path))
    assert "reorder" not in tree.nodes[result.best_node].candidate.program
    refused = [e for e in events_of(search.path) if isinstance(e, Dueled) and not e.accepted]
    assert refused
    keys = [(e.node, config_key(e.config), str(e.incumbent)) for e in refused]
    assert len(keys) == len(set(keys))


def test_nothing_better_than_the_baseline_gives_no_best(search, toy):
    result = search(toy.Coder(KINDS), toy.Evaluator(lambda taken, config: -1.0))
    assert (result.best_node, result.best_evaluation, result.finished) == (None, None, True)


def test_passes_through_a_deceptive_enabling_step(search, toy):
    coder = toy.Coder(
        ("lower", "tile", "fuse"), enabling=frozenset({"lower"}), needs={"fuse": "lower"}
    )

    def deceptive(taken, config):
        return 2.0 if "fuse" in taken else -3.0 if "lower" in taken else 0.1 * len(taken)

    result = search(coder, toy.Evaluator(deceptive), budget=Budget(evaluations=8))
    tree = fold(read_events(search.path))
    assert {"fuse", "lower"} <= set(tree.nodes[result.best_node].candidate.program)
    lowered = next(n for n in tree.nodes.values() if n.candidate.program == ["lower"])
    assert not lowered.measured
    assert snapshot(read_events(search.path)).nodes[lowered.identity].status == "passed"


def test_the_first_way_down_follows_what_is_expected_to_win_and_measures_its_end(search, toy):
    coder = toy.Coder(KINDS, expected={"fuse": 1.0, "tile": 0.3, "vectorize": 0.5})
    search(coder, toy.Evaluator(additive), budget=Budget(evaluations=2))
    nodes = fold(read_events(search.path)).nodes.values()
    measured = [node.candidate.program for node in nodes if node.measured]
    assert measured == [[], ["fuse", "tile", "vectorize"]]
    assert len(nodes) == 4


def test_a_kernel_of_ones_own_does_not_take_the_place_of_the_first_way_down(search, toy):
    coder = toy.Coder(KINDS, expected={"fuse": 0.5, "tile": 0.3, "vectorize": 0.4})
    mine = OwnKernel("mine.py", "class ModelNew:\n    pass\n")
    search(WithOwnKernels(coder, [mine]), toy.Evaluator(additive), budget=Budget(evaluations=3))
    nodes = fold(read_events(search.path)).nodes.values()
    measured = [node.candidate.program for node in nodes if node.measured]
    assert measured == [[], None, ["fuse", "tile", "vectorize"]]


def test_the_first_good_candidate_becomes_a_record_before_its_configs_are_raced(search, toy):
    coder = toy.Coder(("fuse",), tunables=TUNABLES)
    search(coder, toy.Evaluator(tuned))
    kinds = [e.kind for e in events_of(search.path) if e.kind in {"evaluated", "duel"}]
    assert kinds[:4] == ["evaluated", "evaluated", "duel", "evaluated"]


def test_a_plunge_cut_short_goes_on(search, toy):
    coder = toy.Coder(KINDS, expected={"fuse": 1.0, "tile": 0.3, "vectorize": 0.5})
    looks = iter(range(1000))
    search(coder, toy.Evaluator(additive), stop=lambda: next(looks) > 3)
    assert len(fold(read_events(search.path)).nodes) in {2, 3}
    search(coder, toy.Evaluator(additive), budget=Budget(evaluations=2))
    nodes = fold(read_events(search.path)).nodes.values()
    assert [len(node.candidate.program) for node in nodes if node.measured] == [0, 3]


def test_a_step_that_cannot_be_done_is_recorded_and_left(search, toy):
    coder = toy.Coder(KINDS, unrealizable=frozenset({"tile"}))
    result = search(coder, toy.Evaluator(additive), budget=Budget(evaluations=100))
    state = snapshot(read_events(search.path))
    assert result.reason == "nothing is left to try"
    assert state.realize_failures == 8  # once at each state without it
    assert all("tile" not in " ".join(node.plan) for node in state.nodes.values())


def test_wrong_candidates_are_not_expanded(search, toy):
    search(toy.Coder(KINDS), toy.Evaluator(additive, broken=frozenset({"fuse"})))
    state = snapshot(read_events(search.path))
    failed = [node for node in state.nodes.values() if node.status == "failed"]
    assert failed
    assert all(node.verdict == "wrong result" and node.untried == 0 for node in failed)
    assert state.verdicts["wrong result"] == len(failed)


@pytest.mark.parametrize("times", [1, 5])
def test_a_lost_evaluation_is_tried_once_more(search, toy, times):
    evaluator = toy.Evaluator(additive, lost=[True] * times)
    search(toy.Coder(()), evaluator)
    assert len(evaluator.ran) == 2
    (node,) = fold(read_events(search.path)).nodes.values()
    (evaluation,) = node.measured.values()
    assert evaluation.verdict is (Verdict.CORRECT if times == 1 else Verdict.LOST)


def test_stop_leaves_a_run_that_goes_on(search, toy):
    looks = iter(range(1000))
    first = toy.Evaluator(additive)
    result = search(toy.Coder(KINDS), first, stop=lambda: next(looks) > 8)
    assert (result.finished, result.reason) == (False, "interrupted")
    assert snapshot(read_events(search.path)).ended == "interrupted"
    second = toy.Evaluator(additive)
    result = search(toy.Coder(KINDS), second)
    assert result.finished
    assert result.best_evaluation.reward == pytest.approx(1.3)
    assert not set(first.ran) & set(second.ran)


def test_more_budget_goes_on_with_a_finished_run(search, toy):
    first, second = toy.Evaluator(tuned), toy.Evaluator(tuned)
    coder = toy.Coder(KINDS, tunables=TUNABLES)
    search(coder, first, budget=Budget(evaluations=5))
    search(coder, second, budget=Budget(evaluations=20))
    assert (len(first.ran), len(second.ran)) == (5, 15)
    assert not set(first.ran) & set(second.ran)


def test_every_event_is_on_disk_before_it_is_shown(search, toy):
    seen = []

    def look(event, tree):
        assert decode(read_events(search.path)[-1]) == event
        assert fold(read_events(search.path)) == tree
        seen.append(event)

    search(toy.Coder(KINDS[:2]), toy.Evaluator(additive), on_event=look)
    assert seen == events_of(search.path)
    assert isinstance(seen[-2], Reverified)


def test_cut_anywhere_it_ends_the_same_and_measures_nothing_twice(search, toy, tmp_path):
    coder = toy.Coder(
        KINDS,
        tunables=TUNABLES,
        enabling=frozenset({"tile"}),
        unrealizable=frozenset({"vectorize"}),
        expected={"fuse": 1.0, "vectorize": 0.5},
    )
    whole = search(coder, toy.Evaluator(tuned), budget=Budget(evaluations=25))
    lines = search.path.read_bytes().splitlines(keepends=True)
    for cut in range(len(lines)):
        path = tmp_path / f"cut{cut}.jsonl"
        path.write_bytes(b"".join(lines[:cut]))
        before = pairs(path)
        evaluator = toy.Evaluator(tuned)
        result = search(coder, evaluator, name=path.stem, budget=Budget(evaluations=25))
        assert not set(before) & set(evaluator.ran), cut
        assert pairs(path) == before + evaluator.ran
        assert len(set(pairs(path))) == len(pairs(path)), cut
        assert result.finished
        assert result.best_evaluation.reward == pytest.approx(whole.best_evaluation.reward)
