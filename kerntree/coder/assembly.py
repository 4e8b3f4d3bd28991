"""Turns drafted instructions into a kernel: orders the axes, resolves addresses, tidies up."""

import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from kerntree.coder.builder import Address, Builder, Draft
from kerntree.coder.errors import CannotLowerError
from kerntree.coder.kernel import (
    Access,
    At,
    Constant,
    Dim,
    Index,
    Instruction,
    Kernel,
    Load,
    LoadIndexed,
    Point,
    Reduce,
    Store,
)
from kerntree.coder.passes import coalesced, without_dead_code, without_repetition
from kerntree.coder.sharing import reachable, share_loops


def assemble(builder: Builder, *, name: str) -> Kernel:
    """The kernel of a builder's drafts; raises `CannotLowerError` if they share no loop nest.

    A tensor that is read for a reduction and again for each element is read in the same loops, if
    that gives a loop nest.
    """
    shared = copy.deepcopy(builder)
    if share_loops(shared):
        with contextlib.suppress(CannotLowerError):
            return _assemble(shared, name=name)
    return _assemble(builder, name=name)


def _assemble(builder: Builder, *, name: str) -> Kernel:
    axes = builder.axes
    drafts = reachable(builder.drafts)
    reduced = _reduced_axes(builder, drafts)
    order = _axis_order(builder, drafts, reduced)
    position = {axis: d for d, axis in enumerate(order)}
    dims = tuple(Dim(axes.extent(axis), axis in reduced) for axis in order)
    kept = {axis for axis in order if axis not in reduced}

    def access(address: Address) -> Access:
        strides = [0] * len(order)
        seen: set[int] = set()
        for axis, stride in address.strides:
            for leaf, step in axes.steps(axis, stride):
                if leaf in seen:
                    raise CannotLowerError(
                        f"{address.tensor}: two different dimensions in one loop"
                    )
                seen.add(leaf)
                if leaf in position:
                    strides[position[leaf]] = step
        return Access(address.tensor, tuple(strides), address.offset)

    body: list[Instruction] = []
    for draft in drafts:
        if draft.kind == "store":
            _check_store(builder, draft, kept, reduced)
        body.append(_instruction(builder, draft, access, position))
    kernel = Kernel(name, dims, tuple(body), (), ())
    kernel = coalesced(without_dead_code(without_repetition(kernel)))
    reads = dict.fromkeys(i.access.tensor for i in kernel.body if isinstance(i, Load | LoadIndexed))
    writes = dict.fromkeys(i.access.tensor for i in kernel.body if isinstance(i, Store))
    return replace(kernel, reads=tuple(reads), writes=tuple(writes))


def _reduced_axes(builder: Builder, drafts: Sequence[Draft]) -> set[int]:
    axes = builder.axes
    first: tuple[int, ...] | None = None
    for draft in drafts:
        if draft.kind != "reduce":
            continue
        leaves = axes.leaves(draft.axes)
        first = leaves if first is None else first
        if bool(leaves) != bool(first):
            raise CannotLowerError("a reduction over one element beside one over several")
        if set(leaves) == set(first):
            continue
        extents = [axes.extent(axis) for axis in leaves]
        if set(leaves) & set(first) or extents != [axes.extent(axis) for axis in first]:
            raise CannotLowerError("two reductions over different dimensions")
        axes.unify(leaves, first)  # unrelated tensors of the same form may share the loops
        first = axes.leaves(first)
    return set(axes.leaves(first)) if first else set()


def _axis_order(builder: Builder, drafts: Sequence[Draft], reduced: set[int]) -> list[int]:
    """Kept axes, then reduced ones; each outermost first as the largest tensor has them.

    Reduced axes keep the order of the first reduction's operand, which argmax counts in.
    """
    axes = builder.axes
    order: list[int] = []
    addresses = [draft.address for draft in drafts if draft.address is not None]
    ranked = sorted(enumerate(addresses), key=lambda pair: (-_span(builder, pair[1]), pair[0]))
    for _, address in ranked:
        leaves = [s for axis, stride in address.strides for s in axes.steps(axis, stride)]
        for leaf, _ in sorted(leaves, key=lambda pair: -pair[1]):
            if leaf not in order:
                order.append(leaf)
    for draft in drafts:
        for leaf in axes.leaves(draft.axes) if draft.kind in ("reduce", "index", "at") else ():
            if leaf not in order:
                order.append(leaf)
    first = next((draft for draft in drafts if draft.kind == "reduce"), None)
    inner = list(axes.leaves(first.axes)) if first else []
    return [axis for axis in order if axis not in reduced] + inner


def _span(builder: Builder, address: Address) -> int:
    count = 1
    for axis, stride in address.strides:
        if stride:
            count *= builder.axes.extent(axis)
    return count


def _check_store(builder: Builder, draft: Draft, kept: set[int], reduced: set[int]) -> None:
    assert draft.address is not None
    stored = {leaf for axis, _ in draft.address.strides for leaf in builder.axes.leaves((axis,))}
    if len(stored) != sum(len(builder.axes.leaves((axis,))) for axis, _ in draft.address.strides):
        raise CannotLowerError(f"{draft.address.tensor} uses one loop for two of its dimensions")
    if not kept <= stored:
        raise CannotLowerError(f"{draft.address.tensor} lies in a smaller domain")
    if stored & reduced and not reduced <= stored:
        raise CannotLowerError(f"{draft.address.tensor} lies across part of the reduced dimensions")


def _instruction(
    builder: Builder,
    draft: Draft,
    access: Callable[[Address], Access],
    position: Mapping[int, int],
) -> Instruction:
    address = draft.address or Address("", (), 0)
    match draft.kind:
        case "load":
            return Load(draft.results[0], access(address), draft.dtype)
        case "load_indexed":
            return LoadIndexed(
                draft.results[0],
                access(address),
                draft.operands[0],
                draft.stride,
                draft.extent,
                draft.dtype,
            )
        case "constant":
            return Constant(draft.results[0], draft.number, draft.dtype)
        case "index":
            leaves = builder.axes.leaves(draft.axes)
            if len(leaves) != 1 or leaves[0] not in position:
                raise CannotLowerError("a position along a regrouped dimension")
            return Index(draft.results[0], position[leaves[0]])
        case "point":
            return Point(draft.results[0], draft.function, draft.operands, draft.dtype)  # type: ignore[arg-type]
        case "reduce":
            return Reduce(draft.results, draft.function, draft.operands[0], draft.dtype)  # type: ignore[arg-type]
        case "at":
            leaves = builder.axes.leaves(draft.axes)
            if len(leaves) != 1 or leaves[0] not in position:
                raise CannotLowerError("a gather along a regrouped dimension")
            operand, where = draft.operands
            return At(draft.results[0], operand, where, draft.dtype)
        case _:
            return Store(access(address), draft.operands[0], draft.dtype)
