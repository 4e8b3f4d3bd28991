"""Cases that differ in sizes alone: which sizes those are, and kernels that take them as arguments.

Nothing here knows a size that was not among the cases; what is said of others follows from what
all cases have in common, and each call is held against the form that is inferred.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from kerntree.coder.kernel import Dim, Index, Instruction, Kernel, Load, LoadIndexed, Store
from kerntree.plans.problem import Case

_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")


@dataclass(frozen=True)
class Size:
    """A size that differs between cases: its name, where it stands, and its value in each case."""

    name: str
    input: int
    dim: int
    values: tuple[int, ...]


def varying_sizes(cases: Sequence[Case]) -> tuple[Size, ...]:
    """The sizes of input tensors that differ between cases, those that always agree counted once.

    Sizes that are always a fixed multiple or fraction of another's are left to formulas.
    """
    found: list[Size] = []
    for place, given in enumerate(zip(*(case.inputs for case in cases), strict=True)):
        tensors = [spec.tensor for spec in given if spec.tensor is not None]
        if len(tensors) < len(cases) or len({len(t.shape) for t in tensors}) > 1:
            continue
        for dim in range(len(tensors[0].shape)):
            values = tuple(t.shape[dim] for t in tensors)
            if len(set(values)) > 1 and formula(found, values) is None:
                found.append(Size("", place, dim, values))
    first = all(size.dim == 0 for size in found)
    stem = "rows" if first else "size"
    names = [stem] if len(found) == 1 else [f"{stem}_{k}" for k in range(len(found))]
    return tuple(replace(s, name=name) for s, name in zip(found, names, strict=True))


def formula(sizes: Sequence[Size], values: Sequence[int]) -> str | None:
    """The number that is `values[c]` in case `c`, as a whole multiple of at most two sizes."""
    if len(set(values)) == 1:
        return str(values[0])
    for count in (1, 2):
        for chosen in combinations(sizes, count):
            products = [1] * len(values)
            for size in chosen:
                products = [p * v for p, v in zip(products, size.values, strict=True)]
            each = values[0] // products[0]
            if each and all(p * each == v for p, v in zip(products, values, strict=True)):
                return " * ".join([*(s.name for s in chosen), *([str(each)] if each > 1 else [])])
    return None


def with_formulas(texts: Sequence[str], sizes: Sequence[Size]) -> str | None:
    """The one text that each case's is at its sizes; None where they differ in more than those."""
    if len({_NUMBER.sub("#", text) for text in texts}) > 1:
        return None
    numbers = zip(*(_NUMBER.findall(text) for text in texts), strict=True)
    formulas = [formula(sizes, [int(number) for number in given]) for given in numbers]
    if None in formulas:
        return None
    pending = iter(formulas)

    def shown(found: re.Match[str]) -> str:
        text = str(next(pending))
        before, after = texts[0][: found.start()].rstrip(), texts[0][found.end() :].lstrip()
        alone = before.endswith(("(", "[", ",")) and after.startswith((")", "]", ","))
        return text if alone or "*" not in text else f"({text})"

    return _NUMBER.sub(shown, texts[0])


def with_sizes_as_arguments(kernels: Sequence[Kernel]) -> tuple[Kernel, ...] | None:
    """The kernels of one group, case by case, with their outermost extent as an argument.

    Kernels that are the same in all cases stay as they are. None where they differ in more than
    the outermost, kept, extent. A kernel that lacks the dimension, having one position along it,
    is given it.
    """
    if all(kernel == kernels[0] for kernel in kernels):
        return tuple(kernels)
    # one that lacks the dimension begins with another, which may be longer than any has rows
    widest = max(kernels, key=lambda kernel: (len(kernel.dims), kernel.dims[0].extent))
    if widest.dims[0].reduced:
        return None
    result = []
    for kernel in kernels:
        same_dims = len(kernel.dims) == len(widest.dims) and not kernel.dims[0].reduced
        extent = kernel.dims[0].extent if same_dims else 1
        general = _with_outermost(widest, Dim(extent, reduced=False))
        if _without_dims_of_one(general) != _without_dims_of_one(kernel):
            return None
        outermost = Dim(extent, reduced=False, at_run_time=True)
        result.append(_with_outermost(widest, outermost))
    return tuple(result)


def most_rows(kernel: Kernel) -> int:
    """How far the outermost extent may go before some position or address passes 2**31."""
    rest = 1
    for dim in kernel.dims[1:]:
        rest *= dim.extent
    limit = ((1 << 31) - 1) // rest
    for i in kernel.body:
        if isinstance(i, Load | LoadIndexed | Store) and i.access.strides[0]:
            strides = zip(i.access.strides[1:], kernel.dims[1:], strict=True)
            fixed = i.access.offset + sum(abs(stride) * dim.extent for stride, dim in strides)
            fixed += abs(i.stride) * i.extent if isinstance(i, LoadIndexed) else 0
            limit = min(limit, max((1 << 31) - 1 - fixed, 0) // abs(i.access.strides[0]))
    return limit


def _with_outermost(kernel: Kernel, dim: Dim) -> Kernel:
    return replace(kernel, dims=(dim, *kernel.dims[1:]))


def _without_dims_of_one(kernel: Kernel) -> Kernel:
    """A kernel without the dimensions of one position, which lowering drops or gives no stride."""
    kept = [d for d, dim in enumerate(kernel.dims) if dim.extent > 1]
    body: list[Instruction] = []
    for i in kernel.body:
        if isinstance(i, Load | LoadIndexed | Store):
            strides = tuple(i.access.strides[d] for d in kept)
            body.append(replace(i, access=replace(i.access, strides=strides)))
        elif isinstance(i, Index):
            body.append(replace(i, dim=kept.index(i.dim) if i.dim in kept else -1))
        else:
            body.append(i)
    return replace(kernel, dims=tuple(kernel.dims[d] for d in kept), body=tuple(body))
