"""Instructions as C++ statements."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from kerntree.coder.emit.cpp_text import literal
from kerntree.coder.emit.expressions import Expressions
from kerntree.coder.emit.lines import Lines
from kerntree.coder.emit.streams import Stream
from kerntree.coder.emit.walks import Reload, point_slice
from kerntree.coder.kernel import At, Constant, Instruction, Kernel, Store
from kerntree.coder.passes import results


@dataclass(frozen=True)
class Statements:
    """Writes instructions in the scope of `expressions`."""

    kernel: Kernel
    expressions: Expressions
    lines: Lines

    def beside(self, local: frozenset[str]) -> Self:
        """The same statements in a scope that computes these row values."""
        return replace(self, expressions=self.expressions.beside(local))

    def compute(self, instruction: Instruction | Reload) -> None:
        """Gives a name to what an instruction computes."""
        match instruction:
            case Constant():
                return
            case Reload():
                name = self.expressions.names[instruction.result]
                self._define(instruction.result, self.expressions.addresses.kept(name))
            case At():
                self._gather(instruction)
            case _:
                (result,) = results(instruction)
                self._define(result, self.expressions.computed(instruction))

    def keep(self, result: str) -> None:
        """Keeps a point value in the row's scratch memory."""
        name = self.expressions.names[result]
        self.lines.put(f"{self.expressions.addresses.kept(name)} = {name};")

    def store(self, store: Store, streams: Sequence[Stream] = ()) -> None:
        """Writes a value to its tensor, or to the block of a stream to it."""
        value = self.expressions.stored(store)
        stream = next((s for s in streams if s.store == store), None)
        place = (
            f"{stream.buffer}[l]" if stream else self.expressions.addresses.element(store.access)
        )
        self.lines.put(f"{place} = {value};")

    def _define(self, result: str, text: str) -> None:
        ctype, name = self.expressions.type_of(result), self.expressions.names[result]
        self.lines.put(f"const {ctype} {name} = {text};")

    def _gather(self, at: At) -> None:
        """The slice of instructions that an element depends on, at the gathered position."""
        extent = self.kernel.dims[self.kernel.reduced[0]].extent
        name, position = self.expressions.names[at.result], self.expressions.value(at.position)
        where = f"{name}_position"
        self.lines.put(
            f"const int64_t {where} = {position} < 0 ? {position} + {extent} : {position};"
        )
        zero = literal(0, self.expressions.names.types[at.result])
        self.lines.put(f"{self.expressions.type_of(at.result)} {name} = {zero};")
        with self.lines.inside(f"if ({where} >= 0 && {where} < {extent}) {{"):
            there = replace(self, expressions=self.expressions.at(where))
            for needed in point_slice(self.kernel, at.operand):
                there.compute(needed)
            self.lines.put(f"{name} = {self.expressions.value(at.operand)};")
