"""Puts a run together from its parts, and drives it."""

import math
import platform
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import kerntree
from kerntree.coder.cost import CpuMachine, Machine
from kerntree.coder.gpu import GpuMachine
from kerntree.coder.own import OwnKernel, WithOwnKernels
from kerntree.coder.sketch import SketchCoder
from kerntree.evaluator.baseline import Rival
from kerntree.evaluator.cuda_device import CudaDevice
from kerntree.evaluator.device import Device
from kerntree.evaluator.opening import open_evaluator
from kerntree.evaluator.settings import EvaluatorSettings, TimingRules
from kerntree.plans.analyst import RuleAnalyst
from kerntree.plans.evaluation import Evaluation
from kerntree.plans.problem import Problem
from kerntree.plans.roofline import TYPICAL_CPU, DeviceLimits
from kerntree.plans.rules import RulePlanner
from kerntree.search.budget import Budget
from kerntree.search.events import Record
from kerntree.search.explorers import explorer_named
from kerntree.search.export import stand_alone
from kerntree.search.loop import Result, run_search
from kerntree.search.progress import Progress
from kerntree.search.run import RunDirectory, RunSettings
from kerntree.search.snapshot import Snapshot, snapshot
from kerntree.search.tree import Tree, fold

_RESERVE = 0.1  # of the time, kept for the last measurement
_MOST_RESERVE = 60.0  # seconds
_REACHED = 0.85  # of a GPU's theoretical bandwidth
_LANES = 128  # float32 operations that a GPU's processor starts in a clock


def environment() -> dict[str, Any]:
    """What a run records of the machine it began on."""
    versions = {name: metadata.version(name) for name in ("torch", "optuna", "diskcache")}
    return {
        "kerntree": kerntree.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.release(),
        **versions,
    }


def drive(
    run: RunDirectory,
    *,
    evaluations: int | None,
    seconds: float | None,
    progress: Progress,
    stop: Callable[[], bool],
) -> tuple[Problem, Result, Snapshot]:
    """Searches a run that this process has taken, up to a budget counted from its first start.

    Writes best.py with every record. Raises `KerntreeError`.
    """
    settings = run.settings
    path = run.check_problem()
    explorer = explorer_named(settings.explorer, seed=settings.seed)
    progress.say(f"describing {path}")
    problem, evaluator = open_evaluator(
        path,
        settings=evaluator_settings(settings),
        memo_directory=Path(settings.memo),
        work_directory=run.path,
        device=settings.device,
        own_baselines=tuple(
            Rival(name, text, class_name="ModelNew") for name, text in run.kernels("baseline")
        ),
        waiting=progress.say,
    )
    journal = None
    try:
        for warning in problem.warnings:
            progress.say(f"note: {warning}")
        machine, limits = model_of(evaluator.device)
        sketch = SketchCoder(target_of(settings, evaluator.device), machine=machine)
        coder = WithOwnKernels(sketch, [OwnKernel(*kept) for kept in run.kernels("start")])
        if obstacle := sketch.obstacle(problem):
            progress.say(f"note: {obstacle}; nothing can be rewritten, only measured")
        journal = run.journal()
        if journal.dropped:
            progress.say(f"note: {journal.dropped} bytes of a torn last event were dropped")
        reserve = min(_RESERVE * seconds, _MOST_RESERVE) if seconds else 0.0
        budget = Budget(evaluations=evaluations, seconds=seconds, reserve_seconds=reserve)
        progress.begin(budget)

        def on_event(event: Any, tree: Tree) -> None:
            progress.event(event, tree, journal.events if journal else ())
            if event.kind in ("duel", "reverified", "finished"):
                write_best(run, problem, tree)

        result = run_search(
            problem=problem,
            coder=coder,
            planner=RulePlanner(),
            analyst=RuleAnalyst(limits=limits),
            evaluator=evaluator,
            explorer=explorer,
            journal=journal,
            budget=budget,
            seed=settings.seed,
            on_event=on_event,
            stop=stop,
        )
        write_best(run, problem, fold(journal.events))
        return problem, result, snapshot(journal.events)
    finally:
        progress.end()
        if journal is not None:
            journal.close()
        evaluator.close()


def target_of(settings: RunSettings, device: Device) -> Literal["cpp", "triton"]:
    """The language that kernels are written in."""
    if settings.target != "auto":
        return settings.target
    return "cpp" if device.kind == "cpu" else "triton"


def model_of(device: Device) -> tuple[Machine, DeviceLimits]:
    """What coder and analyst assume of a device: what it reaches, not what it cannot exceed."""
    if not isinstance(device, CudaDevice):
        return CpuMachine(threads=device.threads), TYPICAL_CPU
    facts = device.facts
    limits = DeviceLimits(
        bandwidth_bytes_per_second=_REACHED * device.limits.bandwidth,
        operations_per_second=facts.processors * _LANES * 1e3 * (facts.clock_khz or 1_500_000),
    )
    cache = facts.cache_bytes or GpuMachine.cache_bytes
    return GpuMachine(limits=limits, processors=facts.processors, cache_bytes=cache), limits


def evaluator_settings(settings: RunSettings) -> EvaluatorSettings:
    """How candidates of a run are judged.

    A first measurement only has to tell the promising from the rest: it is short, and what may
    become a record meets the incumbent again in a duel of the full length.
    """
    return EvaluatorSettings(
        timing=TimingRules(pairs_low=6, warmup=1, seconds_per_case=2.0),
        precision=settings.precision,
        isolation=settings.isolation,
        outputs_only=settings.outputs_only,
    )


def write_best(run: RunDirectory, problem: Problem, tree: Tree) -> Path | None:
    """best.py for the record, if there is one."""
    text = best_text(problem.name, tree)
    return None if text is None else run.write_best(text)


def best_text(name: str, tree: Tree, *, leader: bool = False) -> str | None:
    """The record as a stand-alone file, or None where nothing beat the baseline.

    With `leader`, and no record, the fastest correct kernel that was measured.
    """
    from kerntree.plans.strategy import words
    from kerntree.search.tree import evaluation_of, plan_of

    best = tree.incumbent or (_leader(tree) if leader else None)
    evaluation: Evaluation | None = evaluation_of(tree, best)
    if best is None or evaluation is None:
        return None
    return stand_alone(
        tree.nodes[best.node].candidate,
        best.config,
        evaluation,
        problem=name,
        plan=[words(strategy) for strategy in plan_of(tree, best.node)],
    )


def with_operator(run: RunDirectory, text: str) -> str:
    """A stand-alone module with an operator of torch's; the problem is described once more.

    Raises `RunError` for what no operator can be, and `ProblemError`.
    """
    from kerntree.evaluator.oracle_process import OracleProcess
    from kerntree.search.export_op import as_torch_op

    oracle = OracleProcess(device=run.settings.device, outputs_only=run.settings.outputs_only)
    try:
        return as_torch_op(text, oracle.describe(run.check_problem()))
    finally:
        oracle.close()


def _leader(tree: Tree) -> Record | None:
    kernels = [n for n in tree.nodes.values() if n.best and n.identity != tree.root]
    best = max(kernels, key=lambda n: (n.best and n.best.reward) or -math.inf, default=None)
    if best is None or best.best is None:
        return None
    return Record(node=best.identity, config=best.best.config)


@contextmanager
def interruptible(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """While open, SIGINT and SIGTERM ask the search to stop at its next step."""
    asked: list[int] = []

    def handle(number: int, _: FrameType | None) -> None:
        if not asked:
            say("stopping after what is in flight; the run can be resumed")
        asked.append(number)

    before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
