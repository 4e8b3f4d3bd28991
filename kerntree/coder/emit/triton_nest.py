"""What one Triton program covers: kept positions times reduced ones, and which may lie outside."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from kerntree.coder.emit.triton_tiles import Tiles, tiles_of
from kerntree.coder.kernel import Access, Dim, Kernel, Load, LoadIndexed, Reduce, Store
from kerntree.coder.program import Schedule


@dataclass(frozen=True)
class TileNest:
    """The tiles of a kernel under a schedule; `kernel` reduces a dimension if it reduces at all."""

    kernel: Kernel
    schedule: Schedule
    tiles: Tiles

    @property
    def rows(self) -> int:
        """The number of kept positions."""
        return self.positions(self.kernel.kept)

    @property
    def rows_text(self) -> str:
        """The number of kept positions in a kernel: a number, or a multiple of an argument.

        The compiler sees what the number is a multiple of, or it could not tell that neighbours
        are masked alike, and would read them one by one.
        """
        if not self.rows_at_run_time:
            return str(self.rows)
        each = self.rows_each
        argument = "tl.cast(rows, tl.int64)" if self.wide else "rows"
        return f"{argument} * {each}" if each > 1 else "rows"

    @property
    def rows_each(self) -> int:
        """How many kept positions go with one of an outermost extent that is an argument."""
        return self.rows // self.kernel.dims[0].extent if self.rows_at_run_time else 0

    @property
    def rows_at_run_time(self) -> bool:
        """Whether the number of kept positions is an argument, and may be any."""
        return any(dim.at_run_time for dim in self.kernel.dims)

    @property
    def columns(self) -> int:
        """The number of reduced positions."""
        return self.positions(self.kernel.reduced)

    @property
    def flat(self) -> bool:
        """Whether nothing is reduced: a tile has kept positions alone."""
        return not self.kernel.reduced

    @property
    def split(self) -> bool:
        """Whether several programs share a row."""
        return self.tiles.split

    @property
    def persist(self) -> bool:
        """Whether a program walks over many tiles."""
        return self.schedule.persist and not self.split

    @property
    def single(self) -> bool:
        """Whether a program has one row at a time, whose values are scalars."""
        return not self.flat and self.tiles.largest("ROWS") == 1

    @property
    def shape(self) -> str:
        """The shape of a full tile."""
        return "[BLOCK]" if self.flat or self.single else "[ROWS, BLOCK]"

    @property
    def across(self) -> str:
        """What lays a range of columns along a tile."""
        return "" if self.single else "[None, :]"

    @property
    def some_rows_outside(self) -> bool:
        """Whether a tile may hold rows past the last; a row that is shared is always one of all."""
        tile = self.tiles.largest("BLOCK" if self.flat else "ROWS")
        outside = tile > 1 if self.rows_at_run_time else self.rows % tile != 0
        return outside and not self.split

    @property
    def some_columns_outside(self) -> bool:
        """Whether a tile may hold columns past the last."""
        if self.flat:
            return False
        tile = self.tiles.largest("BLOCK")
        parts = self.tiles.largest("PARTS") if self.split else 1
        return self.columns % tile != 0 or self.columns % (tile * parts) != 0

    @property
    def wide(self) -> bool:
        """Whether some address may pass 2**31."""
        for i in self.kernel.body:
            if isinstance(i, Load | LoadIndexed | Store):
                strides = zip(i.access.strides, self.kernel.dims, strict=True)
                reach = i.access.offset + sum(abs(stride) * dim.extent for stride, dim in strides)
                if isinstance(i, LoadIndexed):
                    reach += abs(i.stride) * i.extent
                if reach >= 1 << 31:
                    return True
        return self.rows * self.columns >= 1 << 31

    def positions(self, dims: Sequence[int]) -> int:
        """The number of positions in these dimensions."""
        return prod(self.kernel.dims[d].extent for d in dims)

    def along_row(self, access: Access) -> bool:
        """Whether an access differs along the reduced dimensions."""
        return any(access.strides[d] for d in self.kernel.reduced)

    def by_row(self, access: Access) -> bool:
        """Whether an access differs along the kept dimensions."""
        return any(access.strides[d] for d in self.kernel.kept)

    def large(self, access: Access) -> bool:
        """Whether an access differs along all dimensions, so that nothing is met twice."""
        return all(
            stride or (dim.extent == 1 and not dim.at_run_time)
            for stride, dim in zip(access.strides, self.kernel.dims, strict=True)
        )

    def merges(self, access: Access, dims: Sequence[int]) -> bool:
        """Whether an access walks through these dimensions as through one."""
        strides = [access.strides[d] for d in dims]
        extents = [self.kernel.dims[d].extent for d in dims]
        return all(strides[k] == strides[k + 1] * extents[k + 1] for k in range(len(dims) - 1))


def tile_nest(kernel: Kernel, schedule: Schedule) -> TileNest:
    """The tiles of a kernel under a schedule."""
    kernel = _with_columns(kernel)
    return TileNest(kernel, schedule, tiles_of(kernel, schedule))


def _with_columns(kernel: Kernel) -> Kernel:
    """The kernel with a reduced dimension of one element, if it reduces over nothing."""
    if kernel.reduced or not any(isinstance(i, Reduce) for i in kernel.body):
        return kernel
    body = tuple(
        replace(i, access=replace(i.access, strides=(*i.access.strides, 0)))
        if isinstance(i, Load | LoadIndexed | Store)
        else i
        for i in kernel.body
    )
    return replace(kernel, dims=(*kernel.dims, Dim(1, reduced=True)), body=body)
