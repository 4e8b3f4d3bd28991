"""The oracle: the trusted process that runs the reference and judges results.

Run as `python -P -m kerntree.evaluator.oracle SOCKET LIFELINE [DEVICE PRECISION]`, the first two
inherited descriptors; the device is `cpu`, `cuda`, or `auto` for a GPU where one can be used. It
alone knows what the right answers are; candidates run elsewhere and get inputs only. Every
request carries all that its answer depends on, so that a new oracle can take the place of one
that died.
"""

import faulthandler
import gc
import hashlib
import os
import socket
import sys
import traceback
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from kerntree.evaluator.compare import OutputFinding, compare
from kerntree.evaluator.cuda_device import GpuFacts
from kerntree.evaluator.describe import describe, pin_precision
from kerntree.evaluator.device_block import BlockRefused, untouched
from kerntree.evaluator.expectation import (
    CHANGED,
    Expectation,
    Writes,
    expectation,
    with_response,
)
from kerntree.evaluator.inputs import has_float_tensor, make_inputs
from kerntree.evaluator.lifeline import die_with
from kerntree.evaluator.oracle_ground import (
    CpuBlocks,
    CudaBlocks,
    OracleGround,
    gpu_facts,
    sealed,
)
from kerntree.evaluator.problem_file import (
    ProblemCase,
    ProblemFile,
    load_problem_file,
    out_of_memory,
)
from kerntree.evaluator.recipe import Recipe, Subject
from kerntree.evaluator.reference import Built, build, observe, tensor_leaves
from kerntree.evaluator.refusal import poisoned
from kerntree.evaluator.tensor_block import encode, pack, tensor_paths
from kerntree.evaluator.transport import TransportClosed, receive, send
from kerntree.plans.errors import ProblemError

_REQUEST_LIMIT = 64 << 20
_DETAIL_LIMIT = 4000  # characters of an own failure's traceback
_STATES = 2  # modules kept: of this state and of the one before
_SHARE = 4  # of the available memory, one part in so many is for expectations
_SHARE_GIVEN = 16  # and one in so many for inputs that are on a GPU


Reply = tuple[dict[str, Any], list[int]]


