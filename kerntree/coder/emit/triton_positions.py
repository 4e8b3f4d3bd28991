"""Which rows and columns a program is at: the statements that say so."""

from collections.abc import Sequence

from kerntree.coder.emit.lines import Lines
from kerntree.coder.emit.triton_addresses import TileAddresses
from kerntree.coder.emit.triton_nest import TileNest
from kerntree.coder.kernel import Index, Load, LoadIndexed, Store


def write_rows(nest: TileNest, addresses: TileAddresses, lines: Lines) -> None:
    """The rows of a tile, from the number of the program or the tile."""
    wide = ".to(tl.int64)" if nest.wide else ""
    if nest.split:
        lines.put("ticket = tl.atomic_add(arrived, 1)")
        lines.put("part = ticket % PARTS")
        lines.put(f"row = (ticket // PARTS){wide}")
    else:
        number = "tile" if nest.persist else "tl.program_id(0)"
        size, shape = ("BLOCK", "") if nest.flat else ("ROWS", "[:, None]")
        within = "" if nest.single else f" * {size} + tl.arange(0, {size}){shape}"
        lines.put(f"row = {number}{wide}{within}")
    if nest.some_rows_outside:
        lines.put(f"inside_row = row < {nest.rows_text}")
    write_indices(nest.kernel.kept, "row", addresses, lines)


def write_columns(nest: TileNest, addresses: TileAddresses, lines: Lines, *, begin: str) -> None:
    """The columns of a tile from `begin` on; empty for the start of the row."""
    wide = ".to(tl.int64)" if nest.wide else ""
    begin = f"{begin} + " if begin else ""
    lines.put(f"column = {begin}tl.arange(0, BLOCK){nest.across}{wide}")
    if nest.some_columns_outside:
        lines.put(f"inside_column = column < {nest.columns}")
    write_indices(nest.kernel.reduced, "column", addresses, lines)


def write_indices(dims: Sequence[int], flat: str, addresses: TileAddresses, lines: Lines) -> None:
    """The index along each dimension that some address or index needs by itself."""
    if len(dims) < 2:
        return
    nest = addresses.nest
    needed = _separate(nest, dims)
    for place, d in enumerate(dims):
        if d in needed:
            below = nest.positions(dims[place + 1 :])
            text = f"{flat} // {below}" if below > 1 else flat
            text = f"({text}) % {nest.kernel.dims[d].extent}" if place else text
            lines.put(f"{addresses.separate_index(d)} = {text}")


def _separate(nest: TileNest, dims: Sequence[int]) -> set[int]:
    needed = {i.dim for i in nest.kernel.body if isinstance(i, Index)}
    for i in nest.kernel.body:
        if isinstance(i, Load | LoadIndexed | Store) and not nest.merges(i.access, dims):
            needed |= {d for d in dims if i.access.strides[d]}
    return needed
