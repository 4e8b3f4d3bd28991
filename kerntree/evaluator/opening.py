"""Opening an evaluator: starts the oracle and the zygote, and wires the parts together."""

import os
import secrets
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kerntree.cache.memo import Memo, key_of
from kerntree.evaluator import keys
from kerntree.evaluator.baseline import Baselines, Rival, rivals
from kerntree.evaluator.bench import Bench
from kerntree.evaluator.contest import Stopwatch
from kerntree.evaluator.cuda_device import CudaDevice
from kerntree.evaluator.device import CpuDevice, Device
from kerntree.evaluator.evaluator import LocalEvaluator
from kerntree.evaluator.guard import Guard, PlainGuard
from kerntree.evaluator.lock import device_lock, runtime_directory
from kerntree.evaluator.oracle_process import OracleProcess, ReferenceState
from kerntree.evaluator.process import ChildFailure, ChildSpec, ProcessError, Zygote
from kerntree.evaluator.room import room_for
from kerntree.evaluator.session import LoadOrder, Lost, Session
from kerntree.evaluator.settings import EVALUATOR_VERSION, EvaluatorSettings
from kerntree.evaluator.trials import TrialInputs
from kerntree.evaluator.versions import versions
from kerntree.plans.candidate import Config
from kerntree.plans.errors import SettingsError
from kerntree.plans.problem import Problem

_LOCK_SECONDS = 3600.0
_INPUT_SHARE = 4  # of the device's memory, one part in so many is for prepared inputs
_CHILD_SHARE = 2  # of the machine's, one in so many for a child
_SLACK_ON_GPU_NS = 100_000.0  # what differs between two children there, a call

DeviceKind = Literal["cpu", "cuda", "auto"]


@dataclass
class Nursery:
    """Starts children in the zygote, and another zygote where one is gone."""

    problem: Problem
    settings: EvaluatorSettings
    device: Device
    state: ReferenceState
    work_directory: Path
    zygote: Zygote | None = None
    level: str = "unknown"
    sick: bool = False  # the zygote did not answer, though it may not have ended yet

    def open(self, source: str, class_name: str, config: Config | None, compiled: bool) -> Session:
        """A child with that module loaded; raises `CandidateFailed` or `Lost`."""
        if self.zygote is not None and not self.zygote.alive:
            raise Lost("the process that starts children died")
        try:
            child = self._living().spawn(self._spec(compiled))
        except (ChildFailure, OSError) as error:
            raise Lost(f"no child could be started: {error}") from error
        except ProcessError as error:
            self.sick = True
            raise Lost(f"no child could be started: {error}") from error
        self.level = child.level
        session = Session(
            child, self.problem, self.settings.deadlines, outputs_only=self.settings.outputs_only
        )
        order = LoadOrder(
            source=source,
            class_name=class_name,
            seed=self.state.seed,
            init=self.state.init,
            init_layout=self.state.init_layout,
            state=self.state.names,
            state_layout=self.state.state_layout,
            fds=self.state.fds,
            config=config,
            compile=compiled,
        )
        try:
            session.load(order)
        except BaseException:
            session.close()
            raise
        return session

    def recover(self) -> bool:
        """Lets go of a zygote that died with its children; the next child starts another."""
        if self.zygote is None or (self.zygote.alive and not self.sick):
            return False
        self.close()
        return True

    def close(self) -> None:
        if self.zygote is not None:
            self.zygote.close()
            self.zygote, self.sick = None, False

    def _living(self) -> Zygote:
        if self.zygote is None:
            self.zygote = Zygote.start(threads=self.device.threads, device=self.device.kind)
        return self.zygote

    def _spec(self, compiled: bool) -> ChildSpec:
        writable: tuple[str, ...] = ()
        on_gpu = self.device.kind != "cpu"
        environment = {"TRITON_CACHE_DIR": "/tmp/triton"} if on_gpu else {}
        if compiled:
            cache = self.work_directory / "inductor"
            cache.mkdir(parents=True, exist_ok=True)
            writable = (str(cache),)
            environment = {
                "TORCHINDUCTOR_CACHE_DIR": str(cache),
                "TRITON_CACHE_DIR": str(cache / "triton"),
            }
        return ChildSpec(
            threads=self.device.threads,
            memory_bytes=self.settings.memory_bytes or self.device.host_memory // _CHILD_SHARE,
            writable=writable,
            visible=(self.problem.folder,),
            environment=environment,
            required=self.settings.isolation == "required",
            device=self.device.kind,
            tf32=self.settings.precision == "tf32",
        )


