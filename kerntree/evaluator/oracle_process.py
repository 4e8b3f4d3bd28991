"""The supervisor's hold on the oracle; imports no torch and loads no user code."""

import contextlib
import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import JsonValue

from kerntree.evaluator.blocks import output_layout
from kerntree.evaluator.cuda_device import GpuFacts
from kerntree.evaluator.distributions import Distribution
from kerntree.evaluator.oracle_link import OracleFailed, OracleLink
from kerntree.evaluator.recipe import Recipe, Subject
from kerntree.evaluator.tensor_block import Layout
from kerntree.evaluator.transport import TransportError, TransportTimeout
from kerntree.evaluator.trials import Comparison, Prepared
from kerntree.plans.errors import ProblemError, SettingsError
from kerntree.plans.evaluation import OutputError
from kerntree.plans.problem import Problem

_ATTEMPTS = 2


class BlockUnusable(Exception):
    """A child's block of device memory cannot be opened, or is too small."""


@dataclass(frozen=True)
class ReferenceState:
    """The constructor's arguments and the module's state under one seed, as blocks.

    `fds` are the descriptors of both, read-only; `close` closes them.
    """

    seed: int
    init: JsonValue
    init_layout: Layout
    names: tuple[str, ...]
    state_layout: Layout
    fds: tuple[int, int]

    def close(self) -> None:
        for fd in self.fds:
            with contextlib.suppress(OSError):
                os.close(fd)


