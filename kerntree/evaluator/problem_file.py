"""A problem file, loaded: `Model`, its constructor's arguments, its cases.

Runs only in the oracle, or in a child. The file is KernelBench's format, read unchanged: a module
with `class Model(nn.Module)`, `get_inputs()` (the arguments of `forward`, as a list) and, where
the constructor takes arguments, `get_init_inputs()`.

One addition: a file may define `get_cases()` in place of, or beside, `get_inputs()`. It returns
the named input sets on which the operator is to be fast, as a dict

    def get_cases():
        return {
            "rows_1": lambda: [torch.randn(1, 4096)],
            "rows_4096": {"inputs": lambda: [torch.randn(4096, 4096)], "weight": 3.0},
        }

or as a list of such dicts that carry a `"name"`. `"inputs"` is a function without arguments that
makes fresh inputs each time it is called (or a list, where the inputs are always the same);
`"weight"` is the case's share in the reward, 1 if absent. A case of weight 0 is only checked: it
is neither timed nor tuned for. The cases replace `get_inputs()`.
"""

import importlib
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import torch

from kerntree.plans.errors import ProblemError

MODULE_NAME = "kerntree_problem_file"
_MESSAGE_LIMIT = 600


@dataclass(frozen=True)
class ProblemCase:
    """A named input set; `make` gives the arguments of one call."""

    name: str
    weight: float
    make: Callable[[], Sequence[Any]]


@dataclass(frozen=True)
class ProblemFile:
    """A loaded problem file. `module` is the file itself, imported under a name of our own.

    On a `device` other than the CPU inputs are made there, as if it were torch's default; where
    the file insists on the CPU they are moved. The reference is constructed on the CPU, from
    arguments that are on the device, and moved, as KernelBench does.
    """

    path: Path
    source: str
    module: ModuleType
    model: type[torch.nn.Module]
    cases: tuple[ProblemCase, ...]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def name(self) -> str:
        return self.path.stem

    def init_inputs(self) -> list[Any]:
        """The constructor's arguments; raises `ProblemError`."""
        make = getattr(self.module, "get_init_inputs", None)
        if make is None:
            return []
        with self.blamed("get_init_inputs()"):
            return self._moved(_listed(make(), f"{self.path}: get_init_inputs()"))

    def construct(self, init: Sequence[Any]) -> torch.nn.Module:
        """The reference; raises `ProblemError`."""
        with self.blamed("Model(*get_init_inputs())"):
            module = self.model(*init)
        if not isinstance(module, torch.nn.Module):
            raise ProblemError(f"{self.path}: Model(...) gives a {_kind(module)}, not an nn.Module")
        if not self._elsewhere:
            return module
        with self.blamed("moving Model to the device"):
            return module.to(self.device)

    def inputs(self, case: ProblemCase) -> list[Any]:
        """The arguments of one call; raises `ProblemError`."""
        what = "get_inputs()" if case.name == "default" else f"the inputs of case {case.name!r}"
        if self._elsewhere:
            try:
                with self.blamed(what), torch.device(self.device):
                    return self._moved(_listed(case.make(), f"{self.path}: {what}"))
            except ProblemError as error:
                if out_of_memory(error.__cause__ or error):
                    raise  # otherwise it may mix tensors that it makes on the CPU with ours
        with self.blamed(what):
            return self._moved(_listed(case.make(), f"{self.path}: {what}"))

    def case(self, name: str) -> ProblemCase:
        """The case of that name; raises `ProblemError`."""
        for case in self.cases:
            if case.name == name:
                return case
        raise ProblemError(f"{self.path} has no case {name!r}, only {_names(self.cases)}")

    def settle(self) -> None:
        """Waits for the device; raises what went wrong there."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @property
    def _elsewhere(self) -> bool:
        return self.device.type != "cpu"

    def _moved(self, values: list[Any]) -> list[Any]:
        if not self._elsewhere:
            return values
        move = torch.utils._pytree.tree_map_only(
            torch.Tensor, lambda tensor: tensor.to(self.device), values
        )
        return list(move)

    @contextmanager
    def blamed(self, what: str) -> Iterator[None]:
        """Turns whatever the user's code raises into a `ProblemError` with its place."""
        try:
            yield
        except ProblemError:
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            _blame(error, self.path, what)