@dataclass
class Oracle:
    """Answers requests; what it keeps between them only saves time."""

    budget: int  # bytes of expectations
    ground: OracleGround = field(default_factory=CpuBlocks)
    tf32: bool = False
    files: dict[Subject, ProblemFile] = field(default_factory=dict)
    varies: dict[Subject, bool] = field(default_factory=dict)
    states: OrderedDict[tuple[Subject, int], Built] = field(default_factory=OrderedDict)
    sets: OrderedDict[str, Expectation] = field(default_factory=OrderedDict)
    given: OrderedDict[str, list[Any]] = field(default_factory=OrderedDict)

    def state(self, subject: Subject, seed: int) -> Reply:
        """The constructor's arguments and the module's state, as blocks nobody can write to."""
        built = self._built(subject, seed)
        init, init_tensors = _encoded(built.init, subject)
        init_layout, init_fd = pack(init_tensors)
        state_layout, state_fd = pack(list(built.state.values()))
        reply = {
            "init": init,
            "init_layout": init_layout.model_dump(mode="json"),
            "names": list(built.state),
            "state_layout": state_layout.model_dump(mode="json"),
        }
        return reply, [sealed(init_fd), sealed(state_fd)]

    def prepare(self, recipe: Recipe) -> Reply:
        """A set of inputs as a block, or why this distribution cannot be used."""
        expected, args, skipped = self._made(recipe)
        if expected is None:
            return {"skipped": skipped}, []
        self._keep(recipe, expected)
        tree, tensors = _encoded(args, recipe.subject)
        layout, fds = self.ground.shared(tensors)
        if not fds:
            self._keep_given(recipe, args)
        reply = {
            "skipped": "",
            "args": tree,
            "paths": tensor_paths(tree),
            "layout": layout.model_dump(mode="json"),
        }
        return reply, fds

    def fill(self, recipe: Recipe, handle: str) -> Reply:
        """Writes a set of inputs into a block that a child lends."""
        args = self.given.get(recipe.key)
        if args is None:
            args = self._inputs(recipe)
        self.ground.fill(handle, _encoded(args, recipe.subject)[1])
        return {}, []

    def compare(
        self, recipe: Recipe, fds: list[int], *, outputs_only: bool, handle: str = ""
    ) -> Reply:
        """Whether the results in a block are right."""
        expected = self.sets.get(recipe.key)
        if expected is None:
            expected, _, skipped = self._made(recipe)
            if expected is None:
                raise ProblemError(skipped)
        self._keep(recipe, expected)
        loose = outputs_only, self.tf32
        with self.ground.results(recipe.layout, fds, handle) as actual:
            findings = _findings(actual, expected, recipe, *loose)
            if not all(finding.ok for finding in findings):
                exact = self._with_response(recipe, expected)
                if exact is not expected:
                    self._keep(recipe, exact)
                    findings = _findings(actual, exact, recipe, *loose)
            blank = not all(finding.ok for finding in findings) and untouched(actual)
        return {**_judged(findings), "untouched": blank}, []

    def forget(self, recipe: Recipe) -> Reply:
        """Frees an expectation."""
        self.sets.pop(recipe.key, None)
        self.given.pop(recipe.key, None)
        return {}, []

    def _file(self, subject: Subject) -> ProblemFile:
        if subject not in self.files:
            file = load_problem_file(subject.path, device=self.ground.kind)
            if hashlib.sha256(file.source.encode()).hexdigest() != subject.digest:
                raise ProblemError(f"{subject.path} has changed since this run described it")
            pin_precision(file, tf32=self.tf32)
            self.files[subject] = file
        return self.files[subject]

    def _built(self, subject: Subject, seed: int) -> Built:
        key = (subject, seed)
        if key not in self.states:
            file = self._file(subject)
            self.states[key] = build(
                file, seed=seed, mode=subject.mode, varied=self._can_vary(subject)
            )
            while len(self.states) > _STATES:
                self.states.popitem(last=False)
        self.states.move_to_end(key)
        return self.states[key]

    def _can_vary(self, subject: Subject) -> bool:
        """Whether the reference still works where parameters of ones and zeros are others."""
        if subject not in self.varies:
            file = self._file(subject)
            built = build(file, seed=0, mode=subject.mode, varied=True)
            self.varies[subject] = all(_finite(file, built, case) for case in file.cases)
        return self.varies[subject]

    def _made(self, recipe: Recipe) -> tuple[Expectation | None, list[Any], str]:
        """The expectation and the inputs, or None and the reason why they are of no use."""
        file = self._file(recipe.subject)
        built = self._built(recipe.subject, recipe.state)
        given = recipe.distribution == "given"
        args = self._inputs(recipe)
        if not given and recipe.distribution != "strided" and not has_float_tensor(args):
            return None, args, "no input is a float tensor"
        writes = Writes(inputs=recipe.inputs, buffers=recipe.buffers)
        try:
            expected = expectation(file, built, args, writes, seed=recipe.seed)
        except ProblemError as error:
            if given:
                raise
            return None, args, f"the reference does not take them: {error}"
        reason = self._useless(recipe, expected)
        return (None, args, reason) if reason else (expected, args, "")

    def _with_response(self, recipe: Recipe, expected: Expectation) -> Expectation:
        file = self._file(recipe.subject)
        args = self._inputs(recipe)
        writes = Writes(inputs=recipe.inputs, buffers=recipe.buffers)
        built = self._built(recipe.subject, recipe.state)
        return with_response(expected, file, built, args, writes, seed=recipe.seed)

    def _inputs(self, recipe: Recipe) -> list[Any]:
        file = self._file(recipe.subject)
        case = file.case(recipe.case)
        return make_inputs(file, case, seed=recipe.seed, distribution=recipe.distribution)

    def _keep_given(self, recipe: Recipe, args: list[Any]) -> None:
        """Keeps inputs that each child will ask for, where they are small enough."""
        self.given[recipe.key] = args
        while self.given and sum(map(_size, self.given.values())) > self.budget // _SHARE_GIVEN:
            self.given.popitem(last=False)

    def _useless(self, recipe: Recipe, expected: Expectation) -> str:
        """Why results on these inputs could not be judged, or nothing."""
        form = [(t.shape, t.dtype) for t in expected.tensors]
        described = [(p.spec.shape, p.spec.dtype) for p in recipe.layout.tensors]
        if form != described or expected.tree != recipe.tree:
            message = "the form of the reference's result depends on the values of its inputs"
            if recipe.distribution == "given":
                raise ProblemError(f"{recipe.subject.path}: {message}; it must not")
            return message
        if recipe.distribution == "given":
            return ""
        if expected.finite and not expected.unsound:
            return ""
        alike, _, _ = self._made(recipe.replaced(distribution="given"))
        if alike is not None and not expected.finite and alike.finite:
            return "the reference's result is not finite there"
        if alike is not None and expected.unsound and not alike.unsound:
            return expected.unsound
        return ""  # no worse than on the problem's own inputs

    def _keep(self, recipe: Recipe, expected: Expectation) -> None:
        self.sets[recipe.key] = expected
        self.sets.move_to_end(recipe.key)
        total = sum(entry.bytes for entry in self.sets.values())
        while total > self.budget and len(self.sets) > 1:
            _, dropped = self.sets.popitem(last=False)
            total -= dropped.bytes


