"""What a call must give: the reference in its own precision and in float64, side by side."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

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
    tensor_leaves,
)
from kerntree.plans.errors import ProblemError

_SMALL_OUTPUT = 4096  # elements: for larger ones the scale of a slice says enough
_NUDGES = 2
SANE_RMS = {"float16": 0.1, "bfloat16": 0.1, "float64": 1e-9}  # 1e-3 for float32
SANE_WORST = {"float16": 1.0, "bfloat16": 1.0, "float64": 1e-6}  # 1e-1 for float32


@dataclass(frozen=True)
class Writes:
    """What the reference writes to: input paths and buffer names, in the problem's order."""

    inputs: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Expectation:
    """One expected tensor for each output, then each changed input, then each changed buffer."""

    tensors: tuple[Expected, ...]
    warning: str = ""  # why float64 was not to be had, if it was not

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for e in self.tensors for t in (e.oracle, e.own))

    @property
    def finite(self) -> bool:
        """Whether neither the oracle's nor PyTorch's values hold a NaN or an infinity."""
        return all(bool(t.isfinite().all()) for e in self.tensors for t in (e.oracle, e.own))

    @property
    def unsound(self) -> str:
        """Why PyTorch's own error is too large to judge another's by, or nothing."""
        for e in self.tensors:
            if not e.slices:
                continue
            rms, worst = SANE_RMS.get(e.dtype, 1e-3), SANE_WORST.get(e.dtype, 1e-1)
            if not (e.whole.own_rms <= rms and e.whole.own_worst <= worst):
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
    own = _gather(file, built, _copies(args), writes, seed)
    warning, response = "", [0.0] * len(own)
    try:
        twin = _twin(file, built)
        oracle = _double(file, twin, doubled(list(args)), writes, seed)
        _check_alike(own, oracle)
        if any(t.is_floating_point() and t.numel() <= _SMALL_OUTPUT for t in own.values()):
            response = _response(file, twin, args, writes, seed, oracle)
    except ProblemError as error:
        warning = str(error)
        oracle = {path: doubled(tensor) for path, tensor in own.items()}
    tensors = (
        expect(path, oracle[path], tensor, response=r if tensor.numel() <= _SMALL_OUTPUT else 0.0)
        for (path, tensor), r in zip(own.items(), response, strict=True)
    )
    return Expectation(tensors=tuple(tensors), warning=warning)


def _gather(
    file: ProblemFile, built: Built, args: Sequence[Any], writes: Writes, seed: int
) -> dict[str, torch.Tensor]:
    """Outputs, changed inputs and changed buffers after one call, as copies; state restored."""
    originals = built.state
    saved = {n: t.detach().clone() for n, t in originals.items()} if writes.buffers else {}
    result = call(file, built.module, args, seed=seed)
    _, outputs, _ = outline(result, f"{file.path}: Model.forward")
    # an output may be an input that a later call writes to: keep copies of our own
    found = {path: tensor.detach().clone() for path, tensor in outputs.items()}
    leaves, state = tensor_leaves(args), built.state
    found |= {f"changed input {path}": leaves[path].detach().clone() for path in writes.inputs}
    found |= {f"changed buffer {name}": state[name].detach().clone() for name in writes.buffers}
    if saved:
        restore(built.module, originals, saved)
    return found


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
            return _gather(file, twin, args, writes, seed)
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
        _check_alike(oracle, moved)
        for k, path in enumerate(oracle):
            if oracle[path].is_floating_point() and oracle[path].numel():
                change = (moved[path] - oracle[path]).square().mean().sqrt()
                if bool(change.isfinite()):
                    largest[k] = max(largest[k], float(change))
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
