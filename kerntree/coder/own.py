"""A kernel of the user's as a step of the search: text that is judged and tuned, not rewritten."""

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

from kerntree.plans.candidate import Candidate, Config, Tunables
from kerntree.plans.errors import CannotRealizeError, SettingsError
from kerntree.plans.problem import Problem
from kerntree.plans.protocols import Coder
from kerntree.plans.strategy import Strategy

KIND = "start"
_EXPECTED_GAIN = 1.0  # log2: whoever brings a kernel believes in it


@dataclass(frozen=True)
class OwnKernel:
    """The text of a module with `class ModelNew`, and the name it goes by."""

    name: str
    source: str


def candidate_of(kernel: OwnKernel) -> Candidate:
    """The kernel as a candidate, with the tunables that its module declares.

    `TUNABLES` and `CONFIG` are read as literals from the text; nothing runs. Raises
    `SettingsError` if the text is no Python or has no `ModelNew`.
    """
    try:
        tree = ast.parse(kernel.source)
    except SyntaxError as error:
        raise SettingsError(f"{kernel.name}:{error.lineno}: syntax error: {error.msg}") from None
    if not any(isinstance(s, ast.ClassDef) and s.name == "ModelNew" for s in tree.body):
        raise SettingsError(f"{kernel.name} has no class ModelNew; give a module that defines it")
    tunables: Tunables = {}
    for name, values in _literal(tree, "TUNABLES").items():
        if isinstance(values, list | tuple) and values and all(_whole(v) for v in values):
            tunables[str(name)] = tuple(int(v) for v in values)
    given = _literal(tree, "CONFIG")
    config: Config = {}
    for name, values in tunables.items():
        chosen = given.get(name)
        config[name] = chosen if _whole(chosen) else values[0]
    return Candidate(source=kernel.source, language="python", tunables=tunables, config=config)


class WithOwnKernels:
    """Implements `Coder`: another coder, and steps from the root to the user's kernels."""

    def __init__(self, coder: Coder, kernels: Sequence[OwnKernel]) -> None:
        """Raises `SettingsError` for a kernel that cannot be one, or two of the same name."""
        self._coder = coder
        self._own = {kernel.name: candidate_of(kernel) for kernel in kernels}
        if len(self._own) < len(kernels):
            names = ", ".join(kernel.name for kernel in kernels)
            raise SettingsError(f"two kernels to start from have the same name: {names}")

    def root(self, problem: Problem) -> Candidate:
        """The other coder's root."""
        return self._coder.root(problem)

    def strategies(self, problem: Problem, candidate: Candidate) -> list[Strategy]:
        """At the root, a step to each of the user's kernels before all others."""
        listed = self._coder.strategies(problem, candidate)
        if not self._own or candidate.identity != self.root(problem).identity:
            return listed
        own = [
            Strategy(
                kind=KIND,
                target=name,
                instruction=f"Take the kernel of {name} as it is, and tune what it leaves open.",
                expected_gain=_EXPECTED_GAIN,
            )
            for name in self._own
        ]
        return [*own, *listed]

    def preview(self, problem: Problem, candidate: Candidate, strategy: Strategy) -> str | None:
        """The identity after the step; None if unknown."""
        if strategy.kind == KIND:
            own = self._own.get(strategy.target)
            return None if own is None else own.identity
        return self._coder.preview(problem, candidate, strategy)

    def realize(self, problem: Problem, candidate: Candidate, strategy: Strategy) -> Candidate:
        """The candidate after the step; raises `CannotRealizeError`."""
        if strategy.kind != KIND:
            return self._coder.realize(problem, candidate, strategy)
        if strategy.target not in self._own:
            raise CannotRealizeError(f"this run has no kernel {strategy.target} to start from")
        return self._own[strategy.target]


def _literal(tree: ast.Module, name: str) -> dict[str, object]:
    for statement in tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets = [statement.target]
        if not any(isinstance(t, ast.Name) and t.id == name for t in targets):
            continue
        assert isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None
        try:
            value = ast.literal_eval(statement.value)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}
    return {}


def _whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
