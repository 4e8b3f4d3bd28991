"""What the supervisor says to one child, in typed calls; every failure becomes a verdict."""

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

from kerntree.evaluator.blocks import OutputBlock
from kerntree.evaluator.cuda import is_handle
from kerntree.evaluator.floor import may_alias
from kerntree.evaluator.process import (
    Child,
    ChildDied,
    ChildFailure,
    ChildFlooded,
    ChildForged,
    ChildOutOfMemory,
    ChildTimedOut,
)
from kerntree.evaluator.settings import Deadlines
from kerntree.evaluator.tensor_block import Layout
from kerntree.evaluator.timing import BlockTimes
from kerntree.evaluator.trials import Prepared
from kerntree.plans.candidate import Config
from kerntree.plans.evaluation import Stage, Verdict
from kerntree.plans.problem import Case, Problem

_COLD_CALLS = 4  # until memory given back is held again by copies, results and those before
_MESSAGE_LIMIT = 2_000  # characters; a hostile child may send what it likes
_DETAIL_LIMIT = 8_000
_CHILD_VERDICTS = frozenset(Verdict) - {Verdict.CORRECT, Verdict.LOST}
"""What a child may say of itself. That it is correct, or that we lost it, is not for it to say."""


class CandidateFailed(Exception):
    """The candidate's life ended here; `verdict` says how."""

    def __init__(
        self,
        verdict: Verdict,
        stage: Stage,
        message: str,
        *,
        evidence: Mapping[str, JsonValue] | None = None,
    ) -> None:
        super().__init__(message)
        self.verdict = verdict
        self.stage = stage
        self.message = message
        self.evidence = dict(evidence or {})


class Lost(Exception):
    """The evaluator's own fault, or the machine's; worth another try."""


@dataclass(frozen=True)
class LoadOrder:
    """What a child needs to build a module: source, class, and the reference's state."""

    source: str
    class_name: str
    seed: int
    init: JsonValue
    init_layout: Layout
    state: tuple[str, ...]
    state_layout: Layout
    fds: tuple[int, int]
    config: Config | None = None
    compile: bool = False


