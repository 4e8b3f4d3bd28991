"""Axes of a kernel's domain: named once, unified where operators align them, split where views do.

Every dimension of a value is a product of axes, outermost first. An elementwise operator makes its
operands' dimensions the same; a reshape regroups axes and, where it cuts through one, splits it.
What remains undivided at the end are the dimensions of the loop nest.
"""

from kerntree.coder.errors import CannotLowerError

Dims = tuple[tuple[int, ...], ...]


class Axes:
    """A union-find forest of axes; an axis may also be split into an outer and an inner one."""

    def __init__(self) -> None:
        self._extent: list[int] = []
        self._same: list[int] = []
        self._parts: list[tuple[int, int] | None] = []

    def fresh(self, extent: int) -> tuple[int, ...]:
        """A new axis as a dimension; an extent of 1 needs none."""
        if extent == 1:
            return ()
        if extent == 0:
            raise CannotLowerError("an empty tensor has no loop nest")
        self._extent.append(extent)
        self._same.append(len(self._same))
        self._parts.append(None)
        return (len(self._same) - 1,)

    def extent(self, axis: int) -> int:
        """The number of positions along an axis."""
        return self._extent[self._root(axis)]

    def leaves(self, dim: tuple[int, ...]) -> tuple[int, ...]:
        """The undivided axes of a dimension, outermost first."""
        result: list[int] = []
        for axis in dim:
            root = self._root(axis)
            parts = self._parts[root]
            result.extend([root] if parts is None else self.leaves(parts))
        return tuple(result)

    def unify(self, first: tuple[int, ...], second: tuple[int, ...]) -> None:
        """Makes two dimensions of equal extent the same; raises `CannotLowerError`."""
        while True:
            one, other = self.leaves(first), self.leaves(second)
            if one == other:
                return
            if not one or not other:
                raise CannotLowerError("dimensions of different extent meet")
            first, second = self._match_innermost(one, other)

    def group(self, dims: Dims, shape: tuple[int, ...]) -> Dims:
        """The axes of `dims` regrouped into dimensions of another shape of as many elements."""
        pending = list(self.leaves(tuple(axis for dim in dims for axis in dim)))
        result: list[tuple[int, ...]] = []
        for extent in reversed(shape):
            taken: list[int] = []
            product = 1
            while product < extent:
                axis = pending.pop()
                needed = extent // product
                if extent % product or (self.extent(axis) > needed and self.extent(axis) % needed):
                    raise CannotLowerError("a reshape cuts across dimensions")
                if self.extent(axis) > needed:
                    outer, axis = self._split(axis, needed)
                    pending.append(outer)
                taken.insert(0, axis)
                product *= self.extent(axis)
            if product != extent:
                raise CannotLowerError("a reshape cuts across dimensions")
            result.insert(0, tuple(taken))
        return tuple(result)

    def steps(self, axis: int, stride: int) -> list[tuple[int, int]]:
        """The undivided axes under one axis, each with the stride it takes from it."""
        result: list[tuple[int, int]] = []
        for leaf in reversed(self.leaves((axis,))):
            result.insert(0, (leaf, stride))
            stride *= self.extent(leaf)
        return result

    def _root(self, axis: int) -> int:
        while self._same[axis] != axis:
            axis = self._same[axis]
        return axis

    def _match_innermost(
        self, one: tuple[int, ...], other: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        a, b = one[-1], other[-1]
        if a == b:
            return one[:-1], other[:-1]
        if self.extent(a) == self.extent(b):
            self._same[max(a, b)] = min(a, b)
        elif self.extent(a) > self.extent(b):
            self._split(a, self.extent(b))
        else:
            self._split(b, self.extent(a))
        return one, other

    def _split(self, axis: int, inner_extent: int) -> tuple[int, int]:
        outer_extent, rest = divmod(self.extent(axis), inner_extent)
        if rest:
            raise CannotLowerError("dimensions are grouped in ways that do not align")
        (outer,), (inner,) = self.fresh(outer_extent), self.fresh(inner_extent)
        self._parts[axis] = (outer, inner)
        return outer, inner
