"""What a call must give: the reference in its own precision and in float64, side by side."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from pydantic import JsonValue

from kerntree.evaluator.compare import Expected, expect
from kerntree.evaluator.double import (
    CannotDoubleError,
    double_module,
    double_precision,
    doubled,
)
from kerntree.evaluator.inputs import nudged
from kerntree.evaluator.problem_file import ProblemFile, blame
from kerntree.evaluator.reference import (
    Built,
    Observed,
    build,
    call,
    outline,
    restore,
    storage_of,
    tensor_leaves,
)
from kerntree.plans.errors import ProblemError

CHANGED = "changed "  # starts the name of a result that is an input or a buffer written to
_LARGE_BYTES = 1 << 30
_SMALL_OUTPUT = 4096  # elements: for larger ones the scale of a slice says enough
_NUDGES = 2
_SOUND_RMS, _SOUND_WORST = 1e-3, 1e-1  # PyTorch's own error, above which it is no measure
_SOUND_RMS_HALF, _SOUND_WORST_HALF = 1e-1, 1.0  # where inputs or parameters are half types
_HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Writes:
    """What the reference writes to: input paths and buffer names, in the problem's order."""

    inputs: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Expectation:
    """One expected tensor for each output, then each changed input, then each changed buffer."""

    tensors: tuple[Expected, ...]
    tree: JsonValue  # how the outputs nest
    warning: str = ""  # why float64 was not to be had, if it was not
    half: bool = False  # whether an input, a parameter or an output has a half type
    responded: bool = False  # whether the outputs' responses are known

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for e in self.tensors for t in (e.oracle, e.own))

    @property
    def finite(self) -> bool:
        """Whether neither the oracle's nor PyTorch's values hold a NaN or an infinity."""
        return all(e.whole.finite for e in self.tensors)

    @property
    def unsound(self) -> str:
        """Why PyTorch's own error is too large to judge another's by, or nothing."""
        rms = _SOUND_RMS_HALF if self.half else _SOUND_RMS
        worst = _SOUND_WORST_HALF if self.half else _SOUND_WORST
        for e in self.tensors:
            if e.slices and not (e.whole.own_rms <= rms and e.whole.own_worst <= worst):
                return (
                    f"PyTorch's own error is {e.whole.own_rms:.2g} in relative RMS "
                    f"(worst element {e.whole.own_worst:.2g})"
                )
        return ""


def expectation(
    file: ProblemFile, built: Built, args: Sequence[Any], writes: Writes, *, seed: int
) -> Expectation:
    """Runs the reference as it is and in float64; `args` are left as they were.

    Raises `ProblemError` if the reference fails in its own precision. Where it cannot run in
    float64, its own result stands in, and `warning` says why.
    """
    own, tree = _gather(file, built, _copies(args), writes, seed)
    warning = ""
    try:
        twin = _twin(file, built)
        oracle = _double(file, twin, doubled(list(args)), writes, seed)
        _check_alike(own, oracle)
    except ProblemError as error:
        warning = str(error)
        oracle = {path: doubled(tensor) for path, tensor in own.items()}
    tensors = tuple(expect(path, oracle[path], tensor) for path, tensor in own.items())
    seen = [*tensor_leaves(args).values(), *built.state.values(), *own.values()]
    half = any(tensor.dtype in _HALVES for tensor in seen)
    return Expectation(tensors=tensors, tree=tree, warning=warning, half=half)


def with_response(
    expected: Expectation,
    file: ProblemFile,
    built: Built,
    args: Sequence[Any],
    writes: Writes,
    *,
    seed: int,
) -> Expectation:
    """The same with each small output's response to the rounding of the inputs.

    It takes as long as the expectation itself, and matters only where an output that looks wrong
    may be the small difference of large sums; so it is asked for then.
    """
    if expected.responded or expected.warning or not any(map(_small, expected.tensors)):
        return expected
    try:
        twin = _twin(file, built)
        oracle = {e.path: e.oracle for e in expected.tensors}
        response = _response(file, twin, args, writes, seed, oracle)
    except ProblemError:  # the reference refuses inputs that are moved ever so little
        response = [0.0] * len(expected.tensors)
    tensors = (
        replace(e, response=r) if _small(e) else e
        for e, r in zip(expected.tensors, response, strict=True)
    )
    return replace(expected, tensors=tuple(tensors), responded=True)


