"""Timing the living children of one contest, case by case, and what their blocks say."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import numpy as np

from kerntree.evaluator.baseline import Baselines
from kerntree.evaluator.bench import Bench, draw
from kerntree.evaluator.device import Limits
from kerntree.evaluator.floor import floor_ns
from kerntree.evaluator.guard import Guard
from kerntree.evaluator.measure import Blocks, SideFailed, interleaved
from kerntree.evaluator.session import CandidateFailed, Lost, Session
from kerntree.evaluator.timing import (
    BlockTimes,
    Interval,
    WeightedLogs,
    combined,
    enough,
    log_ratios,
    summarize,
)
from kerntree.evaluator.trials import Prepared
from kerntree.plans.evaluation import CaseTiming, Stage
from kerntree.plans.problem import Case

CANDIDATE, INCUMBENT, BASELINE = "candidate", "incumbent", "baseline"
_MOST_DRAWN = 1  # timed calls compared by chance, beside one on each set of inputs

Contest = dict[str, Blocks]
"""Blocks by case and side."""


@dataclass
class Stopwatch:
    """Measures candidates against the fastest baseline, and against each other."""

    bench: Bench
    baselines: Baselines
    guard: Guard
    limits: Limits
    holding: Callable[[], AbstractContextManager[None]]
    generator: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def evaluate(self, candidate: Session) -> Contest:
        """As many pairs of blocks as `TimingRules` ask for; raises `CandidateFailed`, `Lost`."""
        rules = self.bench.settings.timing

        def stop(blocks: Blocks, late: bool) -> bool:
            logs = log_ratios(blocks[CANDIDATE], blocks[BASELINE])
            return enough(logs, rules=rules) or (late and len(logs) >= rules.pairs_low // 2)

        return self._contest({CANDIDATE: candidate}, stop)

    def duel(self, sides: Mapping[str, Session]) -> Contest:
        """One round of a duel; its length does not depend on what it shows."""
        rules = self.bench.settings.timing

        def stop(blocks: Blocks, late: bool) -> bool:
            pairs = len(blocks[CANDIDATE])
            return pairs >= rules.duel_pairs or (late and pairs >= rules.duel_pairs // 2)

        return self._contest(sides, stop)

    def replay(self, candidate: Session) -> Contest:
        """As a duel's round, every call the replay of a graph; without the cases kept thriftily.

        Those are so large that launching them takes no time of note.
        """
        rules = self.bench.settings.timing
        return self._contest(
            {CANDIDATE: candidate},
            lambda blocks, late: late or len(blocks[CANDIDATE]) >= rules.duel_pairs,
            cases=[case for case in self.bench.problem.timed_cases if not self._thrifty(case)],
            graph=True,
        )

    def timings(self, contest: Contest) -> tuple[CaseTiming, ...]:
        """The candidate against the baseline, for the record."""
        return tuple(
            summarize(
                case.name,
                baseline_name=self.baselines.best.name,
                candidate=contest[case.name][CANDIDATE],
                baseline=contest[case.name][BASELINE],
                confidence=self.bench.settings.timing.confidence,
                floor_ns=floor_ns(case, self.limits),
                generator=self.generator,
            )
            for case in self.bench.problem.timed_cases
            if case.name in contest
        )

    def gain(self, contest: Contest, *, over: str, confidence: float) -> Interval:
        """log2 of a side's time over the candidate's, over all cases by weight."""
        return combined(
            [
                WeightedLogs(
                    log_ratios(contest[case.name][CANDIDATE], contest[case.name][over]),
                    case.weight,
                )
                for case in self.bench.problem.timed_cases
            ],
            confidence=confidence,
            generator=self.generator,
        )

    def _thrifty(self, case: Case) -> bool:
        room = self.bench.rooms.get(case.name)
        return room is not None and room.thrifty

    def _contest(
        self,
        children: Mapping[str, Session],
        stop: Callable[[Blocks, bool], bool],
        *,
        cases: Sequence[Case] | None = None,
        graph: bool = False,
    ) -> Contest:
        try:
            baseline = self.baselines.session()
        except CandidateFailed as failure:
            raise Lost(f"the baseline: {failure.message}") from failure
        sides = {**children, BASELINE: baseline}
        contest: Contest = {}
        for case in self.bench.problem.timed_cases if cases is None else cases:
            try:
                contest[case.name] = self._case(case, sides, stop, graph=graph)
            except SideFailed as failed:
                if failed.side == CANDIDATE:
                    raise failed.failure from failed
                if failed.side == BASELINE:
                    self.baselines.drop()
                raise Lost(f"the {failed.side} died while it was timed: {failed}") from failed
        return contest

    def _case(
        self,
        case: Case,
        sides: Mapping[str, Session],
        stop: Callable[[Blocks, bool], bool],
        *,
        graph: bool,
    ) -> Blocks:
        candidate = sides[CANDIDATE]
        with self.bench.timed_inputs(case) as prepared, self.holding():
            slots = self._give(sides, prepared)
            latest = time.monotonic() + self.bench.settings.timing.seconds_per_case
            checks = _TimedChecks(self.bench, candidate, case, prepared, graph)
            blocks = interleaved(
                {name: _Launched(side, graph) for name, side in sides.items()},
                slots=slots,
                rules=self.bench.settings.timing,
                timeout=2 * self.bench.call_timeout(case),
                stop=lambda blocks: stop(blocks, time.monotonic() > latest),
                draw=draw,
                after=checks.after,
                rest=lambda name: sides[name].rest(),
            )
            checks.finish(slots)
        objection = self.guard.after(
            case,
            candidate=blocks[CANDIDATE],
            baseline=blocks[BASELINE],
            floor_ns=floor_ns(case, self.limits),
        )
        if objection is not None:
            raise CandidateFailed(objection.verdict, Stage.TIME, objection.message)
        return blocks

    def _give(self, sides: Mapping[str, Session], prepared: Sequence[Prepared]) -> tuple[int, ...]:
        slots: tuple[int, ...] = ()
        for name, side in sides.items():
            try:
                slots = self.bench.give(side, prepared)
            except CandidateFailed as failure:
                raise SideFailed(name, failure) from failure
        return slots


@dataclass(frozen=True)
class _Launched:
    """A child and how its timed calls are launched."""

    session: Session
    graph: bool

    def time(self, slots: Sequence[int], *, warmup: int, timeout: float) -> BlockTimes:
        return self.session.time(slots, warmup=warmup, timeout=timeout, graph=self.graph)


@dataclass
class _TimedChecks:
    """Has timed calls compared: some that are drawn after they were made, and in the end one on
    each set of inputs, so that a result kept from another set is found out."""

    bench: Bench
    candidate: Session
    case: Case
    prepared: Sequence[Prepared]
    graph: bool = False
    drawn: int = 0
    checked: set[int] = field(default_factory=set)

    def after(self, side: str, slot: int) -> None:
        """Follows every block; `slot` is that of its last call."""
        if side != CANDIDATE or self.drawn >= _MOST_DRAWN:
            return
        if draw(self.bench.settings.timing.pairs_low) == 0:
            self.drawn += 1
            self._check(slot)

    def finish(self, slots: Sequence[int]) -> None:
        """One more block, like those before, for each set of which no timed call was compared."""
        timeout = 2 * self.bench.call_timeout(self.case)
        for slot in slots:
            if slot not in self.checked:
                before = [slots[draw(len(slots))] for _ in range(draw(3))]
                self.candidate.time([*before, slot], warmup=0, timeout=timeout, graph=self.graph)
                self._check(slot)

    def _check(self, slot: int) -> None:
        self.checked.add(slot)
        self.bench.check_timed(
            self.candidate, self.case, self.bench.prepared_at(self.prepared, slot)
        )


def merged(rounds: Sequence[Contest]) -> Contest:
    """The blocks of several rounds, one after another."""
    total: Contest = {}
    for contest in rounds:
        for case, blocks in contest.items():
            for side, entries in blocks.items():
                total.setdefault(case, {}).setdefault(side, []).extend(entries)
    return total