def load_problem_file(path: str | os.PathLike[str], *, device: str = "cpu") -> ProblemFile:
    """Imports a problem file, its folder first on `sys.path`; it runs on `device`.

    Raises `ProblemError`: no such file, not UTF-8, a syntax error, a missing name or package, an
    exception while it is imported. The change of `sys.path` stays, for imports made later; what
    an earlier problem file imported from another folder is forgotten.
    """
    file = Path(path).absolute()
    source = _read(file)
    try:
        code = compile(source, str(file), "exec", dont_inherit=True)
    except SyntaxError as error:
        where = f"{file}:{error.lineno}" if error.lineno else str(file)
        text = f": {error.text.strip()}" if error.text else ""
        raise ProblemError(f"{where}: syntax error: {error.msg}{text}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ProblemError(f"{file} is not Python: {error}") from None
    _leave_earlier_folder(file.parent)
    folder = str(file.parent)
    if folder in sys.path:
        sys.path.remove(folder)
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    module = ModuleType(MODULE_NAME)
    module.__file__ = str(file)
    sys.modules[MODULE_NAME] = module  # dataclasses and pickling look their module up here
    try:
        exec(code, module.__dict__)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        _blame(error, file, "importing it")
    return replace(_checked(file, source, module), device=torch.device(device))


def _leave_earlier_folder(folder: Path) -> None:
    """Forgets the siblings of an earlier problem, lest this one gets them under the same names."""
    earlier = getattr(sys.modules.get(MODULE_NAME), "__file__", None)
    if not earlier or (left := Path(earlier).parent) == folder:
        return
    if str(left) in sys.path:
        sys.path.remove(str(left))
    siblings = {
        name
        for name, module in list(sys.modules.items())
        if getattr(module, "__file__", None)
        in (str(left / f"{name}.py"), str(left / name / "__init__.py"))
    }
    for name in list(sys.modules):
        if name.partition(".")[0] in siblings - {"kerntree"}:
            del sys.modules[name]


def _read(file: Path) -> str:
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        raise ProblemError(f"no such file: {file}") from None
    except IsADirectoryError:
        raise ProblemError(f"{file} is a directory; name the problem's Python file") from None
    except OSError as error:
        raise ProblemError(f"cannot read {file}: {error.strerror or error}") from None
    try:
        source = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ProblemError(f"{file}:{line}: not UTF-8; save the file as UTF-8 text") from None
    if not source.strip():
        raise ProblemError(f"{file} is empty; it must define class Model and get_inputs()")
    return source


def _checked(file: Path, source: str, module: ModuleType) -> ProblemFile:
    model = getattr(module, "Model", None)
    if model is None:
        raise ProblemError(f"{file} defines no class Model; name the reference module Model")
    if not (isinstance(model, type) and issubclass(model, torch.nn.Module)):
        raise ProblemError(f"{file}: Model is not a subclass of torch.nn.Module, as it must be")
    for name in ("get_inputs", "get_init_inputs", "get_cases"):
        if hasattr(module, name) and not callable(getattr(module, name)):
            raise ProblemError(f"{file}: {name} is a {_kind(getattr(module, name))}, no function")
    if hasattr(module, "get_cases"):
        cases = _cases(file, module)
    elif hasattr(module, "get_inputs"):
        cases = (ProblemCase("default", 1.0, module.get_inputs),)
    else:
        raise ProblemError(
            f"{file} defines no get_inputs(); it must return the list of forward's arguments"
        )
    return ProblemFile(path=file, source=source, module=module, model=model, cases=cases)


def _cases(file: Path, module: ModuleType) -> tuple[ProblemCase, ...]:
    try:
        listed = module.get_cases()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        _blame(error, file, "get_cases()")
    if isinstance(listed, dict):
        pairs = list(listed.items())
    elif isinstance(listed, list | tuple) and all(isinstance(e, dict) for e in listed):
        pairs = [(e.get("name"), {k: v for k, v in e.items() if k != "name"}) for e in listed]
    else:
        raise ProblemError(
            f"{file}: get_cases() gives a {_kind(listed)}; it must return a dict from names to "
            "inputs, or a list of dicts with a name"
        )
    if not pairs:
        raise ProblemError(f"{file}: get_cases() is empty; give at least one case")
    cases = tuple(_case(file, name, entry) for name, entry in pairs)
    if not any(case.weight for case in cases):
        raise ProblemError(
            f"{file}: get_cases() gives weight 0 to every case; one at least must be timed"
        )
    if len({case.name for case in cases}) < len(cases):
        raise ProblemError(f"{file}: get_cases() uses a name twice: {_names(cases)}")
    return cases


def _case(file: Path, name: Any, entry: Any) -> ProblemCase:
    if not isinstance(name, str) or not name:
        raise ProblemError(f"{file}: get_cases(): {name!r} is no name; use a short text")
    entry = entry if isinstance(entry, dict) else {"inputs": entry}
    where = f"{file}: case {name!r}"
    if unknown := sorted(str(key) for key in entry if key not in ("inputs", "weight")):
        raise ProblemError(f"{where}: unknown key {unknown[0]!r}; known are inputs and weight")
    inputs, weight = entry.get("inputs"), entry.get("weight", 1.0)
    number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not number or not 0 <= weight < math.inf:
        raise ProblemError(
            f"{where}: the weight {weight!r} is no number that is finite and not negative"
        )
    if callable(inputs):
        return ProblemCase(name, float(weight), inputs)
    if not isinstance(inputs, list | tuple):
        raise ProblemError(f"{where}: inputs must be a function that makes a list, or a list")
    return ProblemCase(name, float(weight), lambda: _copied(inputs))


def _copied(value: Any) -> Any:
    """A copy with tensors of its own, since a reference may write to its inputs."""
    leaves, spec = torch.utils._pytree.tree_flatten(value)
    fresh = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    return torch.utils._pytree.tree_unflatten(fresh, spec)


def _blame(error: BaseException, file: Path, what: str) -> NoReturn:
    """Raises the `ProblemError` for an exception in the user's code."""
    raise ProblemError(blame(error, file, what)) from error


def blame(error: BaseException, file: Path, what: str) -> str:
    """Where in the user's file an exception came from, and why, in one or two lines."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(file)]
    where = f"{file}:{frames[-1].lineno}" if frames else str(file)
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"{where}: {_missing_package(error.name)}"
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: syntax error: {error.msg} (imported by {where})"
    if isinstance(error, SystemExit):
        return f"{where}: {what} ends the process (exit code {error.code})"
    if out_of_memory(error):
        return f"{where}: {what} runs out of memory: {_text(error)}; reduce the shapes"
    return f"{where}: {what} raises {type(error).__name__}: {_text(error)}"


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception is torch's or Python's way to say that memory ran out."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError)
        and ("not enough memory" in str(error) or "CUDA error: out of memory" in str(error))
    )


def _missing_package(name: str) -> str:
    package = name.partition(".")[0]
    if package in sys.modules:
        return f"there is no module {name!r}"
    return f"needs the package {package!r}, which is not installed: pip install {package}"


def _text(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= _MESSAGE_LIMIT else text[:_MESSAGE_LIMIT] + "…"


def _listed(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise ProblemError(f"{what} gives a {_kind(value)}; it must return a list of arguments")
    return list(value)


def _kind(value: Any) -> str:
    return type(value).__name__


def _names(cases: Sequence[ProblemCase]) -> str:
    return ", ".join(repr(case.name) for case in cases)
