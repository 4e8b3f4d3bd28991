"""Instructions as Triton statements."""

from dataclasses import dataclass, replace

from kerntree.coder.emit.lines import Lines
from kerntree.coder.emit.triton_expressions import TileExpressions
from kerntree.coder.emit.triton_nest import TileNest
from kerntree.coder.emit.triton_positions import write_indices
from kerntree.coder.emit.walks import point_slice
from kerntree.coder.kernel import At, Constant, Instruction, LoadIndexed, Store
from kerntree.coder.passes import results


@dataclass(frozen=True)
class TileStatements:
    """Writes instructions at the place of `expressions`."""

    nest: TileNest
    expressions: TileExpressions
    lines: Lines

    def compute(self, instruction: Instruction, *, again: bool = False) -> None:
        """Gives a name to what an instruction computes; `again`: it will be loaded once more."""
        match instruction:
            case Constant():
                return
            case At():
                self._gather(instruction)
            case LoadIndexed():
                name = self.expressions.name(instruction.result)
                index = f"{name}_index"
                self.lines.put(f"{index} = {self.expressions.wrapped_index(instruction)}")
                self.lines.put(f"{name} = {self.expressions.indexed(instruction, index)}")
            case _:
                (result,) = results(instruction)
                text = self.expressions.computed(instruction, again=again)
                self.lines.put(f"{self.expressions.name(result)} = {text}")

    def store(self, store: Store) -> None:
        """Writes a value to its tensor."""
        nest, addresses, access = self.nest, self.expressions.addresses, store.access
        by_row, along_row = nest.by_row(access), nest.along_row(access)
        place = [addresses.tensor(access), addresses.offset(access)]
        if nest.flat and not by_row:
            place.append("row")
        masks = addresses.inside(by_row=True, along_row=along_row)
        if nest.split and not along_row:
            masks.append("(part == 0)")
        mask = f", mask={' & '.join(masks)}" if masks else ""
        aside = nest.schedule.stream and nest.large(access)
        hint = ', cache_modifier=".cs"' if aside else ""
        text = " + ".join(part for part in place if part)
        self.lines.put(f"tl.store({text}, {self.expressions.stored(store)}{mask}{hint})")

    def _gather(self, at: At) -> None:
        """The slice of instructions that an element depends on, at the gathered position."""
        kernel, columns, put = self.nest.kernel, self.nest.columns, self.lines.put
        name, position = self.expressions.name(at.result), self.expressions.value(at.position)
        where = f"{name}_position"
        put(f"{where} = tl.where({position} < 0, {position} + {columns}, {position})")
        put(f"{name}_inside = ({where} >= 0) & ({where} < {columns})")
        put(f"{where} = tl.where({name}_inside, {where}, 0)")
        there = replace(self, expressions=self.expressions.at(where))
        write_indices(kernel.reduced, where, there.expressions.addresses, self.lines)
        for needed in point_slice(kernel, at.operand):
            there.compute(needed)
        put(f"{name} = tl.where({name}_inside, {there.expressions.value(at.operand)}, 0)")
