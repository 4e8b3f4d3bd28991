"""A case's inputs from a seed, and the other distributions on which a candidate must be right.

A reference may make operators redundant on its own inputs (a ReLU of positive numbers, a mask
that masks nothing); on the others it cannot. Integer and boolean tensors stay as given, since they
are indices, lengths and masks.
"""

import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_map

from kerntree.evaluator.distributions import Distribution
from kerntree.evaluator.problem_file import ProblemCase, ProblemFile

_SHIFT = 3.0  # standard deviations
_SCALE = 8.0
_TAIL = 1.5  # standard deviation of the logarithm of the factor
_OUTLIER = 64.0  # times the tensor's RMS
_OUTLIERS = 8
_LARGE = 1 << 26  # elements: larger tensors are measured in parts of so many


def make_inputs(
    file: ProblemFile, case: ProblemCase, *, seed: int, distribution: Distribution = "given"
) -> list[Any]:
    """The arguments of one call; raises `ProblemError` where the user's code raises.

    The same seed and distribution give the same values, bit by bit.
    """
    with seeded(seed):
        args = list(tree_map(_own, file.inputs(case)))
    if distribution == "given":
        return args
    generator = torch.Generator(device=file.device).manual_seed(seed ^ 0x5EED)
    changed = tree_map(lambda leaf: _changed(leaf, distribution, generator), args)
    return list(changed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds torch, random and, where the problem has imported it, numpy; restores them after."""
    numpy = sys.modules.get("numpy")
    before = numpy.random.get_state() if numpy else None
    state = random.getstate()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        if numpy:
            numpy.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(state)
            if numpy and before is not None:
                numpy.random.set_state(before)


def has_float_tensor(args: Sequence[Any]) -> bool:
    """Whether any distribution can differ from the given one."""
    leaves = torch.utils._pytree.tree_leaves(list(args))
    return any(isinstance(x, torch.Tensor) and x.is_floating_point() for x in leaves)


def nudged(args: Sequence[Any], *, seed: int) -> list[Any]:
    """The arguments, each float moved by one eps of its own type, up or down; in float64."""
    generators: dict[torch.device, torch.Generator] = {}

    def moved(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if not leaf.is_floating_point():
            return leaf.clone()
        if leaf.device not in generators:
            generators[leaf.device] = torch.Generator(device=leaf.device).manual_seed(seed)
        signs = torch.randint(
            0,
            2,
            leaf.shape,
            generator=generators[leaf.device],
            dtype=torch.int8,
            device=leaf.device,
        )
        signs = signs * 2 - 1
        exact = leaf.to(torch.float64)
        return exact + exact * signs * torch.finfo(leaf.dtype).eps

    return list(tree_map(moved, list(args)))


def _own(leaf: Any) -> Any:
    """A tensor of no graph, each of its elements with memory of its own."""
    if not isinstance(leaf, torch.Tensor) or leaf.layout != torch.strided:
        return leaf
    repeats = any(
        step == 0 and extent > 1 for extent, step in zip(leaf.shape, leaf.stride(), strict=True)
    )
    return leaf.detach().contiguous() if repeats else leaf.detach()


def _changed(leaf: Any, distribution: Distribution, generator: torch.Generator) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.numel() == 0:
        return leaf
    if distribution == "strided":
        return _strided(leaf)
    if not leaf.is_floating_point():
        return leaf
    return _CHANGES[distribution](leaf, generator)


def _spread(leaf: torch.Tensor) -> tuple[float, float]:
    """Standard deviation and RMS over the finite elements; 1 where they have none."""
    if leaf.numel() > _LARGE:
        return _spread_in_parts(leaf)
    finite = leaf.to(torch.float32)
    finite = finite[finite.isfinite()]
    if finite.numel() == 0:
        return 1.0, 1.0
    deviation, rms = float(finite.std(correction=0)), float(finite.square().mean().sqrt())
    return deviation or 1.0, rms or 1.0


def _spread_in_parts(leaf: torch.Tensor) -> tuple[float, float]:
    count, total, square = 0, 0.0, 0.0
    flat = leaf.reshape(-1)
    for start in range(0, flat.numel(), _LARGE):
        part = flat[start : start + _LARGE]
        usable = part.isfinite()
        exact = part.to(torch.float64).where(usable, 0.0)
        count += int(usable.sum())
        total += float(exact.sum())
        square += float(exact.square_().sum())
    if not count:
        return 1.0, 1.0
    variance = max(square / count - (total / count) ** 2, 0.0)
    return math.sqrt(variance) or 1.0, math.sqrt(square / count) or 1.0


def _shifted(leaf: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    up = torch.randint(0, 2, (), generator=generator, device=leaf.device)
    sign = 1.0 if bool(up) else -1.0
    return leaf + sign * _SHIFT * _spread(leaf)[0]


def _heavy_tailed(leaf: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    factor = torch.empty(leaf.shape, dtype=torch.float32, device=leaf.device)
    factor.log_normal_(mean=0.0, std=_TAIL, generator=generator)
    return (leaf * factor).to(leaf.dtype)


def _outliers(leaf: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Large values at the ends of the flattened tensor, in its last row, and at random places."""
    flat = leaf.reshape(-1).clone()
    count, row = flat.numel(), leaf.shape[-1] if leaf.dim() else 1
    anywhere = torch.randint(0, count, (_OUTLIERS,), generator=generator, device=leaf.device)
    ends = torch.tensor(
        [0, row - 1, count // 2, count - row, count - 1], device=leaf.device
    ).clamp_(0, count - 1)
    places = torch.cat([ends, anywhere]).unique()  # type: ignore[no-untyped-call]
    signs = torch.randint(0, 2, places.shape, generator=generator, device=leaf.device) * 2 - 1
    largest = torch.finfo(leaf.dtype).max ** 0.25  # its square must still be finite in the sums
    size = min(_OUTLIER * _spread(leaf)[1], largest)
    flat[places] = (size * signs).to(leaf.dtype)
    return flat.reshape(leaf.shape)


def _zeros(leaf: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    gone = torch.rand(leaf.shape, generator=generator, device=leaf.device) < 0.25
    if leaf.dim() > 1:
        gone[(-1,) * (leaf.dim() - 1)] = True
    return leaf.masked_fill(gone, 0.0)


def _strided(leaf: torch.Tensor) -> torch.Tensor:
    """The same values with the last two dimensions exchanged in memory, or every other element."""
    if leaf.dim() >= 2:
        return leaf.transpose(-1, -2).contiguous().transpose(-1, -2)
    if leaf.dim() == 1:
        return torch.stack([leaf, leaf], dim=1)[:, 0]
    return leaf


_Change = Callable[[torch.Tensor, torch.Generator], torch.Tensor]
_CHANGES: dict[Distribution, _Change] = {
    "shifted": _shifted,
    "scaled": lambda leaf, _: leaf * _SCALE,
    "sign_flipped": lambda leaf, _: -leaf,
    "heavy_tailed": _heavy_tailed,
    "outliers": _outliers,
    "zeros": _zeros,
}
