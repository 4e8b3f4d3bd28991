"""The evaluator on this machine: remembers, runs, checks, times and compares candidates."""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Self

from pydantic import JsonValue

from kerntree.cache.memo import Memo, key_of
from kerntree.evaluator import keys
from kerntree.evaluator.bench import Bench
from kerntree.evaluator.contest import BASELINE, CANDIDATE, INCUMBENT, Contest, Stopwatch, merged
from kerntree.evaluator.device import Device
from kerntree.evaluator.guard import Guard
from kerntree.evaluator.oracle_link import OracleFailed
from kerntree.evaluator.session import CandidateFailed, Lost, Session
from kerntree.evaluator.settings import EVALUATOR_VERSION, EvaluatorSettings
from kerntree.plans.candidate import Config
from kerntree.plans.errors import ProblemError
from kerntree.plans.evaluation import (
    Baseline,
    CaseTiming,
    Duel,
    Evaluation,
    EvaluationRequest,
    OutputError,
    Replay,
    Stage,
    Verdict,
)
from kerntree.plans.problem import Problem

_ATTEMPTS = 2


@dataclass
class LocalEvaluator:
    """Implements `kerntree.plans.protocols.Evaluator` with processes of this machine.

    `recover` replaces processes of ours that died, `stop` ends them all.
    """

    problem: Problem
    bench: Bench
    stopwatch: Stopwatch
    device: Device
    guard: Guard
    memo: Memo
    problem_parts: keys.Parts
    versions: Mapping[str, JsonValue]
    isolation: Callable[[], str]
    recover: Callable[[], None]
    stop: Callable[[], None]

    @property
    def settings(self) -> EvaluatorSettings:
        return self.bench.settings

    def baselines(self) -> tuple[Baseline, ...]:
        """Measured once, or remembered; raises `ProblemError` if the reference does not run."""
        for attempt in range(_ATTEMPTS):
            try:
                return self.stopwatch.baselines.facts()
            except CandidateFailed as failure:
                raise ProblemError(
                    f"{self.problem.path}: the reference {failure.verdict} in a child process: "
                    f"{failure.message}"
                ) from failure
            except (Lost, OracleFailed, OSError) as lost:
                if attempt == _ATTEMPTS - 1:
                    raise ProblemError(
                        f"{self.problem.path}: the baselines could not be measured: {lost}"
                    ) from lost
                self.recover()
        raise AssertionError

    def known(self, request: EvaluationRequest) -> Evaluation | None:
        """The memo's answer, or None; nothing runs."""
        stored = self.memo.get(key_of(self._parts(request)))
        if stored is None:
            return None
        return Evaluation.model_validate(stored).replaced(from_memo=True)

    def evaluate(self, request: EvaluationRequest) -> Evaluation:
        """The memo's answer, or a fresh one that is stored before it is returned.

        Raises `ProblemError` if the reference does not run, `CacheError` if nothing can be
        stored; whatever the candidate does is a verdict.
        """
        known = self.known(request)
        if known is not None:
            return known
        parts = self._parts(request)
        self.baselines()
        checked = keys.source_key(parts)
        full = self.memo.get(checked) is None
        attempts = [self._attempt(request, key_of(parts), full=full)]
        while _worth_another(attempts):
            attempts.append(self._attempt(request, key_of(parts), full=full))
        evaluation = attempts[-1]
        if evaluation.correct and full:
            self.memo.put(checked, True)
        self._store(evaluation, parts)
        return evaluation

    def duel(self, challenger: EvaluationRequest, incumbent: EvaluationRequest | None) -> Duel:
        """A fresh measurement in new processes; never answered from the memo.

        The challenger is checked again in full, on inputs never used before; a failure replaces
        what the memo held. If the incumbent, or the evaluator itself, fails twice, the interval
        says nothing: (-inf, inf).
        """
        self.baselines()
        parts = self._parts(challenger)
        outcome = self._duel(challenger, incumbent, key_of(parts))
        if outcome.challenger.verdict is Verdict.LOST or _forged_time(outcome.challenger):
            outcome = self._duel(challenger, incumbent, key_of(parts))
        self._store(outcome.challenger, parts)
        return outcome

    def replay(self, request: EvaluationRequest) -> Replay | None:
        """A correct candidate and the baseline timed as CUDA graphs; what goes wrong is told.

        The candidate is checked again, and so are results of its replays.
        """
        if self.device.kind == "cpu":
            return None
        self.baselines()
        life = _Life("", request.config, {})
        with life.recorded(self.recover):
            with self._opened(request, life) as session:
                self.bench.check(session, full=False)
                contest = self.stopwatch.replay(session)
            life.timings = self.stopwatch.timings(contest)
        if life.timings:
            return Replay(timings=life.timings)
        told = life.failure.message if life.failure else life.lost
        return Replay(message=told or "every case is so large that launching takes no time of note")

    def close(self) -> None:
        """Ends every process this evaluator started. May be called twice."""
        self.stopwatch.baselines.close()
        self.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _attempt(self, request: EvaluationRequest, key: str, *, full: bool) -> Evaluation:
        life = _Life(key, request.config, self._environment())
        with life.recorded(self.recover), self._beside(life):
            objection = self.guard.before(request.candidate.source)
            if objection is not None:
                raise CandidateFailed(objection.verdict, Stage.LOAD, objection.message)
            with self._opened(request, life) as session:
                life.errors = self.bench.check(session, full=full)
                contest = self.stopwatch.evaluate(session)
            self._measured(life, contest)
        return life.evaluation()

    def _duel(
        self, challenger: EvaluationRequest, incumbent: EvaluationRequest | None, key: str
    ) -> Duel:
        self.bench.inputs.renew()
        rules = self.settings.timing
        life = _Life(key, challenger.config, self._environment())
        gain = (0.0, -math.inf, math.inf)
        with life.recorded(self.recover), self._beside(life):
            rounds: list[Contest] = []
            for number in range(rules.duel_rounds):
                with ExitStack() as stack:
                    sides = {CANDIDATE: stack.enter_context(self._opened(challenger, life))}
                    if number == 0:
                        life.errors = self.bench.check(sides[CANDIDATE], full=True)
                    if incumbent is not None:
                        sides[INCUMBENT] = stack.enter_context(self._incumbent(incumbent))
                    rounds.append(self.stopwatch.duel(_turned(sides, number)))
            contest = merged(rounds)
            self._measured(life, contest)
            interval = self.stopwatch.gain(
                contest,
                over=BASELINE if incumbent is None else INCUMBENT,
                confidence=rules.duel_confidence,
            )
            gain = (interval.middle, interval.low, interval.high)
        evaluation = life.evaluation()
        if evaluation.verdict not in (Verdict.CORRECT, Verdict.LOST):
            gain = (-math.inf, -math.inf, -math.inf)
        return Duel(challenger=evaluation, gain=gain[0], gain_low=gain[1], gain_high=gain[2])

    @contextmanager
    def _beside(self, life: "_Life") -> Iterator[None]:
        """Adds what a candidate's life took of the oracle and of the baseline."""
        oracle, baseline = self.bench.oracle.spent, self.stopwatch.baselines.spent
        try:
            yield
        finally:
            life.spend(
                {
                    "oracle": self.bench.oracle.spent - oracle,
                    # one that died has taken its seconds with it
                    "baseline": max(self.stopwatch.baselines.spent - baseline, 0.0),
                }
            )

    @contextmanager
    def _opened(self, request: EvaluationRequest, life: "_Life") -> Iterator[Session]:
        session = self.bench.open_session(
            request.candidate.source,
            "ModelNew",
            _override(request.candidate.config, request.config),
            False,
        )
        life.environment["isolation"] = self.isolation()
        try:
            yield session
        finally:
            session.close()
            life.spend(session.seconds)

    @contextmanager
    def _incumbent(self, request: EvaluationRequest) -> Iterator[Session]:
        try:
            with self._opened(request, _Life("", {}, {})) as session:
                yield session
        except CandidateFailed as failure:
            raise Lost(f"the incumbent {failure.verdict}: {failure.message}") from failure

    def _measured(self, life: "_Life", contest: Contest) -> None:
        interval = self.stopwatch.gain(
            contest, over=BASELINE, confidence=self.settings.timing.confidence
        )
        life.timings = self.stopwatch.timings(contest)
        life.reward = (interval.middle, interval.low, interval.high)
        life.environment["baseline"] = self.stopwatch.baselines.best.name

    def _parts(self, request: EvaluationRequest) -> keys.Parts:
        return keys.evaluation_parts(
            self.problem_parts,
            request.candidate,
            request.config,
            device=self.device.description(),
            versions=self.versions,
            settings=self.settings,
        )

    def _environment(self) -> dict[str, JsonValue]:
        return {
            "device": self.device.description(),
            "versions": dict(self.versions),
            "evaluator": EVALUATOR_VERSION,
        }

    def _store(self, evaluation: Evaluation, parts: keys.Parts) -> None:
        if evaluation.verdict is Verdict.LOST:
            return
        for timing in evaluation.timings:
            key = keys.samples_key(evaluation.key, timing.case)
            self.memo.append(key, list(timing.candidate_ns))
        # through JSON text, which writes an infinite error as a string: the memo takes no other
        self.memo.put(evaluation.key, json.loads(evaluation.model_dump_json()), parts=parts)