@dataclass
class Session:
    """One child from its load to its death.

    A `thrifty` one gives its memory back when it has had its turn (`rest`), and makes
    untimed calls before the timed ones of the next.
    """

    child: Child
    problem: Problem
    deadlines: Deadlines
    outputs_only: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    loaded: dict[int, str] = field(default_factory=dict)
    thrifty: bool = False
    _cold: bool = False  # it has given back the memory that its calls take

    def load(self, order: LoadOrder) -> dict[str, Any]:
        """Imports, builds and constructs the module; the child's reply."""
        with self._spent(Stage.LOAD):
            return self._ask(
                Stage.LOAD,
                {
                    "op": "load",
                    "source": order.source,
                    "class": order.class_name,
                    "config": order.config,
                    "seed": order.seed,
                    "init": order.init,
                    "init_layout": order.init_layout.model_dump(mode="json"),
                    "state": list(order.state),
                    "state_layout": order.state_layout.model_dump(mode="json"),
                    "folder": self.problem.folder,
                    "mode": self.problem.mode,
                    "compile": order.compile,
                },
                fds=order.fds,
                timeout=self.deadlines.load + self.deadlines.build,
            )

    def inputs(self, slot: int, prepared: Prepared) -> str:
        """Gives the child a set of inputs, unless the slot holds it already.

        On a GPU the child lends memory for it: the handle, which the oracle is to fill.
        """
        if self.loaded.get(slot) == prepared.name:
            return ""
        lent = prepared.fd < 0
        message = {
            "op": "inputs",
            "slot": slot,
            "args": prepared.args,
            "paths": list(prepared.paths),
            "layout": prepared.layout.model_dump(mode="json"),
            "buffers": [
                name
                for case in self.problem.cases
                if case.name == prepared.case
                for name in case.mutated_buffers
            ],
        }
        with self._spent(Stage.CHECK):
            reply = self._ask(
                Stage.CHECK,
                message,
                fds=() if lent else (prepared.fd,),
                timeout=self.deadlines.run,
            )
        self.loaded[slot] = prepared.name
        return _handle(reply, Stage.CHECK) if lent else ""

    def run(self, slot: int, case: Case, block: OutputBlock, *, timeout: float) -> None:
        """One checked call; its outputs lie in `block` afterwards."""
        with self._spent(Stage.CHECK):
            message = {"op": "run", "slot": slot, **self._expected(case, block)}
            self._fill(Stage.CHECK, message, block, timeout=timeout)

    def time(
        self, slots: Sequence[int], *, warmup: int, timeout: float, graph: bool = False
    ) -> BlockTimes:
        """One timed call a slot after `warmup` untimed ones, by the child's clock and by ours.

        `graph`: replays of a CUDA graph instead of calls.
        """
        with self._spent(Stage.TIME):
            if self._cold:
                message = {"op": "time", "slots": [slots[0]] * _COLD_CALLS, "warmup": _COLD_CALLS}
                self._ask(Stage.TIME, message, timeout=timeout)
                self._cold = False
            start = time.perf_counter_ns()
            reply = self._ask(
                Stage.TIME,
                {
                    "op": "time",
                    "slots": [slots[0]] * warmup + list(slots),
                    "warmup": warmup,
                    "graph": graph,
                },
                timeout=timeout,
            )
            wall = time.perf_counter_ns() - start
        claims = reply.get("ns")
        if (
            not isinstance(claims, list)
            or len(claims) != len(slots)
            or not all(
                isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e15
                for value in claims
            )
        ):
            raise CandidateFailed(
                Verdict.FORGED, Stage.TIME, "the times that came back are not times of these calls"
            )
        return BlockTimes(tuple(float(value) for value in claims), float(wall))

    def submit(self, case: Case, block: OutputBlock, *, timeout: float) -> None:
        """The outputs of the last timed call, into `block`."""
        with self._spent(Stage.TIME):
            message = {"op": "submit", **self._expected(case, block)}
            self._fill(Stage.TIME, message, block, timeout=timeout)

    def rest(self, *, slots: Sequence[int] = ()) -> None:
        """Has a thrifty child give back what its last call took, and these slots."""
        if not self.thrifty:
            return
        for slot in slots:
            self.loaded.pop(slot, None)
        with self._spent(Stage.TIME):
            message = {"op": "release", "slots": list(slots)}
            self._ask(Stage.TIME, message, timeout=self.deadlines.run)
        self._cold = True

    def close(self) -> None:
        self.child.close()

    def _expected(self, case: Case, block: OutputBlock) -> dict[str, JsonValue]:
        return {
            "layout": block.layout.model_dump(mode="json"),
            "tree": case.output_tree,
            "mutated": list(case.mutated_inputs),
            "buffers": list(case.mutated_buffers),
            "aliases": may_alias(case),
            "outputs_only": self.outputs_only,
        }

    def _fill(
        self, stage: Stage, message: dict[str, Any], block: OutputBlock, *, timeout: float
    ) -> None:
        if block.fd >= 0:
            self._ask(stage, message, fds=(block.fd,), timeout=timeout)
        else:
            block.handle = _handle(self._ask(stage, message, timeout=timeout), stage)

    def _ask(
        self,
        stage: Stage,
        message: dict[str, Any],
        *,
        fds: Sequence[int] = (),
        timeout: float,
    ) -> dict[str, Any]:
        try:
            reply, received = self.child.request(message, fds=fds, timeout=timeout)
        except ChildFailure as failure:
            raise _ended(failure, stage) from failure
        for descriptor in received:  # a child has nothing to give us
            with suppress(OSError):
                os.close(descriptor)
        if reply.get("ok") is True:
            return reply
        raise _told(reply, stage)

    @contextmanager
    def _spent(self, stage: Stage) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.monotonic() - start


def _handle(reply: Mapping[str, Any], stage: Stage) -> str:
    handle = reply.get("handle")
    if not is_handle(handle):
        raise CandidateFailed(
            Verdict.FORGED, stage, "the reply has no handle of the memory that it should lend"
        )
    return str(handle)


def _told(reply: Mapping[str, Any], stage: Stage) -> CandidateFailed:
    """A failure that the child itself reports, held to what it may say."""
    try:
        verdict, where = Verdict(reply["verdict"]), Stage(reply["stage"])
    except (KeyError, ValueError):
        verdict, where = Verdict.FORGED, stage
    if verdict not in _CHILD_VERDICTS:
        verdict = Verdict.FORGED
    message = str(reply.get("message", "a reply that says nothing"))[:_MESSAGE_LIMIT]
    detail = str(reply.get("detail", ""))[-_DETAIL_LIMIT:]
    return CandidateFailed(verdict, where, message, evidence={"detail": detail} if detail else None)


def _ended(failure: ChildFailure, stage: Stage) -> CandidateFailed | Lost:
    """What a child's end says of its candidate."""
    evidence: dict[str, JsonValue] = {"output": failure.output} if failure.output else {}
    match failure:
        case ChildTimedOut():
            verdict = Verdict.TIMED_OUT
        case ChildFlooded():
            verdict = Verdict.FLOODED
        case ChildForged():
            verdict = Verdict.FORGED
        case ChildOutOfMemory():
            verdict = Verdict.OUT_OF_MEMORY
        case ChildDied(exit=None):
            return Lost(failure.message)
        case ChildDied(exit=code) if code == -signal.SIGSYS:
            verdict = Verdict.FORBIDDEN
        case _:
            verdict = Verdict.CRASHED
    return CandidateFailed(verdict, stage, failure.message, evidence=evidence)
