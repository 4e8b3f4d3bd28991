"""Reading a tensor for a reduction and for each element in the same loops.

`x / x.norm(dim=1)` reads `x` twice: along a reduced dimension, and along one that is kept. Walked
as two dimensions, each element of the result would reduce anew; walked as one, a row is reduced
in one pass and written in the next. They may be one as long as nothing differs along both.
"""

from collections.abc import Sequence

from kerntree.coder.builder import Address, Builder, Draft


def share_loops(builder: Builder) -> bool:
    """Unifies such kept axes with reduced ones; whether there were any."""
    drafts = reachable(builder.drafts)
    axes = builder.axes
    reduced = {leaf for d in drafts if d.kind == "reduce" for leaf in axes.leaves(d.axes)}
    reads = [d.address for d in drafts if d.kind == "load" and d.address is not None]
    found = False
    for position, first in enumerate(reads):
        for second in reads[position + 1 :]:
            if first.tensor != second.tensor or first.offset != second.offset:
                continue
            for one, other in _pairs(builder, first, second):
                if (one in reduced) == (other in reduced) or _meet(builder, drafts, one, other):
                    continue
                axes.unify((one,), (other,))
                reduced.update(axes.leaves((one,)))
                found = True
    return found


def reachable(drafts: Sequence[Draft]) -> list[Draft]:
    """The drafts that some store needs, in order."""
    needed: set[str] = set()
    kept: list[Draft] = []
    for draft in reversed(drafts):
        if draft.kind == "store" or needed.intersection(draft.results):
            needed.update(draft.operands)
            kept.append(draft)
    return kept[::-1]


def _pairs(builder: Builder, first: Address, second: Address) -> list[tuple[int, int]]:
    """Axes that walk the same tensor with the same stride, where they differ."""
    one, other = (
        sorted(
            (step, builder.axes.extent(leaf), leaf)
            for axis, stride in address.strides
            for leaf, step in builder.axes.steps(axis, stride)
        )
        for address in (first, second)
    )
    if [entry[:2] for entry in one] != [entry[:2] for entry in other]:
        return []
    return [(a[2], b[2]) for a, b in zip(one, other, strict=True) if a[2] != b[2]]


def _meet(builder: Builder, drafts: Sequence[Draft], one: int, other: int) -> bool:
    """Whether some value differs along both axes."""
    axes = builder.axes
    along: dict[str, set[int]] = {}
    for draft in drafts:
        own = {leaf for name in draft.operands for leaf in along.get(name, ())}
        if draft.address is not None:
            own |= {leaf for axis, _ in draft.address.strides for leaf in axes.leaves((axis,))}
        if draft.kind == "index":
            own |= set(axes.leaves(draft.axes))
        if {one, other} <= own:
            return True
        if draft.kind in ("reduce", "at"):
            own -= set(axes.leaves(draft.axes))
        along.update(dict.fromkeys(draft.results, own))
    return False
