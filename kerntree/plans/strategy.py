"""A strategy: one semantic optimization step, without code."""

from pydantic import JsonValue

from kerntree.plans.frozen import Frozen


class Strategy(Frozen):
    """One step of a plan.

    `kind` is a term of the catalogue (lower, fuse, tile, vectorize, …) or a new one; `target`
    says what it acts on (a group of the program, an operator); `instruction` says in a sentence
    what to do. `parameters` are for the coder that listed it. `prior` in [0, 1] is the planner's
    belief that this is the step to take; `expected_gain` is log2 of the expected speedup over the
    parent; `enabling` marks a step whose point is what it makes possible.
    """

    kind: str
    target: str
    instruction: str
    parameters: dict[str, JsonValue] = {}
    prior: float = 0.0
    expected_gain: float = 0.0
    risk: float = 0.0
    enabling: bool = False
    rationale: str = ""


Plan = tuple[Strategy, ...]


def words(strategy: Strategy) -> str:
    """The step in a few words, for trees and headers."""
    return f"{strategy.kind} {strategy.target}".strip()
