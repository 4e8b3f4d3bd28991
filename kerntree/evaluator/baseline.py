"""The baselines: what a PyTorch user has today, measured in children of their own."""

import math
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from kerntree.cache.memo import Memo
from kerntree.evaluator.bench import Bench, draw
from kerntree.evaluator.measure import Blocks, SideFailed, interleaved
from kerntree.evaluator.session import CandidateFailed, Session
from kerntree.plans.evaluation import Baseline, Verdict
from kerntree.plans.problem import Case

EAGER, COMPILED = "eager", "torch.compile"


@dataclass(frozen=True)
class Rival:
    """One way to run a reference: its name, source, class, and whether to compile it.

    A kernel of the user's (`own`) is one more rival, once it has been checked as candidates are.
    """

    name: str
    source: str
    class_name: str = "Model"
    compile: bool = False

    @property
    def own(self) -> bool:
        return self.class_name == "ModelNew"


@dataclass
class Baselines:
    """Keeps a child for each rival, restarts it if it dies, and knows who is fastest."""

    bench: Bench
    rivals: tuple[Rival, ...]
    memo: Memo
    key: str
    holding: Callable[[], AbstractContextManager[None]]
    _sessions: dict[str, Session] = field(default_factory=dict)
    _facts: tuple[Baseline, ...] | None = None
    _transient: bool = False  # a rival failed for what a quieter machine may allow

    def facts(self) -> tuple[Baseline, ...]:
        """What was measured at the start of this run, or remembered from an earlier one.

        A rival that fails or takes too long is unavailable, and says why. Raises
        `CandidateFailed` if the first one, which must run, does not.
        """
        if self._facts is None:
            stored = self.memo.get(self.key)
            if stored is None:
                self._facts = self._measured()
                if not self._transient:
                    facts = [fact.model_dump(mode="json") for fact in self._facts]
                    self.memo.put(self.key, facts)
            else:
                self._facts = tuple(Baseline.model_validate(fact) for fact in stored)
            for case in self.bench.problem.timed_cases:
                self.bench.patience[case.name] = self.best.median_ns[case.name] / 1e9
        return self._facts

    @property
    def best(self) -> Baseline:
        """The fastest over all cases by weight."""
        cases = self.bench.problem.timed_cases
        usable = [fact for fact in self._facts or self.facts() if fact.available]
        return min(usable, key=lambda fact: _weighted(fact, cases))

    @property
    def spent(self) -> float:
        """Seconds that the living children have taken so far."""
        return sum(sum(session.seconds.values()) for session in self._sessions.values())

    def session(self) -> Session:
        """The living child of the fastest baseline; raises `CandidateFailed` if it cannot be."""
        return self._warm(self.best.name)

    def drop(self) -> None:
        """Ends all children; who is asked for next is started anew."""
        for name in list(self._sessions):
            self._close(name)

    close = drop

    def _measured(self) -> tuple[Baseline, ...]:
        failures: dict[str, CandidateFailed] = {}
        for rival in self.rivals:
            try:
                self._warm(rival.name)
            except CandidateFailed as failure:
                if rival is self.rivals[0]:
                    raise
                failures[rival.name] = failure
        blocks = self._blocks(failures)
        self._transient = any(
            failure.verdict in (Verdict.TIMED_OUT, Verdict.OUT_OF_MEMORY)
            for failure in failures.values()
        )
        names = [rival.name for rival in self.rivals if rival.name not in failures]
        facts = [
            Baseline(
                name=name,
                median_ns={
                    case: statistics.median(block.median_ns for block in sides[name])
                    for case, sides in blocks.items()
                },
            )
            for name in names
        ]
        fastest = min(facts, key=lambda fact: _weighted(fact, self._cases))
        for name in names:
            if name != fastest.name:
                self._close(name)
        return (
            *facts,
            *(
                Baseline(
                    name=name,
                    median_ns={},
                    available=False,
                    message=f"{failure.verdict}: {failure.message}",
                )
                for name, failure in failures.items()
            ),
        )

    @property
    def _cases(self) -> tuple[Case, ...]:
        return self.bench.problem.timed_cases

    def _warm(self, name: str) -> Session:
        """A living child that has run every case: the compiler's time falls here."""
        if name in self._sessions:
            return self._sessions[name]
        rival = next(rival for rival in self.rivals if rival.name == name)
        session = self.bench.open_session(rival.source, rival.class_name, None, rival.compile)
        deadlines = self.bench.settings.deadlines
        seconds = deadlines.compile if rival.compile else deadlines.oracle
        try:
            for case in self._cases:
                with self.bench.timed_inputs(case) as prepared:
                    slots = self.bench.give(session, prepared)
                    session.time(slots[:1], warmup=1, timeout=seconds)
                    session.rest()
            if rival.own:
                self.bench.check(session, full=True)
            else:
                self.bench.exercise(session)
        except BaseException:
            session.close()
            raise
        self._sessions[name] = session
        return session

    def _blocks(self, failures: dict[str, CandidateFailed]) -> dict[str, Blocks]:
        """Blocks by case and rival; who dies meanwhile is added to `failures`."""
        while True:
            names = [rival.name for rival in self.rivals if rival.name not in failures]
            try:
                return {case.name: self._case(case, names) for case in self._cases}
            except SideFailed as failed:
                if failed.side == self.rivals[0].name:
                    raise failed.failure from failed
                failures[failed.side] = failed.failure
                self._close(failed.side)

    def _case(self, case: Case, names: list[str]) -> Blocks:
        rules = self.bench.settings.timing
        sides = {name: self._sessions[name] for name in names}
        with self.bench.timed_inputs(case) as prepared, self.holding():
            slots = [self.bench.give(side, prepared) for side in sides.values()]
            return interleaved(
                sides,
                slots=slots[0],
                rules=rules,
                timeout=self.bench.settings.deadlines.oracle,
                stop=lambda blocks: len(blocks[names[0]]) >= 2 * rules.pairs_low,
                draw=draw,
                rest=lambda name: sides[name].rest(),
            )

    def _close(self, name: str) -> None:
        session = self._sessions.pop(name, None)
        if session is not None:
            session.close()


def rivals(source: str) -> tuple[Rival, ...]:
    """Eager and `torch.compile` of a problem file's `Model`."""
    return (Rival(EAGER, source), Rival(COMPILED, source, compile=True))


def _weighted(fact: Baseline, cases: tuple[Case, ...]) -> float:
    """The weighted geometric mean, in log2 ns."""
    total = sum(case.weight for case in cases)
    logs = [case.weight * math.log2(fact.median_ns[case.name]) for case in cases]
    return sum(logs) / total
