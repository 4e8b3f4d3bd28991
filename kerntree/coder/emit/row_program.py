"""What is done for one row, or for a block of rows: segments of row values between passes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kerntree.coder.emit.accumulators import accumulator
from kerntree.coder.emit.addresses import Addresses
from kerntree.coder.emit.chunks import Chunks
from kerntree.coder.emit.expressions import Expressions
from kerntree.coder.emit.lines import Lines
from kerntree.coder.emit.names import Names
from kerntree.coder.emit.nest import Nest
from kerntree.coder.emit.partial_results import PartialResults
from kerntree.coder.emit.statements import Statements
from kerntree.coder.emit.streams import Streams
from kerntree.coder.emit.walk_loops import WalkLoops
from kerntree.coder.emit.walks import Plan, Walk, plan_walks
from kerntree.coder.kernel import Constant, Instruction, Reduce, Store
from kerntree.coder.passes import point_values, results


@dataclass(frozen=True)
class RowProgram:
    """Writes the segments and passes of a plan."""

    nest: Nest
    plan: Plan
    lines: Lines
    statements: Statements
    partial_results: PartialResults
    loops: WalkLoops
    chunks: Chunks

    def write(self) -> None:
        """The whole row program."""
        self._declare_kept()
        for number, walk in enumerate(self.plan.walks, start=1):
            self._segment(walk.rows_before, stores=())
            self._comment(number, walk)
            self._walk(number, walk)
        self._segment(self.plan.rows_after, self.plan.row_stores)

    def _declare_kept(self) -> None:
        expressions = self.statements.expressions
        for buffer in self.plan.kept:
            size = self.nest.positions(self.nest.kernel.reduced)
            length = f"{size} * LANES" if self.nest.columns else str(size)
            name = f"kept_{expressions.names[buffer]}"
            self.lines.put(f"alignas(64) {expressions.type_of(buffer)} {name}[{length}];")

    def _comment(self, number: int, walk: Walk) -> None:
        if not self.nest.kernel.reduced:
            return
        names = self.statements.expressions.names
        what = [r.function.replace("_", " ") for r in walk.reduces]
        what += [f"write {s.access.tensor}" for s in walk.stores]
        what += [f"keep {names[k]}" for k in walk.keeps]
        self.lines.put(f"// pass {number} of {len(self.plan.walks)}: {', '.join(what)}")

    def _walk(self, number: int, walk: Walk) -> None:
        accumulators = [accumulator(r) for r in walk.reduces]
        if self.nest.split:
            self.chunks.write(walk, accumulators, number=number)
            return
        self.partial_results.declare(accumulators)
        self.loops.write(walk, accumulators)
        self.partial_results.finish(accumulators)

    def _segment(self, body: Sequence[Instruction], stores: Sequence[Store]) -> None:
        """Row values computed and stored."""
        body = [i for i in body if not isinstance(i, Constant)]
        if not body and not stores:
            return
        if self.nest.columns:
            self._segment_of_columns(body, stores)
            return
        for instruction in body:
            self.statements.compute(instruction)
        for store in stores:
            self.statements.store(store)

    def _segment_of_columns(self, body: Sequence[Instruction], stores: Sequence[Store]) -> None:
        """One row value a lane; those that other segments read are kept in arrays."""
        computed = [name for i in body for name in results(i)]
        statements = self.statements.beside(frozenset(computed))
        expressions = statements.expressions
        names = expressions.names
        for name in computed:
            if name in self.plan.crossing:
                self.lines.put(f"{expressions.type_of(name)} {names[name]}_lanes[LANES];")
        with self.lines.lanes():
            for instruction in body:
                statements.compute(instruction)
                for name in results(instruction):
                    if name in self.plan.crossing:
                        self.lines.put(f"{names[name]}_lanes[l] = {names[name]};")
            for store in stores:
                statements.store(store)


def row_program(nest: Nest, lines: Lines, *, in_place: Mapping[str, str]) -> RowProgram:
    """The row program of a kernel, which writes to `lines`."""
    kernel = nest.kernel
    names, addresses = Names(kernel), Addresses(nest, in_place)
    reduces = {name: i for i in kernel.body if isinstance(i, Reduce) for name in i.results}
    expressions = Expressions(nest, names, addresses, lines, point_values(kernel), reduces)
    statements = Statements(kernel, expressions, lines)
    streams = Streams(nest, addresses, lines)
    partial_results = PartialResults(nest, names, lines)
    loops = WalkLoops(nest, lines, statements, streams, partial_results)
    return RowProgram(
        nest,
        plan_walks(kernel, keep=nest.schedule.keep_row and not nest.split),
        lines,
        statements,
        partial_results,
        loops,
        Chunks(nest, names, lines, streams, partial_results, loops),
    )
