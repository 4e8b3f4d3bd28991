"""The command line. Heavy imports happen inside the commands, so that help is instant."""

import json
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, cast

import typer

from kerntree.cache.errors import KerntreeError

app = typer.Typer(
    help="Makes a PyTorch operator fast: searches optimization plans, measures every kernel.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)
_INTERRUPTED, _MISTAKE = 130, 2

Time = Annotated[str | None, typer.Option("--time", help="Wall time: 90s, 10m, 8h.")]
Count = Annotated[int | None, typer.Option("--evaluations", min=1, help="Number of evaluations.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Memo = Annotated[Path | None, typer.Option("--cache", help="Directory of the memo.")]
Kernels = Annotated[
    list[Path] | None, typer.Option("--start", help="A ModelNew of yours to begin with; repeat.")
]
Rivals = Annotated[
    list[Path] | None, typer.Option("--baseline", help="A ModelNew of yours to beat; repeat.")
]
Run = Annotated[Path, typer.Argument(help="A run directory.")]


def main() -> None:
    """Runs the command line; a user's mistake ends with exit code 2 and a line on stderr."""
    try:
        app()
    except KerntreeError as error:
        _fail(str(error))


@app.command()
def search(
    problem: Annotated[Path, typer.Argument(help="A KernelBench problem file.")],
    time: Time = None,
    evaluations: Count = None,
    seed: Annotated[int, typer.Option(help="Seed of the search's own choices.")] = 0,
    explorer: Annotated[str, typer.Option(help="mcts, best-first, random or best-of-n.")] = "mcts",
    out: Annotated[Path | None, typer.Option(help="Run directory (default: runs/…).")] = None,
    cache: Memo = None,
    isolation: Annotated[
        str, typer.Option(help="auto, or required: refuse to run below full.")
    ] = "auto",
    precision: Annotated[str, typer.Option(help="strict, tf32 or half.")] = "strict",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    start: Kernels = None,
    baseline: Rivals = None,
    outputs_only: Annotated[
        bool, typer.Option("--outputs-only", help="Ignore what the reference mutates.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Search for a fast kernel of one operator. Ten minutes unless told otherwise.

    Example: kerntree search op.py --time 1h
    """
    from pydantic import ValidationError

    from kerntree.search.compose import environment
    from kerntree.search.explorers import explorer_named
    from kerntree.search.run import DEFAULT_SECONDS, RunDirectory, RunSettings, new_path

    if not problem.is_file():
        _fail(f"{problem}: no such file; give the path of a Python file with a class Model")
    seconds = _seconds(time)
    if seconds is None and evaluations is None:
        seconds = DEFAULT_SECONDS
    explorer_named(explorer, seed=seed)
    for file in (*(start or ()), *(baseline or ())):
        _checked_kernel(file)
    try:
        settings = RunSettings.model_validate(
            {
                "problem": str(problem.absolute()),
                "explorer": explorer,
                "seed": seed,
                "evaluations": evaluations,
                "seconds": seconds,
                "precision": precision,
                "isolation": isolation,
                "device": device,
                "start": [str(file.absolute()) for file in start or ()],
                "baseline": [str(file.absolute()) for file in baseline or ()],
                "outputs_only": outputs_only,
                "memo": str((cache or _memo()).absolute()),
            }
        )
    except ValidationError as error:
        first = error.errors()[0]
        _fail(f"--{'.'.join(map(str, first['loc']))}: {first['msg']}, not {first['input']!r}")
    path = out or new_path(problem, root=Path("runs"), now=datetime.now())
    run = RunDirectory.create(path, settings, environment=environment())
    _drive(run, evaluations, seconds, as_json)


@app.command()
def resume(run: Run, time: Time = None, evaluations: Count = None, as_json: AsJson = False) -> None:
    """Go on with a run, with its budget or a larger one (both counted from its first start).

    Example: kerntree resume runs/op-20260101-220000 --time 8h
    """
    from kerntree.search.run import RunDirectory
    from kerntree.search.snapshot import snapshot

    directory = RunDirectory.open(run)
    before = snapshot(directory.events()).budget
    seconds, count = _seconds(time), evaluations
    if seconds is None and count is None:
        seconds = before.seconds or directory.settings.seconds
        count = before.evaluations or directory.settings.evaluations
    _drive(directory, count, seconds, as_json)


@app.command()
def show(
    run: Run,
    depth: Annotated[int | None, typer.Option(min=0, help="Levels to draw.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Unfold failures.")] = False,
    as_json: AsJson = False,
) -> None:
    """Draw the explored tree: strategy, speedup, visits, status, best path.

    Example: kerntree show runs/op-20260101-220000 --depth 3
    """
    from dataclasses import asdict

    from rich.console import Console

    from kerntree.search.progress import closing_lines, closing_table
    from kerntree.search.run import RunDirectory
    from kerntree.search.snapshot import snapshot
    from kerntree.search.views.terminal import draw

    directory = RunDirectory.open(run)
    shown = snapshot(directory.events())
    if as_json:
        print(json.dumps(asdict(shown), default=_plain))
        return
    console = Console()
    console.print(draw(shown, depth=depth, everything=everything))
    if shown.baselines:
        console.print(closing_table(shown))
    for line in closing_lines(shown, str(run)):
        console.print(line, markup=False, highlight=False)


@app.command()
def export(
    run: Run,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write (default: stdout).")
    ] = None,
    leader: Annotated[
        bool,
        typer.Option("--leader", help="Without a record: the fastest correct kernel measured."),
    ] = False,
    form: Annotated[
        str, typer.Option("--as", help="module, or torch-op: with an operator of torch's.")
    ] = "module",
) -> None:
    """Write the best kernel as a stand-alone file that checks itself against the reference.

    Example: kerntree export runs/op-20260101-220000 -o fast_op.py
    """
    from kerntree.search.compose import best_text, with_operator
    from kerntree.search.run import RunDirectory, write_file
    from kerntree.search.tree import fold

    if form not in ("module", "torch-op"):
        _fail(f"--as: module or torch-op, not {form!r}")
    directory = RunDirectory.open(run)
    name = Path(directory.settings.problem).stem
    text = best_text(name, fold(directory.events()), leader=leader)
    if text is None and leader:
        _fail(f"{run} has no correct kernel of its own yet; give it more time: kerntree resume")
    if text is None:
        _fail(
            f"{run} has no kernel that beats the baseline for certain; "
            "give it more time: kerntree resume, or take the fastest measured: --leader"
        )
    assert text is not None
    if form == "torch-op":
        text = with_operator(directory, text)
    if out is None:
        sys.stdout.write(text)
        return
    try:
        write_file(out, text)
    except OSError as error:
        _fail(f"{out} cannot be written: {error}")
    print(f"wrote {out}")


@app.command()
def evaluate(
    file: Annotated[Path, typer.Argument(help="A Python file with a class ModelNew.")],
    problem: Annotated[Path, typer.Option(help="The problem file it answers.")],
    cache: Memo = None,
    isolation: Annotated[str, typer.Option(help="auto or required.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    graph: Annotated[
        bool, typer.Option("--graph", help="Time it as a CUDA graph as well.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check and time one kernel. Exit code 0: correct; 1: any other verdict; 2: a mistake.

    Example: kerntree evaluate mine.py --problem op.py
    """
    import tempfile

    from kerntree.evaluator.opening import open_evaluator
    from kerntree.evaluator.settings import EvaluatorSettings
    from kerntree.plans.candidate import Candidate
    from kerntree.plans.evaluation import EvaluationRequest

    try:
        source = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        _fail(f"{file} cannot be read: {error}")
    if isolation not in ("auto", "required"):
        _fail(f"--isolation: auto or required, not {isolation!r}")
    if device not in ("auto", "cpu", "cuda"):
        _fail(f"--device: auto, cpu or cuda, not {device!r}")
    settings = EvaluatorSettings.model_validate({"isolation": isolation})
    with tempfile.TemporaryDirectory(prefix="kerntree-") as work:
        described, evaluator = open_evaluator(
            problem,
            settings=settings,
            memo_directory=cache or _memo(),
            work_directory=Path(work),
            device=cast(Literal["auto", "cpu", "cuda"], device),
        )
        try:
            candidate = Candidate(source=source, language="python")
            request = EvaluationRequest(problem=described, candidate=candidate, config={})
            evaluation = evaluator.evaluate(request)
            replay = evaluator.replay(request) if graph and evaluation.correct else None
        finally:
            evaluator.close()
    if as_json:
        shown = json.loads(evaluation.model_dump_json())
        shown |= {"replay": json.loads(replay.model_dump_json())} if replay else {}
        print(json.dumps(shown))
    else:
        from kerntree.search.views.terminal import evaluation_lines

        print("\n".join(evaluation_lines(evaluation, replay)))
        if graph and evaluation.correct and replay is None:
            print("not timed as a CUDA graph: this device has none")
    raise typer.Exit(0 if evaluation.correct else 1)


@app.command()
def doctor(cache: Memo = None, as_json: AsJson = False) -> None:
    """Say what this machine can do, and what is missing. Exit code 1 if a search cannot run.

    Example: kerntree doctor
    """
    from kerntree.search.doctor import as_json as plain
    from kerntree.search.doctor import can_run, examine

    findings = examine(cache or _memo())
    if as_json:
        print(json.dumps(plain(findings), indent=1))
    else:
        marks = {"good": "ok", "limited": "--", "bad": "NO"}
        for finding in findings:
            print(f"{marks[finding.state]}  {finding.name}: {finding.value}")
            if finding.remedy:
                print(f"      {finding.remedy}")
    raise typer.Exit(0 if can_run(findings) else 1)


@app.command()
def demo(
    time: Annotated[str, typer.Option("--time", help="Wall time of the search.")] = "110s",
) -> None:
    """Run the main job on an example of this checkout, from problem to kernel.

    Example: kerntree demo
    """
    example = Path(__file__).parents[2] / "examples" / "layernorm_residual.py"
    if not example.is_file():
        _fail("the examples are part of the source checkout; run the demo from there")
    search(problem=example, time=time, isolation="auto", precision="strict", explorer="mcts")


def _checked_kernel(file: Path) -> None:
    from kerntree.coder.own import OwnKernel, candidate_of

    try:
        source = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        _fail(f"{file} cannot be read: {error}")
    candidate_of(OwnKernel(str(file), source))


def _drive(run: Any, evaluations: int | None, seconds: float | None, as_json: bool) -> None:
    from rich.console import Console

    from kerntree.search.compose import drive, interruptible
    from kerntree.search.progress import Progress, closing_lines, closing_table

    console = Console(stderr=as_json)
    progress = Progress(console, quiet=as_json)
    with run, interruptible(progress.say) as stop:
        _, result, shown = drive(
            run, evaluations=evaluations, seconds=seconds, progress=progress, stop=stop
        )
    if as_json:
        best = result.best_evaluation
        print(
            json.dumps(
                {
                    "run": str(run.path),
                    "finished": result.finished,
                    "reason": result.reason,
                    "speedup": None if best is None or best.reward is None else 2**best.reward,
                    "evaluations": shown.evaluations,
                    "memo_hits": shown.memo_hits,
                    "baselines": [b.model_dump(mode="json") for b in shown.baselines],
                    "best": None if best is None else best.model_dump(mode="json"),
                    "replay": None if shown.replay is None else _plain(shown.replay),
                    "plan": [] if shown.best is None else list(shown.nodes[shown.best.node].plan),
                }
            )
        )
    else:
        console.print(closing_table(shown))
        for line in [f"ended: {result.reason}", *closing_lines(shown, str(run.path))]:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    if not result.finished:
        raise typer.Exit(_INTERRUPTED)


def _seconds(time: str | None) -> float | None:
    from kerntree.search.run import seconds_of

    return None if time is None else seconds_of(time)


def _memo() -> Path:
    import platformdirs

    return Path(platformdirs.user_cache_dir("kerntree")) / "memo"


def _plain(value: Any) -> Any:
    dump: Callable[..., Any] | None = getattr(value, "model_dump", None)
    return dump(mode="json") if dump else str(value)


def _fail(message: str) -> NoReturn:
    print(f"kerntree: {message}", file=sys.stderr)
    sys.exit(_MISTAKE)


if __name__ == "__main__":
    main()
