"""What an evaluation is made of: trials, deadlines, limits and the rules of timing."""

from typing import Literal

from pydantic import Field

from kerntree.evaluator.distributions import DISTRIBUTIONS, Distribution
from kerntree.plans.frozen import Frozen
from kerntree.plans.problem import Precision

EVALUATOR_VERSION = 3
"""Raised with every change that could alter a verdict: old memo entries then no longer apply."""


class Deadlines(Frozen):
    """Seconds that each stage may take. `run` is for one checked call, `block` for one timed one.

    A block's deadline also grows with the baseline: see `EvaluatorSettings.slowest_ratio`.
    """

    start: float = 20.0
    load: float = 20.0
    build: float = 60.0
    run: float = 20.0
    block: float = 20.0
    compile: float = 90.0
    oracle: float = 300.0


class Trials(Frozen):
    """Which inputs a candidate is checked on.

    `given` seeds of the problem's own inputs, then one seed of each distribution, or of `large`
    alone where one set is more than `large_bytes`. A source that has passed all of them is
    checked under further configs on one given set and on `later` (and, as always, on timed
    calls). A duel renews the given inputs and checks everything. Prepared inputs serve
    `renew_after` candidates.
    """

    given: int = Field(default=2, ge=2)
    distributions: tuple[Distribution, ...] = DISTRIBUTIONS[1:]
    large: tuple[Distribution, ...] = ("outliers", "shifted", "strided")
    large_bytes: int = 16 << 20
    later: tuple[Distribution, ...] = ("outliers",)
    renew_after: int = Field(default=16, ge=1)


class TimingRules(Frozen):
    """How long to measure. A pair is one block of the candidate and one of the baseline.

    A block is as many calls as fit in `block_seconds` (at least one, at most `calls`). After
    `pairs_low` pairs their spread says how many, up to `pairs_high`, make the interval of the
    ratio narrower than `width` (relative); a candidate more than `hopeless` times slower is
    measured no further. `seconds_per_case` ends it in any case, after half of `pairs_low`.
    A duel measures `duel_pairs` in each of `duel_rounds` sets of fresh processes, or as many as
    `seconds_per_case` allows, whatever they show.
    """

    pairs_low: int = Field(default=8, ge=4)
    pairs_high: int = Field(default=24, ge=4)
    calls: int = Field(default=32, ge=1)
    block_seconds: float = 0.02
    warmup: int = 2
    slots: int = Field(default=2, ge=2)
    width: float = 0.03
    hopeless: float = 4.0
    confidence: float = 0.95
    duel_rounds: int = Field(default=3, ge=1)
    duel_pairs: int = Field(default=8, ge=4)
    duel_confidence: float = 0.99
    seconds_per_case: float = 2.5


class EvaluatorSettings(Frozen):
    """Everything that decides what an evaluation says. Frozen at the start of a run."""

    precision: Precision = "strict"
    trials: Trials = Trials()
    deadlines: Deadlines = Deadlines()
    timing: TimingRules = TimingRules()
    memory_bytes: int | None = None
    threads: int | None = None
    isolation: Literal["auto", "required"] = "auto"
    outputs_only: bool = False
    baselines: tuple[Literal["eager", "torch.compile"], ...] = ("eager", "torch.compile")
    slowest_ratio: float = 200.0

    def verdict_parts(self) -> dict[str, object]:
        """The settings that could change a verdict: those that enter its memo key."""
        return {
            "precision": self.precision,
            "given": self.trials.given,
            "distributions": list(self.trials.distributions),
            "large": list(self.trials.large),
            "large_bytes": self.trials.large_bytes,
            "deadlines": self.deadlines.model_dump(),
            "memory_bytes": self.memory_bytes,
            "threads": self.threads,
            "outputs_only": self.outputs_only,
            "slowest_ratio": self.slowest_ratio,
        }
