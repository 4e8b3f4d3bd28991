"""The reference at work: built under a seed, called once, and what the call changed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from pydantic import JsonValue
from torch.nn.modules.batchnorm import _NormBase

from kerntree.evaluator.inputs import seeded
from kerntree.evaluator.problem_file import ProblemFile
from kerntree.plans.errors import ProblemError

Mode = Literal["as_is", "eval"]
_VARIATION = 0.25
_PLAIN = (bool, int, float, str, torch.dtype, torch.device)


@dataclass(frozen=True)
class Built:
    """A reference, the seed and the constructor's arguments it was made from."""

    seed: int
    init: list[Any]
    module: torch.nn.Module

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """Parameters, then buffers, by qualified name; not copies."""
        return {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}


@dataclass(frozen=True)
class Observed:
    """One call: what came back and what was written to. Tensors are copies.

    `tree` and the paths are as in `plans.problem`; `aliased` are paths of outputs that share
    memory with an input or with the module's state.
    """

    tree: JsonValue
    outputs: dict[str, torch.Tensor]
    leaves: tuple[bool, ...]  # which of the result's flattened leaves are tensors
    aliased: tuple[str, ...] = ()
    inputs: dict[str, torch.Tensor] = field(default_factory=dict)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)


def build(file: ProblemFile, *, seed: int, mode: Mode = "as_is", varied: bool = False) -> Built:
    """The reference under a seed; raises `ProblemError`.

    With `varied`, parameters that the constructor fills with one number (ones, zeros), and the
    statistics of batch norms, get other values: a kernel that leaves out a multiplication by a
    weight of ones is not right, and must not look so.
    """
    with seeded(seed):
        init = file.init_inputs()
        module = file.construct(init)
    if mode == "eval":
        module.eval()
    if varied:
        _vary(module, seed)
    return Built(seed=seed, init=init, module=module)


def call(file: ProblemFile, module: torch.nn.Module, args: Sequence[Any], *, seed: int) -> Any:
    """`module(*args)` without gradients; raises `ProblemError`."""
    with seeded(seed), torch.no_grad(), file.blamed("Model.forward"):
        result = module(*args)
        file.settle()
        return result


def observe(
    file: ProblemFile, built: Built, args: Sequence[Any], *, seed: int, where: str = "Model.forward"
) -> Observed:
    """Calls the reference once and reports all that it changed; its state is as before then.

    `seed` is for what the call itself draws. Raises `ProblemError`: an exception, no output, an
    output that is not a tensor, a parameter that was written to, a buffer that changed shape.
    """
    tensors = tensor_leaves(args)
    before = {path: tensor.clone() for path, tensor in tensors.items()}
    originals = built.state
    saved = {name: tensor.detach().clone() for name, tensor in originals.items()}
    result = call(file, built.module, args, seed=seed)
    owned = {storage_of(t) for t in [*tensors.values(), *originals.values()]} - {0}
    tree, outputs, leaves = outline(result, f"{file.path}: {where}")
    inputs = {p: t.detach().clone() for p, t in tensors.items() if not same(t, before[p])}
    changed = _changed_state(file, built, saved)
    observed = Observed(
        tree=tree,
        outputs={path: tensor.detach().clone() for path, tensor in outputs.items()},
        leaves=leaves,
        aliased=tuple(path for path, tensor in outputs.items() if storage_of(tensor) in owned),
        inputs=inputs,
        buffers=changed,
    )
    restore(built.module, originals, saved)
    if not outputs and not inputs and not changed:
        raise ProblemError(f"{file.path}: {where} returns no tensor and changes nothing")
    return observed


def restore(
    module: torch.nn.Module,
    originals: dict[str, torch.Tensor],
    saved: dict[str, torch.Tensor],
) -> None:
    """Puts buffers back: the same tensor objects with the contents they had."""
    with torch.no_grad():
        for name, tensor in originals.items():
            if not isinstance(tensor, torch.nn.Parameter):
                owner, _, attribute = name.rpartition(".")
                module.get_submodule(owner)._buffers[attribute] = tensor
                if not same(tensor, saved[name]):
                    tensor.copy_(saved[name])


