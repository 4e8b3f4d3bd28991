"""The rule planner: ranks what a coder lists by expected gain, evidence and the analyst's word."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, expm1

from kerntree.plans.candidate import Candidate
from kerntree.plans.evaluation import Evaluation
from kerntree.plans.finding import Finding
from kerntree.plans.problem import Problem
from kerntree.plans.protocols import Outcome
from kerntree.plans.strategy import Plan, Strategy


@dataclass(frozen=True, kw_only=True)
class RulePlanner:
    """Implements `Planner` without a model.

    A strategy's score (log2) is the larger of what it gains itself and what it unlocks
    (`parameters["unlocks"]`, where the coder gives it), and a bonus where the finding recommends
    its kind. Outcomes of the same kind count against the expectation, which weighs as much as
    `expectation_weight` of them. Priors grow exponentially with the score (`temperature` is in
    log2), each times the kind's estimated probability of success. A step that promises nothing has
    a small share (`curiosity`), lest a large program's many such steps outweigh the few that do.
    """

    temperature: float = 0.4
    curiosity: float = 0.1
    expectation_weight: float = 3.0
    recommendation_bonus: float = 0.5

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
    ) -> list[Strategy]:
        """The applicable strategies with priors that sum to at most 1, the likeliest first."""
        if not applicable:
            return []
        judged = [self._judge(strategy, finding, history) for strategy in applicable]
        weights = [self._weight(entry.score) for entry in judged]
        # Divided before success is counted in: where all are likely to fail, the sum stays below 1.
        total = sum(weights)
        ranked = [
            strategy.replaced(
                prior=weight / total * entry.success,
                expected_gain=entry.gain,
                risk=1.0 - entry.success,
                rationale=entry.rationale,
            )
            for strategy, entry, weight in zip(applicable, judged, weights, strict=True)
        ]
        return sorted(ranked, key=lambda strategy: -strategy.prior)

    def _weight(self, score: float) -> float:
        scaled = min(max(score / self.temperature, -50.0), 50.0)
        return max(expm1(scaled), self.curiosity * exp(min(scaled, 0.0)))

    def _judge(
        self, strategy: Strategy, finding: Finding | None, history: Sequence[Outcome]
    ) -> "_Judgement":
        alike = [outcome for outcome in history if outcome.strategy.kind == strategy.kind]
        success = (1.0 + sum(outcome.correct for outcome in alike)) / (1.0 + len(alike))
        gains = [o.gain for o in alike if o.correct and o.gain is not None]
        gain = (self.expectation_weight * strategy.expected_gain + sum(gains)) / (
            self.expectation_weight + len(gains)
        )
        unlocks = _number(strategy, "unlocks")
        score, reasons = gain, [f"{2**gain:.2f}x expected"]
        if unlocks > gain:
            score = unlocks
            reasons = [f"brings {2**unlocks:.2f}x within reach"]
        if finding is not None and strategy.kind in finding.recommended:
            place = finding.recommended.index(strategy.kind)
            score += self.recommendation_bonus / (1 + place)
            reasons.append(f"recommended: {finding.statement}")
        if alike:
            worked = sum(outcome.correct for outcome in alike)
            reasons.append(f"{worked} of {len(alike)} of its kind were correct")
        return _Judgement(score=score, gain=gain, success=success, rationale="; ".join(reasons))


@dataclass(frozen=True, kw_only=True)
class _Judgement:
    score: float
    gain: float
    success: float
    rationale: str


def _number(strategy: Strategy, key: str) -> float:
    value = strategy.parameters.get(key)
    return float(value) if isinstance(value, int | float) else 0.0
