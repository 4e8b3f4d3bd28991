"""Regions of tensors: evenly spaced positions along each dimension, and where views have them."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod

from kerntree.coder.errors import CannotLowerError


@dataclass(frozen=True)
class Run:
    """Positions `start + step * i` along one dimension, for `i` below `count`."""

    start: int
    step: int
    count: int

    @property
    def last(self) -> int:
        """The last position."""
        return self.start + self.step * (self.count - 1)

    def within(self, outer: "Run") -> "Run":
        """These positions of what `outer` has taken, as positions of what it was taken from."""
        return run(outer.start + outer.step * self.start, outer.step * self.step, self.count)

    def seen_from(self, other: "Run") -> "Run | None":
        """These positions as positions in `other`, None if it has none; raises `StraddlesError`."""
        apart = gcd(*(r.step for r in (self, other) if r.count > 1)) or 1
        if (self.start - other.start) % apart or self.start > other.last or self.last < other.start:
            return None
        steps, odd = divmod(self.start - other.start, other.step)
        aligned = not odd and (self.count == 1 or self.step % other.step == 0)
        if not aligned or self.start < other.start or self.last > other.last:
            raise StraddlesError("a piece lies across the boundary of two parts")
        return run(steps, self.step // other.step, self.count)


Region = tuple[Run, ...]


class StraddlesError(CannotLowerError):
    """A region has to be cut further before it lies in one part alone."""


def run(start: int, step: int, count: int) -> Run:
    """A run; a single position has the step 1, so that equal runs are equal."""
    return Run(start, step if count > 1 else 1, count)


def whole(shape: Sequence[int]) -> Region:
    """All positions of a tensor of that shape."""
    return tuple(Run(0, 1, extent) for extent in shape)


def shape_of(region: Region) -> tuple[int, ...]:
    """The shape of what lies in a region."""
    return tuple(r.count for r in region)


def broadcast_to(region: Region, shape: Sequence[int]) -> Region:
    """The region of an operand of that shape that meets `region` of the result."""
    mine = region[len(region) - len(shape) :]
    return tuple(Run(0, 1, 1) if n == 1 else r for r, n in zip(mine, shape, strict=True))


def before_view(region: Region, shape: Sequence[int], source: Sequence[int]) -> Region:
    """The region of a tensor of shape `source` that is `region` once it is viewed as `shape`.

    Raises `CannotLowerError` if that is not evenly spaced along each dimension.
    """
    given = [(n, r) for n, r in zip(shape, region, strict=True) if n > 1]
    pending = [n for n in source if n > 1]
    found: list[Run] = []
    while given:
        outs, ins = [given.pop(0)], [pending.pop(0)]
        while prod(n for n, _ in outs) != prod(ins):
            if prod(n for n, _ in outs) < prod(ins):
                outs.append(given.pop(0))
            else:
                ins.append(pending.pop(0))
        found += _regrouped(outs, ins)
    return tuple(found.pop(0) if n > 1 else Run(0, 1, 1) for n in source)


def _regrouped(outs: Sequence[tuple[int, Run]], ins: Sequence[int]) -> list[Run]:
    if all(r.count == n for n, r in outs):
        return [Run(0, 1, n) for n in ins]
    if len(outs) == 1:
        return _split(outs[0][1], ins)
    if len(ins) == 1:
        return [_merged(outs)]
    raise CannotLowerError("a piece of a dimension that a view has regrouped")


def _split(given: Run, extents: Sequence[int]) -> list[Run]:
    """A run along one dimension as runs along those that it was merged from."""
    if len(extents) == 1:
        return [given]
    outer, inner = extents[0], prod(extents[1:])
    first, below = divmod(given.start, inner)
    if given.step % inner == 0:
        return [
            run(first, given.step // inner, given.count),
            *_split(Run(below, 1, 1), extents[1:]),
        ]
    if given.step == 1 and below == 0 and given.count % inner == 0:
        return [run(first, 1, given.count // inner), *whole(extents[1:])]
    if given.count * given.step == outer * inner and inner % given.step == 0:
        rest = run(given.start, given.step, inner // given.step)
        return [Run(0, 1, outer), *_split(rest, extents[1:])]
    if first == given.last // inner:
        return [Run(first, 1, 1), *_split(run(below, given.step, given.count), extents[1:])]
    raise CannotLowerError("a piece that is not evenly spaced before a view")


def _merged(runs: Sequence[tuple[int, Run]]) -> Run:
    """Runs along several dimensions as one along the dimension that they are viewed from."""
    extent, found = runs[-1]
    for outer, r in reversed(runs[:-1]):
        even = found.step * found.count == extent and r.step == 1
        if r.count == 1 or even:
            found = run(r.start * extent + found.start, found.step, r.count * found.count)
        elif found.count == 1:
            found = run(r.start * extent + found.start, r.step * extent, r.count)
        else:
            raise CannotLowerError("a piece that is not evenly spaced before a view")
        extent *= outer
    return found