def tensor_leaves(args: Sequence[Any]) -> dict[str, torch.Tensor]:
    """The tensors among nested arguments, by path."""
    return {p: leaf for p, leaf in leaf_paths(args) if isinstance(leaf, torch.Tensor)}


def leaf_paths(args: Sequence[Any]) -> list[tuple[str, Any]]:
    """All leaves of nested arguments with their dotted paths, in torch's flattening order."""
    leaves, _ = torch.utils._pytree.tree_flatten_with_path(list(args))
    return [(".".join(_key(key) for key in keys), leaf) for keys, leaf in leaves]


def outline(result: Any, where: str) -> tuple[JsonValue, dict[str, torch.Tensor], tuple[bool, ...]]:
    """A result's tree, its tensors by path, and for each flattened leaf whether it is one.

    Raises `ProblemError` for what cannot be compared.
    """
    outputs: dict[str, torch.Tensor] = {}
    leaves: list[bool] = []

    def walk(value: Any, path: str) -> JsonValue:
        at = f" at {path!r}" if path else ""
        if isinstance(value, torch.Tensor):
            if value.layout != torch.strided or value.is_quantized or value.is_meta:
                raise ProblemError(f"{where} returns a tensor{at} that is not dense")
            outputs[path] = value
            leaves.append(True)
            return len(outputs) - 1
        if isinstance(value, list | tuple):
            kind = "list" if isinstance(value, list) else "tuple"
            return {kind: [walk(item, _join(path, str(k))) for k, item in enumerate(value)]}
        if isinstance(value, dict):
            if not all(isinstance(key, str) for key in value):
                raise ProblemError(f"{where} returns a dict{at} with keys that are not text")
            return {"dict": {key: walk(item, _join(path, key)) for key, item in value.items()}}
        if value is None or isinstance(value, bool | int | float | str):
            leaves.append(False)
            return {"value": value}
        raise ProblemError(
            f"{where} returns a {type(value).__module__}.{type(value).__name__}{at}; "
            "it must return tensors, in tuples, lists or dicts if several"
        )

    tree = walk(result, "")
    if not outputs and result is not None:
        raise ProblemError(
            f"{where} returns a {type(result).__name__} and no tensor; it must return tensors"
        )
    return tree, outputs, tuple(leaves)


def plain_argument(value: Any) -> bool:
    """Whether a leaf of the arguments is a value that travels as it is."""
    return value is None or isinstance(value, _PLAIN)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal in shape, type and every value, NaN being equal to NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if torch.equal(one, other):
        return True
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def _changed_state(
    file: ProblemFile, built: Built, saved: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    changed = {}
    now = built.state
    for name, before in saved.items():
        after = now.get(name)
        if after is None or after.shape != before.shape or after.dtype != before.dtype:
            raise ProblemError(
                f"{file.path}: Model.forward changes the shape or type of its state {name!r}; "
                "keep it fixed"
            )
        if same(after.detach(), before):
            continue
        if isinstance(after, torch.nn.Parameter):
            raise ProblemError(
                f"{file.path}: Model.forward writes to its parameter {name!r}; make it a buffer"
            )
        changed[name] = after.detach().clone()
    return changed


def _vary(module: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed ^ 0xA11E)
    targets: list[torch.Tensor] = [p for p in module.parameters() if _uniform(p)]
    for part in module.modules():
        if isinstance(part, _NormBase):
            targets += [b for b in (part.running_mean, part.running_var) if b is not None]
    with torch.no_grad():
        for tensor in targets:
            noise = torch.empty(tensor.shape, dtype=torch.float32)
            noise = noise.normal_(std=_VARIATION, generator=generator).to(tensor.device)
            if bool((tensor > 0).all()):
                tensor.mul_(noise.exp())
            else:
                tensor.add_(noise)


def _uniform(tensor: torch.Tensor) -> bool:
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return False
    return bool((tensor == tensor.reshape(-1)[0]).all())


def storage_of(tensor: torch.Tensor) -> int:
    """Identifies the memory behind a tensor."""
    return tensor.untyped_storage().data_ptr()


def _key(key: Any) -> str:
    return str(getattr(key, "idx", getattr(key, "key", getattr(key, "name", key))))


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
