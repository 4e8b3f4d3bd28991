import itertools
import os

import pytest

from kerntree.evaluator.blocks import output_block, output_layout
from kerntree.evaluator.device_block import untouched
from kerntree.evaluator.measure import SideFailed, interleaved
from kerntree.evaluator.session import CandidateFailed
from kerntree.evaluator.settings import TimingRules, Trials
from kerntree.evaluator.tensor_block import Layout, map_block
from kerntree.evaluator.timing import BlockTimes
from kerntree.evaluator.trials import Comparison, Prepared, TrialInputs
from kerntree.plans.evaluation import Stage, Verdict
from kerntree.plans.graph import contiguous
from kerntree.plans.problem import Case, InputSpec, OutputSpec, Problem, StateSpec

SMALL, BIG = contiguous((4, 4), "float32"), contiguous((1024, 8192), "float32")


def case(spec=SMALL):
    return Case(
        name="one",
        inputs=(InputSpec(path="0", name="x", tensor=spec),),
        outputs=(OutputSpec(path="", tensor=spec),),
        output_tree=0,
        mutated_inputs=("0",),
        mutated_buffers=("seen",),
    )


class Side:
    """A child that takes a fixed time a call and records what it was asked."""

    def __init__(self, name, log, nanoseconds, dies_after=None):
        self.name, self.log, self.nanoseconds, self.left = name, log, nanoseconds, dies_after

    def time(self, slots, *, warmup, timeout):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise CandidateFailed(Verdict.CRASHED, Stage.TIME, "gone")
        self.log.append((self.name, tuple(slots), warmup))
        return BlockTimes((self.nanoseconds,) * len(slots), 2.0 * self.nanoseconds * len(slots))


def measured(sides, *, rounds, slots=(64, 65), after=lambda side, slot: None):
    numbers = itertools.count()
    return interleaved(
        sides,
        slots=slots,
        rules=TimingRules(calls=4, block_seconds=1.0),
        timeout=1.0,
        stop=lambda blocks: all(len(entries) == rounds for entries in blocks.values()),
        draw=lambda count: next(numbers) % count,
        after=after,
    )


def test_sides_take_turns_and_their_order_turns_each_round():
    log, said = [], []
    blocks = measured(
        {name: Side(name, log, 100.0) for name in "abc"},
        rounds=4,
        after=lambda side, slot: said.append((side, slot)),
    )
    assert [name for name, _, warmup in log if warmup] == ["a", "b", "c"]
    assert "".join(name for name, _, warmup in log if not warmup) == "abccbaabccba"
    assert {name: len(entries) for name, entries in blocks.items()} == dict.fromkeys("abc", 4)
    assert said == [(name, slots[-1]) for name, slots, warmup in log if not warmup]


def test_all_sides_of_a_round_get_the_same_calls_in_blocks_of_varying_length():
    log = []
    measured({name: Side(name, log, 100.0) for name in "ab"}, rounds=6)
    timed = [slots for _, slots, warmup in log if not warmup]
    assert all(timed[2 * k] == timed[2 * k + 1] for k in range(6))
    assert {len(slots) for slots in timed} == {3, 4}
    assert {slot for slots in timed for slot in slots} == {64, 65}


def test_slow_calls_make_short_blocks():
    log = []
    measured({"a": Side("a", log, 2e9), "b": Side("b", log, 100.0)}, rounds=1)
    assert [len(slots) for _, slots, warmup in log if not warmup] == [1, 1]


def test_the_side_that_dies_is_named():
    sides = {"a": Side("a", [], 100.0), "b": Side("b", [], 100.0, dies_after=3)}
    with pytest.raises(SideFailed, match="b: gone") as caught:
        measured(sides, rounds=9)
    assert caught.value.side == "b"
    assert caught.value.failure.verdict is Verdict.CRASHED


class FakeOracle:
    """Counts sets; every comparison is fine."""

    def __init__(self, size=64):
        self.size, self.seeds, self.living = size, [], set()

    def prepare(self, case, *, seed, distribution):
        self.seeds.append(seed)
        name = f"set {len(self.seeds)}"
        self.living.add(name)
        layout = Layout(tensors=(), bytes=self.size)
        return Prepared(name, case, distribution, None, (), layout, -1)

    def compare(self, prepared, *, layout, fd):
        return Comparison(True, (), "", {})

    def forget(self, prepared):
        self.living.remove(prepared.name)


def names(slots):
    return [(slot.phase, slot.distribution, slot.number) for slot in slots]


def test_a_source_is_checked_on_all_distributions_and_its_configs_on_fewer():
    inputs = TrialInputs(FakeOracle(), Trials(), 1 << 30)
    full = names(inputs.check_slots(case(), full=True))
    assert full[:2] == [("check", "given", 0), ("check", "given", 1)]
    assert {name for _, name, _ in full} >= {"outliers", "strided", "shifted", "zeros"}
    large = names(inputs.check_slots(case(BIG), full=True))
    assert set(large) < set(full)
    later = names(inputs.check_slots(case(), full=False))
    assert later == [("check", "given", 0), ("check", "outliers", 0)]


def test_timed_inputs_are_never_those_of_the_check():
    inputs = TrialInputs(FakeOracle(), Trials(), 1 << 30)
    check = set(inputs.check_slots(case(), full=True))
    timed = inputs.time_slots(case(), count=3)
    assert len(set(timed)) == 3
    assert not check & set(timed)


def test_sets_serve_a_number_of_candidates_and_are_then_renewed():
    oracle = FakeOracle()
    inputs = TrialInputs(oracle, Trials(renew_after=3), 1 << 30)
    slot = inputs.check_slots(case(), full=True)[0]
    seen = []
    for _ in range(7):
        with inputs.at(slot) as prepared:
            seen.append(prepared.name)
    assert seen == ["set 1"] * 3 + ["set 2"] * 3 + ["set 3"]
    assert len(set(oracle.seeds)) == 3
    assert oracle.living == {"set 3"}


def test_renewing_drops_the_given_sets_alone():
    oracle = FakeOracle()
    inputs = TrialInputs(oracle, Trials(), 1 << 30)
    for slot in inputs.check_slots(case(), full=True)[:3]:
        with inputs.at(slot):
            pass
    inputs.renew()
    assert oracle.living == {"set 3"}
    inputs.close()
    assert oracle.living == set()


def test_sets_that_do_not_fit_are_not_kept():
    oracle = FakeOracle(size=1 << 20)
    inputs = TrialInputs(oracle, Trials(), 5 << 20)  # room for one, with its expectation
    first, second, *_ = inputs.check_slots(case(), full=True)
    with inputs.at(first) as kept:
        pass
    with inputs.at(second) as dropped:
        assert dropped.name in oracle.living
    assert oracle.living == {kept.name}


def test_a_block_holds_outputs_then_what_is_mutated_and_starts_untouched():
    problem = Problem(
        name="p",
        path="p.py",
        folder="",
        source="",
        cases=(case(),),
        state=(StateSpec(name="seen", kind="buffer", tensor=contiguous((3,), "int64")),),
    )
    layout = output_layout(problem, problem.cases[0])
    assert [placed.spec.shape for placed in layout.tensors] == [(4, 4), (4, 4), (3,)]
    with output_block(layout) as block:
        tensors = map_block(block.fd, layout, writable=False)
        assert untouched(tensors)
        for placed in layout.tensors:
            assert untouched(tensors)
            os.pwrite(block.fd, bytes(placed.spec.bytes), placed.offset)
        assert not untouched(tensors)
