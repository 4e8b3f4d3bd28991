"""Values of a kernel as C++ expressions."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from kerntree.coder.emit.addresses import Addresses
from kerntree.coder.emit.cpp_text import CALLED, COMPUTED, STORED, literal, point
from kerntree.coder.emit.lines import Lines
from kerntree.coder.emit.names import Names, identifier
from kerntree.coder.emit.nest import Nest
from kerntree.coder.emit.partial_results import state_of
from kerntree.coder.kernel import Index, Instruction, Load, LoadIndexed, Point, Reduce, Store


@dataclass(frozen=True)
class Expressions:
    """Expressions in one scope.

    `points` are the values that differ along reduced dimensions, `reduces` gives the reduction of
    each reduced value, `local` are the row values computed in the scope itself.
    """

    nest: Nest
    names: Names
    addresses: Addresses
    lines: Lines
    points: frozenset[str]
    reduces: Mapping[str, Reduce]
    local: frozenset[str] = frozenset()

    def at(self, position: str) -> Self:
        """The same expressions at one position of the reduced dimension."""
        return replace(self, addresses=self.addresses.at(position))

    def beside(self, local: frozenset[str]) -> Self:
        """The same expressions in a scope that computes these row values."""
        return replace(self, local=local)

    def type_of(self, name: str) -> str:
        """The C++ type that a value is computed in."""
        return COMPUTED[self.names.types[name]]

    def value(self, name: str) -> str:
        """A value that has been computed before, or a constant."""
        constant = self.names.constants.get(name)
        if constant is not None:
            return f"({constant})" if constant.startswith("-") else constant
        if not self.nest.columns or name in self.points or name in self.local:
            return self.names[name]
        if name in self.reduces:
            return f"{state_of(self.reduces[name], name, self.names)}_lanes[l]"
        return f"{self.names[name]}_lanes[l]"

    def computed(self, instruction: Instruction) -> str:
        """What an instruction computes."""
        match instruction:
            case Load():
                element = self.addresses.element(instruction.access)
                return self._widened(element, instruction.dtype)
            case LoadIndexed():
                return self._indexed(instruction)
            case Index():
                return self.addresses.index(instruction.dim)
            case Point():
                operands = tuple(self.value(name) for name in instruction.operands)
                text = point(instruction.function, operands, instruction.dtype)
                self._note(instruction.function, text)
                return text
        raise AssertionError(type(instruction))

    def stored(self, store: Store) -> str:
        """The value of a store, in the type of its tensor."""
        value = self.value(store.operand)
        if store.dtype == "bfloat16":
            self.lines.helpers.add("to_bfloat16")
            return f"to_bfloat16({value})"
        if COMPUTED[store.dtype] != self.type_of(store.operand) or store.dtype == "float16":
            return f"({STORED[store.dtype]}){value}"
        return value

    def _indexed(self, load: LoadIndexed) -> str:
        index = self.value(load.index)
        wrapped = f"({index} < 0 ? {index} + {load.extent} : {index})"
        place = self.addresses.offset(load.access)
        text = f"{identifier(load.access.tensor)}[{place} + {load.stride} * {wrapped}]"
        safe = f"({wrapped} >= 0 && {wrapped} < {load.extent})"
        zero = literal(0, self.names.types[load.result])
        return f"{safe} ? {self._widened(text, load.dtype)} : {zero}"

    def _widened(self, text: str, dtype: str) -> str:
        if dtype == "bfloat16":
            self.lines.helpers.add("from_bfloat16")
            return f"from_bfloat16({text})"
        return f"(float){text}" if dtype == "float16" else text

    def _note(self, function: str, text: str) -> None:
        self.lines.math.add("exp" if function == "sigmoid" else function)
        self.lines.helpers.update(helper for call, helper in CALLED.items() if call in text)