def _small(expected: Expected) -> bool:
    return bool(expected.slices) and expected.own.numel() <= _SMALL_OUTPUT


def _gather(
    file: ProblemFile, built: Built, args: Sequence[Any], writes: Writes, seed: int
) -> tuple[dict[str, torch.Tensor], JsonValue]:
    """Outputs, changed inputs and changed buffers after one call, as copies; state restored."""
    originals = built.state
    saved = {n: t.detach().clone() for n, t in originals.items()} if writes.buffers else {}
    result = call(file, built.module, args, seed=seed)
    tree, outputs, _ = outline(result, f"{file.path}: Model.forward")
    leaves, state = tensor_leaves(args), built.state
    owned = {storage_of(tensor) for tensor in (*leaves.values(), *originals.values())}
    found = {path: _kept(tensor, owned) for path, tensor in outputs.items()}
    found |= {f"{CHANGED}input {path}": leaves[path].detach().clone() for path in writes.inputs}
    found |= {f"{CHANGED}buffer {name}": state[name].detach().clone() for name in writes.buffers}
    if saved:
        restore(built.module, originals, saved)
    return found, tree


def _kept(tensor: torch.Tensor, owned: set[int]) -> torch.Tensor:
    """A copy, since an output may be something that a later call writes to.

    A very large one that is no input and no state is kept itself, for want of room.
    """
    large = tensor.numel() * tensor.element_size() > _LARGE_BYTES
    mine = tensor.detach()
    return mine if large and storage_of(tensor) not in owned else mine.clone()


def _twin(file: ProblemFile, built: Built) -> Built:
    """The same module in float64: constructed again, since not every module can be copied."""
    twin = build(file, seed=built.seed)
    with torch.no_grad():
        pairs = zip(twin.state.values(), built.state.values(), strict=True)
        for target, source in pairs:
            target.copy_(source)
    for part, like in zip(twin.module.modules(), built.module.modules(), strict=True):
        part.training = like.training
    return replace(twin, module=double_module(twin.module))


def _double(
    file: ProblemFile, twin: Built, args: list[Any], writes: Writes, seed: int
) -> dict[str, torch.Tensor]:
    try:
        with double_precision():
            return _gather(file, twin, args, writes, seed)[0]
    except CannotDoubleError as error:
        raise ProblemError(blame(error, file.path, "float64 evaluation")) from error


def _check_alike(own: dict[str, torch.Tensor], oracle: dict[str, torch.Tensor]) -> None:
    if list(own) != list(oracle):
        raise ProblemError("the reference returns another structure in float64")
    for path, tensor in own.items():
        kinds = (tensor.is_floating_point(), oracle[path].is_floating_point())
        if tensor.shape != oracle[path].shape or kinds[0] != kinds[1]:
            raise ProblemError("the reference returns other shapes or types in float64")


def _response(
    file: ProblemFile,
    twin: Built,
    args: Sequence[Any],
    writes: Writes,
    seed: int,
    oracle: dict[str, torch.Tensor],
) -> list[float]:
    """For each tensor, the RMS change when every input moves by one eps of its type."""
    largest = [0.0] * len(oracle)
    for number in range(_NUDGES):
        moved = _double(file, twin, nudged(args, seed=number), writes, seed)
        for k, (path, values) in enumerate(oracle.items()):
            if values.is_floating_point() and values.numel():
                now = moved[path]
                flat = torch.view_as_real(now) if now.is_complex() else now
                change = float((flat.reshape(-1) - values).square().mean().sqrt())
                if math.isfinite(change):
                    largest[k] = max(largest[k], change)
    return largest


def _copies(args: Sequence[Any]) -> list[Any]:
    return list(
        torch.utils._pytree.tree_map(
            lambda leaf: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf,
            list(args),
        )
    )


def writes_of(observed: Observed) -> Writes:
    """What one observed call wrote to."""
    return Writes(inputs=tuple(observed.inputs), buffers=tuple(observed.buffers))