def open_evaluator(
    problem_path: Path,
    *,
    settings: EvaluatorSettings,
    memo_directory: Path,
    work_directory: Path,
    device: DeviceKind = "cpu",
    own_baselines: Sequence[Rival] = (),
    guard: Guard | None = None,
    waiting: Callable[[str], None] = lambda message: None,
) -> tuple[Problem, LocalEvaluator]:
    """The problem, and an evaluator for it whose processes are running.

    `device` is what kernels run on: `"cpu"`, `"cuda"` (the first visible GPU), or `"auto"` for a
    GPU where one can be used. `own_baselines` are kernels of the user's to be beaten beside eager
    and `torch.compile`, if they are correct. `work_directory` holds what the compiled baseline
    writes. `waiting` is told when another process holds the device. To be called from a thread
    that lives as long as the evaluator: the kernel ends the children with the thread that started
    them. Raises `ProblemError` for a file that cannot be used or does not fit on the device,
    `SettingsError` (no GPU, a precision that the device has not), `CacheError`, `OracleFailed`,
    `ProcessError`.
    """
    _check_precision(settings, device)
    host = CpuDevice.here(threads=settings.threads)
    work_directory = work_directory.absolute()
    work_directory.mkdir(parents=True, exist_ok=True)
    oracle = OracleProcess(
        seconds=settings.deadlines.oracle,
        outputs_only=settings.outputs_only,
        caches=work_directory / "inductor",
        device=device,
        precision=settings.precision,
    )

    def describe() -> tuple[Device, Problem, ReferenceState]:
        facts = oracle.facts()
        found = CudaDevice.of(facts, threads=settings.threads) if facts else host
        _check_precision(settings, found.kind)
        return found, oracle.describe(problem_path), oracle.state(secrets.randbits(31))

    with ExitStack() as undo, ThreadPoolExecutor(1) as aside:
        undo.callback(_end, oracle)
        described = aside.submit(describe)  # both processes import torch, which takes seconds
        # here: it dies with the thread that starts it
        zygote = Zygote.start(threads=host.threads, device=device)
        undo.callback(zygote.close)
        chosen, problem, state = described.result()
        undo.callback(state.close)
        rooms = {
            case.name: room_for(problem, case, memory=chosen.memory, slots=settings.timing.slots)
            for case in problem.cases
            if chosen.kind != "cpu"
        }
        memo = Memo.open(memo_directory)
        undo.pop_all()
    nursery = Nursery(problem, settings, chosen, state, work_directory, zygote)
    guard = guard or (PlainGuard(slack_ns=_SLACK_ON_GPU_NS) if rooms else PlainGuard())
    inputs = TrialInputs(oracle, settings.trials, chosen.memory // _INPUT_SHARE)
    bench = Bench(problem, settings, inputs, nursery.open, rooms=rooms)
    parts = keys.problem_parts(
        problem, siblings=keys.sibling_digests(problem.source, Path(problem.folder))
    )
    if own_baselines:
        parts["own_baselines"] = [keys.canonical_source(rival.source) for rival in own_baselines]
    found = versions()

    def holding() -> AbstractContextManager[None]:
        return device_lock(
            chosen.name, directory=runtime_directory(), timeout=_LOCK_SECONDS, waiting=waiting
        )

    baselines = Baselines(
        bench=bench,
        rivals=(
            *(r for r in rivals(problem.source) if r.name in settings.baselines),
            *own_baselines,
        ),
        memo=memo,
        key=key_of(
            {
                "what": "baselines",
                "problem": parts,
                "device": chosen.description(),
                "versions": found,
                "evaluator": EVALUATOR_VERSION,
                "names": list(settings.baselines),
                "precision": settings.precision,
            }
        ),
        holding=holding,
    )

    def recover() -> None:
        if nursery.recover():
            baselines.drop()

    def stop() -> None:
        inputs.close()
        nursery.close()
        _end(oracle)
        state.close()
        memo.close()

    evaluator = LocalEvaluator(
        problem=problem,
        bench=bench,
        stopwatch=Stopwatch(bench, baselines, guard, chosen.limits, holding),
        device=chosen,
        guard=guard,
        memo=memo,
        problem_parts=parts,
        versions=found,
        isolation=lambda: nursery.level,
        recover=recover,
        stop=stop,
    )
    return problem, evaluator


def _check_precision(settings: EvaluatorSettings, kind: str) -> None:
    if settings.precision == "half":
        raise SettingsError("precision half is not supported yet; use strict or tf32")
    if settings.precision != "strict" and kind == "cpu":
        raise SettingsError(
            f"precision {settings.precision} needs a GPU; on a CPU there is only strict"
        )


def _end(oracle: OracleProcess) -> None:
    """Ends the oracle without waiting for what it may be doing: it holds nothing worth that."""
    if oracle.pid is not None:
        with suppress(ProcessLookupError):
            os.kill(oracle.pid, signal.SIGKILL)
    oracle.close()