@dataclass
class OracleProcess:
    """Implements `trials.Oracle`. A process that died is replaced with the next request.

    `seconds` is how long a request may take. A new state (`state`) applies to all that is
    prepared after it. With `outputs_only`, what the reference writes to inputs and buffers is
    not compared. What torch's compiler keeps goes to `caches`; without it, where torch puts it.
    `device` is `cpu`, `cuda`, or `auto`, which the first process turns into one of them.
    Not to be used by two threads at a time.
    """

    seconds: float = 300.0
    outputs_only: bool = False
    caches: Path | None = None
    device: str = "cpu"
    precision: str = "strict"
    problem: Problem | None = None
    spent: float = 0.0
    _process: OracleLink | None = None
    _state: int = 0
    _recipes: dict[str, Recipe] = field(default_factory=dict)
    _count: int = 0

    @classmethod
    def start(
        cls,
        *,
        problem: Problem | None = None,
        seconds: float = 300.0,
        outputs_only: bool = False,
    ) -> Self:
        """Starts the process; `problem` is one that an earlier run described."""
        oracle = cls(seconds=seconds, outputs_only=outputs_only, problem=problem)
        oracle._process = OracleLink.start()
        return oracle

    def facts(self) -> GpuFacts | None:
        """The GPU that it runs on, or None on the CPU; raises `SettingsError` if there is none."""
        ready = self._living().ready
        return GpuFacts.model_validate(ready["facts"]) if "facts" in ready else None

    @property
    def pid(self) -> int | None:
        """The process's id, None while there is none."""
        return self._process.popen.pid if self._process else None

    def describe(self, path: str | Path, *, deadline_seconds: float | None = None) -> Problem:
        """Describes a problem file, and is about that problem from then on.

        Raises `ProblemError` if the file cannot be used, hangs, or ends the process.
        """
        seconds = self.seconds if deadline_seconds is None else deadline_seconds
        process = self._living()
        file = Path(path).absolute()
        stages: list[str] = []
        try:
            reply, _ = process.request(
                {"op": "describe", "path": str(file)}, seconds=seconds, stages=stages
            )
        except TransportTimeout:
            self._drop()
            raise ProblemError(
                f"{file}: not done after {seconds:g} s, in {_last(stages)}; make it faster or "
                "the shapes smaller"
            ) from None
        except TransportError:
            how = self._drop()
            raise ProblemError(f"{file}: ended the process in {_last(stages)}: {how}") from None
        self.problem = Problem.model_validate(_checked(reply)["problem"])
        self._state = 0
        return self.problem

    def state(self, seed: int) -> ReferenceState:
        """The reference's state under a seed; all that is prepared later is under it as well.

        Parameters that the constructor fills with one number have other values, if the reference
        works with them: see `reference.build`.
        """
        reply, fds = self._request({"op": "state", "subject": self._subject(), "seed": seed})
        self._state = seed
        return ReferenceState(
            seed=seed,
            init=reply["init"],
            init_layout=Layout.model_validate(reply["init_layout"]),
            names=tuple(reply["names"]),
            state_layout=Layout.model_validate(reply["state_layout"]),
            fds=(fds[0], fds[1]),
        )

    def prepare(self, case: str, *, seed: int, distribution: Distribution = "given") -> Prepared:
        """Makes inputs, and what the reference gives for them, which stays with the oracle.

        `skipped` in the result says why the distribution is of no use here. Raises `ProblemError`
        if the reference fails on its own inputs, and `OracleFailed`.
        """
        problem = self._described()
        found = next((entry for entry in problem.cases if entry.name == case), None)
        if found is None:
            raise ProblemError(f"{problem.path} has no case {case!r}")
        recipe = Recipe(
            subject=Subject.model_validate(self._subject()),
            state=self._state,
            case=case,
            seed=seed,
            distribution=distribution,
            inputs=found.mutated_inputs,
            buffers=found.mutated_buffers,
            layout=output_layout(problem, found),
            tree=found.output_tree,
        )
        reply, fds = self._request({"op": "prepare", "recipe": recipe.model_dump(mode="json")})
        self._count += 1
        name = f"set {self._count}"
        if reply["skipped"]:
            return Prepared(
                name=name,
                case=case,
                distribution=distribution,
                args=None,
                paths=(),
                layout=Layout(tensors=(), bytes=0),
                fd=-1,
                skipped=reply["skipped"],
            )
        self._recipes[name] = recipe
        return Prepared(
            name=name,
            case=case,
            distribution=distribution,
            args=reply["args"],
            paths=tuple(reply["paths"]),
            layout=Layout.model_validate(reply["layout"]),
            fd=fds[0] if fds else -1,
        )

    def fill(self, prepared: Prepared, *, handle: str) -> None:
        """Writes a set into a block of device memory that a child lends.

        Raises `BlockUnusable` for what the oracle cannot open, and `OracleFailed`.
        """
        recipe = self._recipes[prepared.name]
        message = {"op": "fill", "recipe": recipe.model_dump(mode="json"), "handle": handle}
        self._request(message)

    def compare(
        self, prepared: Prepared, *, layout: Layout, fd: int, handle: str = ""
    ) -> Comparison:
        """Judges the results in a block; `layout` is `output_layout`'s.

        The block is a descriptor's or, on a GPU, that of a handle. Raises `ValueError` for a set
        that was forgotten or another layout, `BlockUnusable`, and `OracleFailed`.
        """
        recipe = self._recipes.get(prepared.name)
        if recipe is None or layout != recipe.layout:
            raise ValueError(f"{prepared.name} is forgotten or skipped, or its layout is another")
        message = {
            "op": "compare",
            "recipe": recipe.model_dump(mode="json"),
            "outputs_only": self.outputs_only,
            "handle": handle,
        }
        reply, _ = self._request(message, fds=[fd] if fd >= 0 else [])
        return Comparison(
            ok=reply["verdict"],
            errors=tuple(OutputError.model_validate(entry) for entry in reply["errors"]),
            message=reply["message"],
            evidence=reply["evidence"],
            untouched=reply["untouched"],
        )

    def forget(self, prepared: Prepared) -> None:
        """Frees a set and closes its block. May be called twice."""
        recipe = self._recipes.pop(prepared.name, None)
        if recipe is None:
            return
        if prepared.fd >= 0:
            os.close(prepared.fd)
        if self._process is not None:  # a dead oracle has forgotten already
            with contextlib.suppress(OracleFailed):
                self._request({"op": "forget", "recipe": recipe.model_dump(mode="json")})

    def restart(self) -> None:
        """Ends the process; the next request starts another."""
        self._drop()

    def close(self) -> None:
        """Ends the process. May be called twice."""
        self._drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _request(
        self, message: dict[str, Any], *, fds: Sequence[int] = ()
    ) -> tuple[dict[str, Any], list[int]]:
        how = ""
        for _ in range(_ATTEMPTS):
            process = self._living()
            started = time.monotonic()
            try:
                reply, received = process.request(message, fds=fds, seconds=self.seconds)
            except TransportTimeout:
                self._drop()
                raise OracleFailed(
                    f"the reference's evaluation took more than {self.seconds:g} s"
                ) from None
            except TransportError:
                how = self._drop()
                continue
            finally:
                self.spent += time.monotonic() - started
            return _checked(reply), received
        raise OracleFailed(f"the process that runs the reference died twice: {how}")

    def _living(self) -> OracleLink:
        if self._process is None:
            link = OracleLink.start(self.caches, device=self.device, precision=self.precision)
            if obstacle := link.ready.get("obstacle"):
                link.end()
                raise SettingsError(f"device {self.device}: {obstacle}")
            self._process, self.device = link, link.ready["device"]
        return self._process

    def _drop(self) -> str:
        if self._process is None:
            return ""
        process, self._process = self._process, None
        return process.end()

    def _described(self) -> Problem:
        if self.problem is None:
            raise ValueError("the oracle has not described a problem yet")
        return self.problem

    def _subject(self) -> dict[str, Any]:
        problem = self._described()
        digest = hashlib.sha256(problem.source.encode()).hexdigest()
        return Subject(path=problem.path, digest=digest, mode=problem.mode).model_dump()


def _checked(reply: dict[str, Any]) -> dict[str, Any]:
    if reply.get("ok"):
        return reply
    if "problem" in reply:
        raise ProblemError(reply["problem"])
    if "refused" in reply:
        raise BlockUnusable(reply["refused"])
    raise OracleFailed(f"the oracle failed: {reply.get('failed')}")


def _last(stages: Sequence[str]) -> str:
    return stages[-1] if stages else "its start"
