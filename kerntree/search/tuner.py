"""Which config of a candidate to measure next: neighbours of the best so far, then a model."""

import random
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from math import prod

from kerntree.plans.candidate import Candidate, Config, Tunables
from kerntree.search.tree import config_key

_DRAWS = 16


@dataclass(frozen=True)
class Trial:
    """A config already measured; `value` is its reward, None where it did not work."""

    config: Config
    value: float | None


def projected(config: Config, candidate: Candidate) -> Config:
    """A config of another candidate carried over to this one's tunables.

    A number that this candidate does not admit becomes its nearest admissible one; what the other
    config does not name keeps the candidate's own.
    """
    result: Config = {}
    for name, values in candidate.tunables.items():
        own = candidate.config.get(name, values[0])
        wanted = config.get(name, own)
        result[name] = min(values, key=lambda v: abs(v - wanted))
    return result


def next_config(
    tunables: Tunables, history: Sequence[Trial], *, neighbours: int, limit: int, seed: int
) -> Config | None:
    """The config to measure after those in `history`, or None when the race is over.

    Up to `neighbours` configs after the first are one step away from the best so far, in the
    tunables' order; the rest, up to `limit` in all, are proposed by Optuna. Never one of `history`.
    The answer depends on the arguments alone, so that a resumed race goes on where it stopped.
    """
    names = [name for name, values in tunables.items() if len(values) > 1]
    space = prod(len(tunables[name]) for name in names)
    if not history or len(history) >= min(limit, space):
        return None
    seen = {config_key(trial.config) for trial in history}
    if len(history) <= neighbours:
        worked = [trial for trial in history if trial.value is not None]
        around = max(worked, key=lambda t: t.value or 0.0) if worked else history[0]
        for config in _neighbours(tunables, around.config):
            if config_key(config) not in seen:
                return config
    return _modelled(tunables, names, history, seen, seed) or _unseen(tunables, seen)


def _neighbours(tunables: Tunables, config: Config) -> Iterator[Config]:
    for name, values in tunables.items():
        if config.get(name) not in values:
            continue
        place = values.index(config[name])
        for other in (place + 1, place - 1):
            if 0 <= other < len(values):
                yield {**config, name: values[other]}


def _modelled(
    tunables: Tunables, names: list[str], history: Sequence[Trial], seen: set[str], seed: int
) -> Config | None:
    """A draw of the tree-structured Parzen estimator; None if it only repeats itself."""
    import optuna

    from_index = {name: optuna.distributions.IntDistribution(0, len(tunables[name]) - 1)
                  for name in names}  # fmt: skip
    fixed = {name: values[0] for name, values in tunables.items() if len(values) == 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            multivariate=True,
            group=True,
            n_startup_trials=4,
            seed=random.Random(f"{seed}:{len(history)}").getrandbits(31),
        )
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = optuna.create_study(direction="maximize", sampler=sampler)
        complete, failed = optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.FAIL
        for trial in history:
            if any(trial.config.get(name) not in tunables[name] for name in names):
                continue
            study.add_trial(
                optuna.trial.create_trial(
                    params={n: tunables[n].index(trial.config[n]) for n in names},
                    distributions=dict(from_index),
                    value=trial.value,
                    state=failed if trial.value is None else complete,
                )
            )
        for _ in range(_DRAWS):
            drawn = study.ask(dict(from_index))
            chosen = {name: tunables[name][drawn.params[name]] for name in names}
            config = {name: {**fixed, **chosen}[name] for name in tunables}
            if config_key(config) not in seen:
                return config
            study.tell(drawn, state=failed)
    finally:
        optuna.logging.set_verbosity(before)
    return None


def _unseen(tunables: Tunables, seen: set[str]) -> Config | None:
    every = (dict(zip(tunables, values, strict=True)) for values in product(*tunables.values()))
    return next((c for c in islice(every, len(seen) + 1) if config_key(c) not in seen), None)
