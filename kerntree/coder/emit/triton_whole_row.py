"""A row, or a program's part of it, in one tile: every value is computed once."""

from dataclasses import dataclass

from kerntree.coder.emit.lines import Lines
from kerntree.coder.emit.triton_nest import TileNest
from kerntree.coder.emit.triton_positions import write_columns
from kerntree.coder.emit.triton_row_results import RowResults
from kerntree.coder.emit.triton_statements import TileStatements
from kerntree.coder.emit.triton_text import TYPES
from kerntree.coder.kernel import Reduce, Store


@dataclass(frozen=True)
class WholeRow:
    """Writes all instructions of a kernel in their order."""

    nest: TileNest
    lines: Lines
    statements: TileStatements
    row_results: RowResults

    def write(self) -> None:
        """The whole body."""
        if not self.nest.flat:
            begin = "part * BLOCK" if self.nest.split else ""
            write_columns(self.nest, self.statements.expressions.addresses, self.lines, begin=begin)
        for instruction in self.nest.kernel.body:
            match instruction:
                case Reduce():
                    self._reduce(instruction)
                case Store():
                    self.statements.store(instruction)
                case _:
                    self.statements.compute(instruction)

    def _reduce(self, reduce: Reduce) -> None:
        r = self.row_results.reduction(reduce)
        value = self.statements.expressions.full_tile(reduce.operand)
        inside = "inside_column" if self.nest.some_columns_outside else ""
        steps, found = r.whole(value, "column", self._count(reduce.dtype), inside)
        self.row_results.write(r, steps, found, part="BLOCK")

    def _count(self, dtype: str) -> str:
        """How many values of a row the tile holds, as a number."""
        columns = self.nest.columns
        if not self.nest.split:
            return f"{columns}.0"
        if self.nest.some_columns_outside:
            return f"tl.minimum(BLOCK, {columns} - part * BLOCK).to({TYPES[dtype]})"
        return "BLOCK * 1.0"
