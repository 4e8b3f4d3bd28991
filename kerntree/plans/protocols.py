"""How the parts meet. Planners, coders and evaluators know these protocols, not each other."""

from collections.abc import Sequence
from typing import Protocol

from kerntree.plans.candidate import Candidate, Config
from kerntree.plans.evaluation import Baseline, Duel, Evaluation, EvaluationRequest, Replay
from kerntree.plans.finding import Finding
from kerntree.plans.problem import Problem
from kerntree.plans.strategy import Plan, Strategy


class Outcome(Protocol):
    """What a planner may know of a step already tried somewhere in the tree."""

    @property
    def strategy(self) -> Strategy: ...
    @property
    def correct(self) -> bool: ...
    @property
    def gain(self) -> float | None: ...


class Planner(Protocol):
    """Proposes the next strategies at a node, each with a prior; the priors sum to at most 1."""

    def propose(
        self,
        problem: Problem,
        candidate: Candidate,
        *,
        plan: Plan,
        applicable: Sequence[Strategy],
        evaluation: Evaluation | None,
        finding: Finding | None,
        history: Sequence[Outcome],
    ) -> list[Strategy]: ...


class Coder(Protocol):
    """Writes candidates. Text in, text out."""

    def root(self, problem: Problem) -> Candidate:
        """The plain operator; correct by construction."""
        ...

    def strategies(self, problem: Problem, candidate: Candidate) -> list[Strategy]:
        """What this coder can do to that candidate."""
        ...

    def preview(self, problem: Problem, candidate: Candidate, strategy: Strategy) -> str | None:
        """The identity that `realize` would give, before it is paid for; None if unknown."""
        ...

    def realize(self, problem: Problem, candidate: Candidate, strategy: Strategy) -> Candidate:
        """The candidate after one step; raises `CannotRealizeError`."""
        ...


class Analyst(Protocol):
    """Reads measurements and says what limits the kernel."""

    def find(self, problem: Problem, candidate: Candidate, evaluation: Evaluation) -> Finding: ...


class Evaluator(Protocol):
    """Runs, checks and times candidates. Every method may be called from one thread at a time."""

    def baselines(self) -> tuple[Baseline, ...]:
        """Measured once at the start of a run; the fastest available is the one to beat."""
        ...

    def known(self, request: EvaluationRequest) -> Evaluation | None:
        """The memo's answer, or None; nothing runs."""
        ...

    def evaluate(self, request: EvaluationRequest) -> Evaluation:
        """The memo's answer, or a fresh one that is stored before it is returned."""
        ...

    def duel(self, challenger: EvaluationRequest, incumbent: EvaluationRequest | None) -> Duel:
        """A fresh measurement in new processes; never answered from the memo.

        Without an incumbent the challenger meets the baseline alone.
        """
        ...

    def replay(self, request: EvaluationRequest) -> Replay | None:
        """A correct candidate and the baseline timed as CUDA graphs; never from the memo.

        None where the device has no graphs.
        """
        ...

    def close(self) -> None:
        """Ends every process this evaluator started. May be called twice."""
        ...


__all__ = [
    "Analyst",
    "Coder",
    "Config",
    "Evaluator",
    "Outcome",
    "Planner",
]
