"""Prepared inputs: which sets a candidate meets, and how long they are kept."""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from pydantic import JsonValue

from kerntree.evaluator.distributions import Distribution
from kerntree.evaluator.settings import Trials
from kerntree.evaluator.tensor_block import Layout
from kerntree.plans.evaluation import OutputError
from kerntree.plans.problem import Case

Phase = str  # "check" or "time": a set of one phase never serves the other


@dataclass(frozen=True)
class Prepared:
    """A set of inputs whose expectation the oracle holds; `skipped` says why there is none."""

    name: str
    case: str
    distribution: Distribution
    args: JsonValue
    paths: tuple[str, ...]
    layout: Layout
    fd: int
    skipped: str = ""


@dataclass(frozen=True)
class Comparison:
    """What the oracle says of one call's outputs."""

    ok: bool
    errors: tuple[OutputError, ...]
    message: str
    evidence: Mapping[str, JsonValue]
    untouched: bool = False  # nobody wrote to some part of the block


class Oracle(Protocol):
    """The trusted process, as the supervisor sees it. Raises `OracleFailed`.

    On a GPU a prepared set has no descriptor (-1): the oracle fills blocks that children lend.
    `spent` are the seconds that all its answers have taken so far.
    """

    @property
    def spent(self) -> float: ...

    def prepare(self, case: str, *, seed: int, distribution: Distribution) -> Prepared: ...

    def fill(self, prepared: Prepared, *, handle: str) -> None: ...

    def compare(
        self, prepared: Prepared, *, layout: Layout, fd: int, handle: str = ""
    ) -> Comparison: ...

    def forget(self, prepared: Prepared) -> None: ...


@dataclass(frozen=True)
class Slot:
    """A place among the inputs of a case; whoever asks for it gets the set that is there now."""

    case: str
    phase: Phase
    distribution: Distribution
    number: int


@dataclass
class TrialInputs:
    """The prepared sets of a run, renewed before a candidate could learn them.

    Seeds come from the system's entropy and are known here and to the oracle only. Sets larger
    together than `budget` bytes are not kept.
    """

    oracle: Oracle
    trials: Trials
    budget: int
    _kept: dict[Slot, tuple[Prepared, int]] = field(default_factory=dict)

    def check_slots(self, case: Case, *, full: bool) -> tuple[Slot, ...]:
        """What a candidate is checked on: all, or the fewer of a source that passed them once."""
        count = self.trials.given if full else 1
        given = [Slot(case.name, "check", "given", k) for k in range(count)]
        names = self.trials.later
        if full:
            large = case_bytes(case) > self.trials.large_bytes
            names = self.trials.large if large else self.trials.distributions
        return (*given, *(Slot(case.name, "check", name, 0) for name in names))

    def time_slots(self, case: Case, *, count: int) -> tuple[Slot, ...]:
        """What a candidate is timed on: the problem's own inputs, not those of the check."""
        return tuple(Slot(case.name, "time", "given", k) for k in range(count))

    @contextmanager
    def at(self, slot: Slot) -> Iterator[Prepared]:
        """The set in a slot, made or renewed if need be."""
        prepared, uses = self._kept.get(slot, (None, 0))
        if prepared is None or uses >= self.trials.renew_after:
            if prepared is not None:
                self._drop(slot)
            prepared, uses = self._prepare(slot), 0
        self._kept[slot] = (prepared, uses + 1)
        try:
            yield prepared
        finally:
            if self._bytes() > self.budget:
                self._drop(slot)

    def renew(self, *, distribution: Distribution = "given") -> None:
        """Drops all sets of a distribution: who asks next gets new seeds."""
        for slot in [slot for slot in self._kept if slot.distribution == distribution]:
            self._drop(slot)

    def close(self) -> None:
        """Drops everything."""
        for slot in list(self._kept):
            self._drop(slot)

    def _prepare(self, slot: Slot) -> Prepared:
        return self.oracle.prepare(
            slot.case, seed=secrets.randbits(62), distribution=slot.distribution
        )

    def _bytes(self) -> int:
        # inputs, the float64 expectation and PyTorch's own outputs: about four times the inputs
        return sum(4 * prepared.layout.bytes for prepared, _ in self._kept.values())

    def _drop(self, slot: Slot) -> None:
        prepared, _ = self._kept.pop(slot)
        self.oracle.forget(prepared)


def case_bytes(case: Case) -> int:
    """Bytes of one set: inputs and outputs."""
    tensors = [entry.tensor for entry in case.inputs] + [entry.tensor for entry in case.outputs]
    return sum(tensor.bytes for tensor in tensors if tensor is not None)