class _Life:
    """What is known so far of a candidate's one way through the stages."""

    def __init__(self, key: str, config: Config, environment: dict[str, JsonValue]) -> None:
        self.key = key
        self.config = config
        self.environment = environment
        self.errors: tuple[OutputError, ...] = ()
        self.timings: tuple[CaseTiming, ...] = ()
        self.reward: tuple[float, float, float] | None = None
        self.seconds: dict[str, float] = {}
        self.failure: CandidateFailed | None = None
        self.lost = ""

    @contextmanager
    def recorded(self, recover: Callable[[], None]) -> Iterator[None]:
        """Turns the ways in which a life ends into its record; recovers from faults of ours."""
        started = time.monotonic()
        try:
            yield
        except CandidateFailed as failure:
            self.failure = failure
        except (Lost, OracleFailed, OSError) as lost:
            self.lost = str(lost)
            recover()
        finally:
            self.seconds["total"] = time.monotonic() - started

    def spend(self, seconds: Mapping[str, float]) -> None:
        for stage, value in seconds.items():
            self.seconds[str(stage)] = self.seconds.get(str(stage), 0.0) + value

    def evaluation(self) -> Evaluation:
        """The record of this life, whole or cut short."""
        verdict, stage, message = Verdict.CORRECT, Stage.TIME, ""
        evidence: dict[str, JsonValue] = {}
        if self.failure is not None:
            verdict, stage, message = (
                self.failure.verdict,
                self.failure.stage,
                self.failure.message,
            )
            evidence = self.failure.evidence
        elif self.reward is None:
            verdict, message = Verdict.LOST, self.lost
        alive = verdict is Verdict.CORRECT
        reward, low, high = self.reward if alive and self.reward else (None, None, None)
        return Evaluation(
            key=self.key,
            verdict=verdict,
            stage=stage,
            config=self.config,
            message=message,
            evidence=evidence,
            errors=self.errors,
            timings=self.timings if alive else (),
            reward=reward,
            reward_low=low,
            reward_high=high,
            seconds={name: round(value, 4) for name, value in self.seconds.items()},
            environment=self.environment,
        )


def _worth_another(attempts: list[Evaluation]) -> bool:
    """A loss of ours is tried once more; so are times that cannot be true, which a busy machine
    may have made."""
    last = attempts[-1]
    return len(attempts) < _ATTEMPTS and (last.verdict is Verdict.LOST or _forged_time(last))


def _forged_time(evaluation: Evaluation) -> bool:
    return evaluation.verdict is Verdict.FORGED and evaluation.stage is Stage.TIME


def _override(own: Config, asked: Config) -> Config | None:
    """The config to set in the module, or None where it says the same by itself."""
    merged_config = {**own, **asked}
    return None if merged_config == own else merged_config


def _turned(sides: dict[str, Session], number: int) -> dict[str, Session]:
    """The sides in turn in another order each round, so that no place is anyone's."""
    items = list(sides.items())
    return dict(items if number % 2 == 0 else items[::-1])