def serve(sock: socket.socket, ground: OracleGround, *, tf32: bool = False) -> None:
    """Answers requests until the other end closes."""
    oracle = Oracle(budget=ground.memory() // _SHARE, ground=ground, tf32=tf32)

    def described(message: dict[str, Any]) -> Reply:
        def tell(stage: str) -> None:
            send(sock, {"stage": stage})

        found = describe(
            message["path"],
            progress=tell,
            device=ground.kind,
            tf32=tf32,
            available=ground.memory(),
        )
        return {"problem": found.model_dump(mode="json")}, []

    lost = False  # the device's context: another process, with its own, must take our place
    while not lost:
        try:
            message, fds = receive(sock, limit=_REQUEST_LIMIT)
        except TransportClosed:
            return
        try:
            reply, sent = _answer(oracle, message, fds, described)
            reply = {"ok": True, **reply}
        except ProblemError as error:
            reply, sent = {"ok": False, "problem": str(error)}, []
            lost = bool(error.__cause__ and poisoned(error.__cause__))
        except BlockRefused as error:
            reply, sent = {"ok": False, "refused": str(error)}, []
        except Exception as error:  # ours: the supervisor reports it as such
            if poisoned(error):
                raise
            reply, sent = _failed(error), []
        if not lost:
            ground.tidy()
        try:
            send(sock, reply, fds=sent)
        except TransportClosed:
            return
        finally:
            for fd in (*fds, *sent):
                os.close(fd)


def _failed(error: Exception) -> dict[str, Any]:
    if out_of_memory(error):
        text = f"the float64 evaluation runs out of memory ({error}); reduce the shapes"
        return {"ok": False, "problem": text}
    detail = "".join(traceback.format_exception(error))[-_DETAIL_LIMIT:]
    print(detail, file=sys.stderr, flush=True)
    return {"ok": False, "failed": f"{type(error).__name__}: {error}"}


def _answer(
    oracle: Oracle,
    message: dict[str, Any],
    fds: list[int],
    described: Callable[[dict[str, Any]], Reply],
) -> Reply:
    match message["op"]:
        case "describe":
            return described(message)
        case "state":
            return oracle.state(Subject.model_validate(message["subject"]), message["seed"])
        case "prepare":
            return oracle.prepare(Recipe.model_validate(message["recipe"]))
        case "compare":
            recipe = Recipe.model_validate(message["recipe"])
            return oracle.compare(
                recipe, fds, outputs_only=message["outputs_only"], handle=message["handle"]
            )
        case "fill":
            return oracle.fill(Recipe.model_validate(message["recipe"]), message["handle"])
        case "forget":
            return oracle.forget(Recipe.model_validate(message["recipe"]))
    raise ValueError(f"an unknown request {message['op']!r}")


def _findings(
    actual: list[torch.Tensor],
    expected: Expectation,
    recipe: Recipe,
    outputs_only: bool,
    tf32: bool,
) -> list[OutputFinding]:
    return [
        compare(
            tensor,
            wanted,
            case=recipe.case,
            inputs=recipe.distribution,
            kernelbench=recipe.distribution == "given" and not tf32,
        )
        for tensor, wanted in zip(actual, expected.tensors, strict=True)
        if not (outputs_only and wanted.path.startswith(CHANGED))
    ]


def _judged(findings: list[OutputFinding]) -> dict[str, Any]:
    failed = [finding for finding in findings if not finding.ok]
    message = failed[0].message if failed else ""
    if len(failed) > 1:
        message += f" (and {len(failed) - 1} more of the results are wrong)"
    return {
        "verdict": not failed,
        "errors": [finding.error.model_dump(mode="json") for finding in findings],
        "message": message,
        "evidence": failed[0].evidence if failed else {},
    }


def _finite(file: ProblemFile, built: Built, case: ProblemCase) -> bool:
    try:
        found = observe(file, built, make_inputs(file, case, seed=0), seed=0)
    except ProblemError:
        return False
    return all(bool(tensor.isfinite().all()) for tensor in found.outputs.values())


def _size(args: list[Any]) -> int:
    return sum(t.numel() * t.element_size() for t in tensor_leaves(args).values())


def _encoded(value: Any, subject: Subject) -> tuple[Any, list[torch.Tensor]]:
    try:
        return encode(value)
    except TypeError as error:
        raise ProblemError(f"{subject.path}: {error}; pass tensors, numbers and texts") from None


def main(descriptor: int, lifeline: int, device: str = "cpu", precision: str = "strict") -> None:
    """Serves one supervisor. Says first what it stands on, or what is in the way."""
    die_with(lifeline)
    faulthandler.enable()  # a crash in the user's code leaves its place on stderr
    sock = socket.socket(fileno=descriptor)
    facts = gpu_facts() if device != "cpu" else ""
    ready: dict[str, Any] = {"ready": True, "torch": str(torch.__version__)}
    if isinstance(facts, GpuFacts):
        send(sock, {**ready, "device": "cuda", "facts": facts.model_dump(mode="json")})
        gc.collect()
        gc.freeze()  # what torch has loaded need not be walked after each request
        serve(sock, CudaBlocks(), tf32=precision == "tf32")
    elif device == "cuda":
        send(sock, {**ready, "obstacle": facts})
    else:
        send(sock, {**ready, "device": "cpu", "why": facts})
        serve(sock, CpuBlocks())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
