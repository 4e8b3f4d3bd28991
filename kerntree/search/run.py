"""A run: one search, as a directory with its frozen settings, journal and results."""

import fcntl
import os
import re
import tomllib
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Self

import tomli_w
from pydantic import ValidationError

from kerntree.cache.errors import CacheError
from kerntree.cache.journal import Event, Journal, read_events
from kerntree.plans.errors import SettingsError
from kerntree.plans.frozen import Frozen
from kerntree.plans.problem import Precision
from kerntree.search.errors import RunError

DEFAULT_SECONDS = 600.0
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class RunSettings(Frozen):
    """What a run was started with. `evaluations` and `seconds` are its first budget.

    `start` and `baseline` are files with kernels of the user's; the run keeps copies of them. A
    `device` of `auto` is a GPU where one can be used; a `target` of `auto` is the language for it.
    """

    problem: str
    device: Literal["auto", "cpu", "cuda"] = "auto"
    target: Literal["auto", "cpp", "triton"] = "auto"
    explorer: str = "mcts"
    seed: int = 0
    evaluations: int | None = None
    seconds: float | None = None
    precision: Precision = "strict"
    isolation: Literal["auto", "required"] = "auto"
    outputs_only: bool = False
    start: tuple[str, ...] = ()
    baseline: tuple[str, ...] = ()
    memo: str


class RunDirectory:
    """The files of one run. At most one process drives it at a time."""

    def __init__(self, path: Path, settings: RunSettings, *, lock: int | None = None) -> None:
        self.path, self.settings = path, settings
        self._lock = lock

    @classmethod
    def create(cls, path: Path, settings: RunSettings, *, environment: dict[str, Any]) -> Self:
        """Makes the directory and freezes the settings; raises `RunError` if it is taken."""
        problem = Path(settings.problem)
        try:
            path.mkdir(parents=True, exist_ok=True)
            if (path / "run.toml").exists():
                raise RunError(
                    f"{path} holds a run already: resume it with `kerntree resume {path}`, "
                    "or choose another directory with --out"
                )
            (path / "problem.py").write_bytes(problem.read_bytes())
            for kind, files in (("start", settings.start), ("baseline", settings.baseline)):
                for number, file in enumerate(files):
                    (path / f"{kind}-{number}.py").write_bytes(Path(file).read_bytes())
            facts = settings.model_dump(mode="json", exclude_none=True)
            text = tomli_w.dumps({"settings": facts, "environment": environment})
            write_file(path / "run.toml", text)
        except OSError as error:
            raise RunError(f"the run directory {path} cannot be made: {error}") from error
        return cls(path, settings)

    @classmethod
    def open(cls, path: Path) -> Self:
        """An existing run; raises `RunError` if it is none."""
        try:
            content = tomllib.loads((path / "run.toml").read_text())
            settings = RunSettings.model_validate(content["settings"])
        except FileNotFoundError:
            raise RunError(f"{path} is no run: it has no run.toml; `ls runs` shows yours") from None
        except (OSError, tomllib.TOMLDecodeError, KeyError, ValidationError) as error:
            raise RunError(f"{path}/run.toml cannot be read: {error}") from None
        return cls(path, settings)

    def __enter__(self) -> Self:
        """Takes the run for this process; raises `RunError` if another drives it."""
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(fd, 32).decode(errors="replace").strip() or "another one"
            os.close(fd)
            raise RunError(
                f"{self.path} is being searched by process {holder}; wait for it or stop it"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._lock = fd
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def journal(self) -> Journal:
        """The journal, for writing; only while the run is taken."""
        return Journal.open(self.path / "journal.jsonl")

    def events(self) -> tuple[Event, ...]:
        """What happened so far, for readers; a run that never started has none."""
        path = self.path / "journal.jsonl"
        return read_events(path) if path.exists() else ()

    def check_problem(self) -> Path:
        """The problem file, unchanged since the start; raises `RunError` otherwise."""
        path = Path(self.settings.problem)
        frozen = self.path / "problem.py"
        try:
            if path.read_bytes() != frozen.read_bytes():
                raise RunError(
                    f"{path} changed since this run began (its copy is {frozen}): "
                    "restore it, or start a new search"
                )
        except OSError as error:
            raise RunError(f"the problem of this run is gone: {error}") from None
        return path

    def kernels(self, kind: Literal["start", "baseline"]) -> list[tuple[str, str]]:
        """The user's kernels of a kind, as kept when the run began: (file name, text).

        Raises `RunError` if a copy is gone.
        """
        files = self.settings.start if kind == "start" else self.settings.baseline
        found = []
        for number, file in enumerate(files):
            kept = self.path / f"{kind}-{number}.py"
            try:
                found.append((Path(file).name, kept.read_text()))
            except (OSError, UnicodeDecodeError) as error:
                raise RunError(f"{kept}, the copy of {file}, cannot be read: {error}") from None
        return found

    def write_best(self, text: str) -> Path:
        """Replaces best.py in one step."""
        try:
            write_file(self.path / "best.py", text)
        except OSError as error:
            raise CacheError(f"{self.path}/best.py cannot be written: {error}") from error
        return self.path / "best.py"


def new_path(problem: Path, *, root: Path, now: datetime) -> Path:
    """`root/<problem>-<date>-<time>`, with a number where that is taken."""
    name = re.sub(r"\W+", "-", problem.stem).strip("-") or "problem"
    base = root / f"{name}-{now:%Y%m%d-%H%M%S}"
    path, number = base, 1
    while path.exists():
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path


def seconds_of(text: str) -> float:
    """A duration such as "90s", "10m", "8h" or "90" in seconds; raises `SettingsError`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd]?)\s*", text)
    if match is None or float(match[1]) <= 0:
        raise SettingsError(f"{text!r} is no duration; write for example 90s, 10m or 8h")
    return float(match[1]) * _UNITS[match[2] or "s"]


def write_file(path: Path, text: str) -> None:
    """Writes a file durably, or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
