"""The keys under which the evaluator remembers: all that decides an answer, nothing else."""

import ast
import platform
from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue

from kerntree.cache.digest import digest
from kerntree.cache.memo import key_of
from kerntree.evaluator.settings import EVALUATOR_VERSION, EvaluatorSettings
from kerntree.plans.candidate import Candidate, Config
from kerntree.plans.problem import Case, Problem

Parts = dict[str, JsonValue]


def canonical_source(source: str) -> str:
    """A module's text without what cannot change its meaning: line ends, trailing blank lines.

    Comments and layout stay: a module may read its own source.
    """
    return source.replace("\r\n", "\n").replace("\r", "\n").rstrip() + "\n"


def problem_parts(problem: Problem, *, siblings: Mapping[str, str]) -> Parts:
    """What decides a problem: its text, the files it imports from its folder, its cases.

    `siblings` are the digests of those files by name. Where the files lie does not matter.
    """
    return {
        "source": canonical_source(problem.source),
        "siblings": dict(sorted(siblings.items())),
        "mode": problem.mode,
        "cases": [_case_parts(case) for case in problem.cases],
    }


def sibling_digests(source: str, folder: Path) -> dict[str, str]:
    """Digests of the files of a folder that a source imports, directly or through each other.

    Packages count whole. A file that cannot be read or parsed counts with what it has.
    """
    found: dict[str, str] = {}
    pending = [source]
    while pending:
        for path in _imported_files(pending.pop(), folder):
            name = path.relative_to(folder).as_posix()
            if name in found:
                continue
            text = path.read_text(errors="replace")
            found[name] = digest(canonical_source(text))
            pending.append(text)
    return found


def evaluation_parts(
    problem: Mapping[str, JsonValue],
    candidate: Candidate,
    config: Config,
    *,
    device: Mapping[str, JsonValue],
    versions: Mapping[str, JsonValue],
    settings: EvaluatorSettings,
) -> Parts:
    """The named facts of one evaluation's key; `problem` is `problem_parts`.

    `config` is taken as it changes the module's own: an empty one and the module's own say the
    same. How long is measured, seeds and paths do not matter: samples accumulate.
    """
    return {
        "what": "evaluation",
        "problem": dict(problem),
        "candidate": canonical_source(candidate.source),
        "config": {**candidate.config, **config},
        "device": dict(device),
        "versions": {**versions, "python": _python()},
        "evaluator": EVALUATOR_VERSION,
        "settings": settings.verdict_parts(),  # type: ignore[dict-item]
    }


def samples_key(evaluation_key: str, case: str) -> str:
    """Where the timing samples of one case of one evaluation accumulate."""
    return key_of({"what": "samples", "evaluation": evaluation_key, "case": case})


def source_key(parts: Parts) -> str:
    """One key for all configs of a source: that it has passed the full check."""
    rest = {name: value for name, value in parts.items() if name != "config"}
    return key_of({**rest, "what": "source checked"})


def _imported_files(source: str, folder: Path) -> list[Path]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.name for alias in node.names} if node.level else set()
            names |= {node.module.split(".")[0]} if node.module else set()
    files = [folder / f"{name}.py" for name in sorted(names)]
    packages = [folder / name for name in sorted(names)]
    inside = [path for package in packages if package.is_dir() for path in package.rglob("*.py")]
    return [path for path in [*files, *sorted(inside)] if path.is_file()]


def _case_parts(case: Case) -> JsonValue:
    """A case without its graph, which follows from the source and torch's version."""
    return case.model_dump(mode="json", exclude={"graph", "graph_error"})


def _python() -> str:
    return ".".join(platform.python_version_tuple()[:2])
