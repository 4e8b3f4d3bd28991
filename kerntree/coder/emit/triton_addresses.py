"""Where a tile lies: in its tensors, along each dimension, inside rows and columns there are."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from kerntree.coder.emit.names import identifier
from kerntree.coder.emit.triton_nest import TileNest
from kerntree.coder.kernel import Access

_RESERVED = frozenset(
    "tl triton torch libdevice row column inside inside_row inside_column part first ticket tile "
    "better step shrink before base peak lost middle apart entries count share start taken arrived "
    "part_of_row end rows tiles ROWS BLOCK PARTS WIDTH CHUNK STAGES TILES float min max "
    "range".split()
)
_OWN = re.compile(r"i\d+|parts_\w+|\w+_(taken|so_far|parts|second|index|position|inside)")
_TAKEN = "_taken"


def tensor_name(tensor: str) -> str:
    """The name of a tensor's parameter, apart from the names a kernel's own text uses."""
    text = identifier(tensor)
    return text + "_" if text in _RESERVED or _OWN.fullmatch(text) else text


@dataclass(frozen=True)
class TileAddresses:
    """Triton addresses; `in_place` maps written values to the tensors they replace.

    `gathered`, inside a gather, is the position that replaces the column.
    """

    nest: TileNest
    in_place: Mapping[str, str]
    gathered: str = ""

    def at(self, position: str) -> Self:
        """The addresses at one position of the row."""
        return replace(self, gathered=position)

    @property
    def suffix(self) -> str:
        """What sets names of the gathered position apart from those of the column."""
        return _TAKEN if self.gathered else ""

    @property
    def column(self) -> str:
        """The position in the row."""
        return self.gathered or "column"

    def index(self, d: int) -> str:
        """The index along a dimension."""
        kernel = self.nest.kernel
        along_row = d in kernel.reduced
        if len(kernel.reduced if along_row else kernel.kept) > 1:
            return self.separate_index(d)
        return self.column if along_row else "row"

    def separate_index(self, d: int) -> str:
        """The name of the index along one of several kept, or reduced, dimensions."""
        return f"i{d}{self.suffix if d in self.nest.kernel.reduced else ''}"

    def tensor(self, access: Access) -> str:
        """The tensor that an access reads or writes."""
        return tensor_name(self.in_place.get(access.tensor, access.tensor))

    def offset(self, access: Access) -> str:
        """The number of elements from the start of the tensor; empty for none."""
        kernel = self.nest.kernel
        terms = [str(access.offset)] if access.offset else []
        for dims, flat in ((kernel.kept, "row"), (kernel.reduced, self.column)):
            if not self.nest.merges(access, dims):
                terms += [
                    _term(self.separate_index(d), access.strides[d])
                    for d in dims
                    if access.strides[d]
                ]
            elif dims and access.strides[dims[-1]]:
                terms.append(_term(flat, access.strides[dims[-1]]))
        return " + ".join(terms)

    def inside(self, *, by_row: bool, along_row: bool) -> list[str]:
        """What masks out positions there are not, of a value that differs in these ways."""
        masks = []
        if self.nest.some_rows_outside and by_row:
            masks.append("inside_row")
        if self.nest.some_columns_outside and along_row and not self.gathered:
            masks.append("inside_column")
        return masks


def _term(index: str, stride: int) -> str:
    return index if stride == 1 else f"{index} * {stride}"
