"""Where a point of the domain lies: in its tensors, in its row, in what is kept of a row."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from kerntree.coder.emit.names import identifier
from kerntree.coder.emit.nest import Nest
from kerntree.coder.kernel import Access


@dataclass(frozen=True)
class Addresses:
    """C++ indices; `in_place` maps written values to the tensors they replace.

    `gathered`, inside a gather, is the position that replaces the reduced index.
    """

    nest: Nest
    in_place: Mapping[str, str]
    gathered: str = ""

    def at(self, position: str) -> Self:
        """The addresses at one position of the reduced dimension."""
        return replace(self, gathered=position)

    def index(self, d: int, *, lane: str = "l") -> str:
        """The index along a dimension, in the given lane of a block."""
        if self.gathered and d in self.nest.kernel.reduced:
            return self.gathered
        if d == self.nest.lane and self.nest.wide:
            return f"(i{d} + {lane})"
        return f"i{d}"

    def offset(self, access: Access, *, lane: str = "l") -> str:
        """The number of elements from the start of the tensor."""
        terms = [str(access.offset)] if access.offset else []
        for d, stride in enumerate(access.strides):
            if stride:
                index = self.index(d, lane=lane)
                terms.append(index.strip("()") if stride == 1 else f"{stride} * {index}")
        return " + ".join(terms) or "0"

    def element(self, access: Access) -> str:
        """The element itself, to read or to write."""
        tensor = self.in_place.get(access.tensor, access.tensor)
        return f"{identifier(tensor)}[{self.offset(access)}]"

    def position_in_row(self) -> str:
        """The position among all that are reduced together, in their order."""
        text = ""
        for d in self.nest.kernel.reduced:
            index = self.index(d)
            text = f"({text} * {self.nest.extent(d)} + {index})" if text else index
        return text or "0"

    def kept(self, name: str) -> str:
        """The place of a point value, by its C++ name, in a row's scratch memory."""
        position = self.position_in_row()
        if self.nest.columns:
            position = f"{position} * LANES + l"
        return f"kept_{name}[{position}]"
