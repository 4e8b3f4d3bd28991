"""The race of configs where every case has tunables of its own: all cases race at once.

A reward is a mean over cases, and a case's time depends on the case's own tunables, so that one
evaluation is a trial for each case. Each case climbs by itself; at the end the best of each are
measured together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2
from statistics import fmean

from kerntree.plans.candidate import Candidate, Config
from kerntree.plans.evaluation import Evaluation
from kerntree.search.reward import cautious
from kerntree.search.tree import config_key
from kerntree.search.tuner import Trial, next_config


@dataclass(frozen=True)
class CaseTrial:
    """A config already measured, its reward, and log2 of the speedup in each case.

    Where it did not work, `value` is None and `case_values` are empty.
    """

    config: Config
    value: float | None
    case_values: Mapping[str, float]


def trial_of(evaluation: Evaluation) -> CaseTrial:
    """What the race learns from an evaluation, read cautiously."""
    value = cautious(evaluation)
    cases = {} if value is None else {t.case: log2(t.ratio_low) for t in evaluation.timings}
    return CaseTrial(evaluation.config, value, cases)


def next_of_race(
    candidate: Candidate,
    history: Sequence[CaseTrial],
    *,
    neighbours: int,
    limit: int,
    seed: int,
) -> Config | None:
    """As `next_config`; tunables that matter to one case alone follow that case alone."""
    parts = _parts(candidate)
    if len(parts) < 2:
        trials = [Trial(trial.config, trial.value) for trial in history]
        return next_config(
            candidate.tunables, trials, neighbours=neighbours, limit=limit, seed=seed
        )
    if not history or len(history) >= limit:
        return None
    seen = {config_key(trial.config) for trial in history}
    together: Config = {}
    config: Config = {}
    for case, names in parts.items():
        trials = _trials(case, names, history)
        worked = [trial for trial in trials if trial.value is not None]
        best = max(worked, key=lambda t: t.value or 0.0) if worked else trials[0]
        proposed = next_config(
            {name: candidate.tunables[name] for name in names},
            trials,
            neighbours=neighbours,
            limit=limit,
            seed=seed,
        )
        together |= best.config
        config |= proposed or best.config
    together, config = _in_order(together, candidate), _in_order(config, candidate)
    last = len(history) == limit - 1
    if (last or config_key(config) in seen) and config_key(together) not in seen:
        return together
    return None if config_key(config) in seen else config


def _parts(candidate: Candidate) -> dict[str, tuple[str, ...]]:
    """Names of tunables by the case they matter to; under an empty name those for all cases."""
    parts = {case: tuple(names) for case, names in candidate.case_tunables.items() if names}
    own = {name for names in parts.values() for name in names}
    shared = tuple(name for name in candidate.tunables if name not in own)
    return {**parts, **({"": shared} if shared else {})}


def _trials(case: str, names: Sequence[str], history: Sequence[CaseTrial]) -> list[Trial]:
    """The history as one part saw it: each of its configs once, with the mean of what it gave."""
    values: dict[str, list[float]] = {}
    configs: dict[str, Config] = {}
    for trial in history:
        config = {name: trial.config[name] for name in names if name in trial.config}
        key = config_key(config)
        configs[key] = config
        found = values.setdefault(key, [])
        value = trial.case_values.get(case) if case else trial.value
        if value is not None:
            found.append(value)
    return [
        Trial(config, fmean(values[key]) if values[key] else None)
        for key, config in configs.items()
    ]


def _in_order(config: Config, candidate: Candidate) -> Config:
    return {name: config[name] for name in candidate.tunables if name in config}
