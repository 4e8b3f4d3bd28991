"""Passes over a row, or over a program's part of it: each a loop over tiles."""

from dataclasses import dataclass

from kerntree.coder.emit.lines import Lines
from kerntree.coder.emit.triton_nest import TileNest
from kerntree.coder.emit.triton_positions import write_columns
from kerntree.coder.emit.triton_reduce import Reduction
from kerntree.coder.emit.triton_row_results import RowResults
from kerntree.coder.emit.triton_statements import TileStatements
from kerntree.coder.emit.triton_text import TYPES
from kerntree.coder.emit.walks import Plan, Reload, Walk
from kerntree.coder.kernel import Reduce


@dataclass(frozen=True)
class Passes:
    """Writes the passes of a plan, and the row values before, between and after them."""

    nest: TileNest
    plan: Plan
    lines: Lines
    statements: TileStatements
    row_results: RowResults

    def write(self) -> None:
        """All passes in order."""
        total = len(self.plan.walks)
        for number, walk in enumerate(self.plan.walks, start=1):
            for instruction in walk.rows_before:
                self.statements.compute(instruction)
            what = [r.function.replace("_", " ") for r in walk.reduces]
            what += [f"write {s.access.tensor}" for s in walk.stores]
            self.lines.put(f"# pass {number} of {total}: {', '.join(what)}")
            self._walk(walk, again=number < total)
        for instruction in self.plan.rows_after:
            self.statements.compute(instruction)
        for store in self.plan.row_stores:
            self.statements.store(store)

    def _walk(self, walk: Walk, *, again: bool) -> None:
        accumulated = [self._accumulated(reduce) for reduce in walk.reduces]
        for r, state in accumulated:
            for name, tile in zip(state, r.empty(self.nest.shape), strict=True):
                self.lines.put(f"{name} = {tile}")
        counted = {r.reduce.dtype for r, _ in accumulated if r.function == "moments"}
        if counted:
            self.lines.put(f"taken = tl.full((), 0.0, {TYPES[max(counted)]})")
        with self.lines.inside(self._loop(), end=""):
            addresses = self.statements.expressions.addresses
            write_columns(self.nest, addresses, self.lines, begin="start")
            if counted:
                self.lines.put("taken += 1.0")
            for instruction in walk.body:
                assert not isinstance(instruction, Reload), "nothing is kept between passes"
                self.statements.compute(instruction, again=again)
            for r, state in accumulated:
                share = "(1.0 / taken)"
                if r.reduce.dtype != max(counted, default=""):
                    share += f".to({TYPES[r.reduce.dtype]})"
                self._take(r, state, share)
            for store in walk.stores:
                self.statements.store(store)
        for r, state in accumulated:
            steps, found = r.finish(state, self._lane_counts(r.reduce.dtype), "")
            self.row_results.write(r, steps, found, part="CHUNK")

    def _accumulated(self, reduce: Reduce) -> tuple[Reduction, tuple[str, ...]]:
        """A reduction, and the names of its state."""
        r = self.row_results.reduction(reduce)
        name = f"{self.row_results.names[reduce.results[0]]}_so_far"
        return r, (name, f"{name}_second")[: len(r.types)]

    def _loop(self) -> str:
        """The head of the loop over tiles."""
        begin, end = "0", str(self.nest.columns)
        if self.nest.split:
            self.lines.put(f"end = tl.minimum(part * CHUNK + CHUNK, {end})")
            begin, end = "part * CHUNK", "end"
        stages = ", num_stages=STAGES" if "STAGES" in self.nest.tiles.choices else ""
        return f"for start in tl.range({begin}, {end}, BLOCK{stages}):"

    def _take(self, r: Reduction, state: tuple[str, ...], share: str) -> None:
        value = self.statements.expressions.full_tile(r.reduce.operand)
        inside = "inside_column" if self.nest.some_columns_outside else ""
        for line in r.take(state, value, "column", share, inside):
            self.lines.put(line)

    def _lane_counts(self, dtype: str) -> str:
        """How many values each lane of the passes took, as numbers."""
        length = str(self.nest.columns)
        if self.nest.split:
            length = f"tl.minimum(CHUNK, ({length} - part * CHUNK))"
        lane = f"tl.arange(0, BLOCK){self.nest.across}"
        return f"(({length} - {lane} + BLOCK - 1) // BLOCK).to({TYPES[dtype]})"
