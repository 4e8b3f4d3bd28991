"""A kernel and a schedule as one C++ function.

Both loop orders share one shape: segments that compute row values, between walks over the reduced
dimensions that compute point values, take them into accumulators, or store them. Work is done in
blocks of LANES neighbouring elements, in the manner of Triton; a block is an `omp simd` loop.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kerntree.coder.emit.accumulators import Accumulator, accumulator
from kerntree.coder.emit.cpp_text import COMPUTED, STORED, literal, point
from kerntree.coder.emit.names import Names, identifier
from kerntree.coder.emit.walks import Plan, Reload, Walk, plan_walks, point_slice
from kerntree.coder.kernel import (
    Access,
    At,
    Constant,
    Index,
    Instruction,
    Kernel,
    Load,
    LoadIndexed,
    Point,
    Reduce,
    Store,
)
from kerntree.coder.passes import point_values, results
from kerntree.coder.program import Schedule
from kerntree.plans.graph import ITEM_BYTES

_HUGE = 4 << 20  # bytes: below, an allocator reuses pages and there are no faults to save
_SPLIT_ROWS = 8  # rows: fewer are shared among threads by splitting each
_SPLIT_CHUNKS = 64


@dataclass(frozen=True)
class Function:
    """C++ text of one kernel, its parameters in order, and the helpers and functions it uses."""

    name: str
    text: str
    parameters: tuple[str, ...]
    writes: tuple[str, ...]
    helpers: frozenset[str]
    math: frozenset[str]


def emit_function(
    kernel: Kernel, schedule: Schedule, *, name: str, in_place: Mapping[str, str] | None = None
) -> Function:
    """The C++ function of a kernel; `in_place` maps written values to the tensors they replace."""
    return _Writer(kernel, schedule, name, dict(in_place or {})).function()


class _Writer:
    def __init__(
        self, kernel: Kernel, schedule: Schedule, name: str, in_place: dict[str, str]
    ) -> None:
        self.kernel, self.schedule, self.name, self.in_place = kernel, schedule, name, in_place
        self.rows = bool(kernel.reduced) and schedule.order == "reduce_inner"
        self.lane = kernel.reduced[-1] if self.rows else kernel.kept[-1]
        self.wide = schedule.vectorize
        self.names = Names(kernel)
        self.points = point_values(kernel)
        self.plan: Plan = plan_walks(kernel, keep=schedule.keep_row and not self._split())
        self.lines: list[str] = []
        self.depth = 1
        self.helpers: set[str] = set()
        self.math: set[str] = set()
        self.streamed: list[tuple[str, str, str]] = []
        self.split_walks = 0
        self.at_lane = ""  # inside a gather, the position that replaces the lane's index
        self.local: frozenset[str] = frozenset()  # row values of the segment being written
        self.reduce_of = {
            name: (accumulator(i), position)
            for i in kernel.body
            if isinstance(i, Reduce)
            for position, name in enumerate(i.results)
        }

    # --- the function -------------------------------------------------------------------------

    def function(self) -> Function:
        parameters = list(self.kernel.reads)
        parameters += [t for t in self.kernel.writes if t not in self.in_place]
        kept = self.kernel.kept if self.rows else self.kernel.kept[:-1]
        self._advise()
        if self._split():
            self._open_loops(kept, parallel=False)
            self._row_body()
            self._close(len(kept))
        else:
            self._parallel_loops(kept)
        signature = ", ".join([*(self._parameter(t) for t in parameters), "int threads"])
        used = "" if self.schedule.parallel else "  (void)threads;\n"
        head = f'{self._comment()}extern "C" void {self.name}({signature}) {{\n{used}'
        return Function(
            self.name,
            head + "\n".join(self.lines) + "\n}\n",
            tuple(parameters),
            self.kernel.writes,
            frozenset(self.helpers),
            frozenset(self.math),
        )

    def _comment(self) -> str:
        extents = [f"i{d}: {dim.extent}{' reduced' if dim.reduced else ''}"
                   for d, dim in enumerate(self.kernel.dims)]  # fmt: skip
        outputs = ", ".join(
            f"{t} in place of {self.in_place[t]}" if t in self.in_place else t
            for t in self.kernel.writes
        )
        return f"// {', '.join(self.kernel.reads)} -> {outputs}   [{'; '.join(extents)}]\n"

    def _parameter(self, tensor: str) -> str:
        written = tensor in self.kernel.writes or tensor in self.in_place.values()
        constant = "" if written else "const "
        return f"{constant}{STORED[self._stored(tensor)]}* __restrict__ {identifier(tensor)}"

    def _stored(self, tensor: str) -> str:
        for i in self.kernel.body:
            if isinstance(i, Load | LoadIndexed | Store) and i.access.tensor == tensor:
                return i.dtype
        raise KeyError(tensor)

    def _advise(self) -> None:
        if not self.schedule.huge_pages:
            return
        for i in self.kernel.body:
            if isinstance(i, Store) and i.access.tensor not in self.in_place:
                size = ITEM_BYTES[i.dtype]
                for stride, dim in zip(i.access.strides, self.kernel.dims, strict=True):
                    size *= dim.extent if stride else 1
                if size >= _HUGE:
                    self.helpers.add("expect_huge_pages")
                    self._put(f"expect_huge_pages({identifier(i.access.tensor)}, {size});")

    def _split(self) -> bool:
        """Few rows: their passes are shared among threads instead."""
        rows = total = 1
        for dim in self.kernel.dims:
            total *= dim.extent
            rows *= 1 if dim.reduced else dim.extent
        few = rows < _SPLIT_ROWS and total // rows >= 1 << 14
        return self.schedule.parallel and self.rows and few

    def _parallel_loops(self, kept: Sequence[int]) -> None:
        loops = len(kept) + (0 if self.rows else 1)
        collapse = f" collapse({loops})" if loops > 1 else ""
        fenced = self.schedule.stream and self.wide
        if self.schedule.parallel and fenced:
            self._put("#pragma omp parallel num_threads(threads)")
            self._put("{")
            self.depth += 1
            self._put(f"#pragma omp for{collapse} schedule(static) nowait")
        elif self.schedule.parallel:
            self._put(f"#pragma omp parallel for{collapse} num_threads(threads) schedule(static)")
        self._open_loops(kept, parallel=True)
        if self.rows:
            self._row_body()
        else:
            self._column_blocks()
        self._close(len(kept))
        if fenced and self.helpers & {"stream"}:
            self._put("end_stream();")
        if self.schedule.parallel and fenced:
            self._close(1)

    # --- loops --------------------------------------------------------------------------------

    def _open_loops(self, dims: Sequence[int], *, parallel: bool) -> None:
        for d in dims:
            self._put(f"for (int64_t i{d} = 0; i{d} < {self.kernel.dims[d].extent}; ++i{d}) {{")
            self.depth += 1

    def _close(self, count: int) -> None:
        for _ in range(count):
            self.depth -= 1
            self._put("}")

    def _column_blocks(self) -> None:
        """Blocks along the last kept dimension; the whole row program runs in each."""
        d, extent = self.lane, self.kernel.dims[self.lane].extent
        if not self.wide:
            self._put(f"for (int64_t i{d} = 0; i{d} < {extent}; ++i{d}) {{")
            self.depth += 1
            self._row_body()
            self._close(1)
            return
        self._put(f"for (int64_t i{d} = 0; i{d} < {extent}; i{d} += LANES) {{")
        self.depth += 1
        self._put("auto block = [&](const int lanes) __attribute__((always_inline)) {")
        self.depth += 1
        self._row_body()
        self.depth -= 1
        self._put("};")
        self._put(f"if (i{d} + LANES <= {extent}) block(LANES);")
        self._put(f"else block((int)({extent} - i{d}));")
        self._close(1)

    def _row_body(self) -> None:
        for buffer in self.plan.kept:
            size = 1
            for d in self.kernel.reduced:
                size *= self.kernel.dims[d].extent
            ctype = COMPUTED[self.names.types[buffer]]
            length = str(size) if self.rows or not self.wide else f"{size} * LANES"
            self._put(f"alignas(64) {ctype} kept_{self.names[buffer]}[{length}];")
        last = len(self.plan.walks) - 1
        for number, walk in enumerate(self.plan.walks):
            self._row_segment(walk.rows_before, stores=())
            self._comment_walk(number, last, walk)
            self._walk(walk)
        self._row_segment(self.plan.rows_after, self.plan.row_stores)

    def _comment_walk(self, number: int, last: int, walk: Walk) -> None:
        if not self.kernel.reduced:
            return
        what = [r.function.replace("_", " ") for r in walk.reduces]
        what += [f"write {s.access.tensor}" for s in walk.stores]
        what += [f"keep {self.names[k]}" for k in walk.keeps]
        self._put(f"// pass {number + 1} of {last + 1}: {', '.join(what)}")

    def _row_segment(self, body: Sequence[Instruction], stores: Sequence[Store]) -> None:
        body = [i for i in body if not isinstance(i, Constant)]
        if not body and not stores:
            return
        if self.rows or not self.wide:
            for instruction in body:
                self._statement(instruction)
            for store in stores:
                self._store(store)
            return
        crossing = [n for i in body for n in results(i) if n in self.plan.crossing]
        self.local = frozenset(n for i in body for n in results(i))
        for name in crossing:
            ctype = COMPUTED[self.names.types[name]]
            self._put(f"{ctype} {self.names[name]}_lanes[LANES];")
        self._open_lanes()
        for instruction in body:
            self._statement(instruction)
            for name in results(instruction):
                if name in self.plan.crossing:
                    self._put(f"{self.names[name]}_lanes[l] = {self.names[name]};")
        for store in stores:
            self._store(store)
        self._close_lanes()
        self.local = frozenset()

    # --- a walk over the reduced dimensions ------------------------------------------------------

    def _walk(self, walk: Walk) -> None:
        accumulators = [accumulator(r) for r in walk.reduces]
        split = self._split()
        if split:
            self._split_walk(walk, accumulators)
            return
        self._declare(accumulators)
        self._walk_loops(walk, accumulators, self.kernel.reduced)
        self._finish(accumulators)

    def _split_walk(self, walk: Walk, accumulators: Sequence[Accumulator]) -> None:
        first = self.kernel.reduced[0]
        extent = self.kernel.dims[first].extent
        step = "LANES" if self.wide and first == self.lane else "1"
        width = f"(({extent} + {_SPLIT_CHUNKS} * {step} - 1) / ({_SPLIT_CHUNKS} * {step}) * {step})"
        self.split_walks += 1
        name = f"width_{self.split_walks}"
        self._put(f"const int64_t {name} = {width};")
        for a in accumulators:
            for part, ctype in enumerate(a.types):
                self._put(f"{ctype} {self._state(a, part)}_parts[{_SPLIT_CHUNKS}];")
        if any(a.reduce.function == "moments" for a in accumulators):
            self._put(f"int64_t {name}_counts[{_SPLIT_CHUNKS}];")
        self._put("#pragma omp parallel for num_threads(threads) schedule(static)")
        self._put(f"for (int chunk = 0; chunk < {_SPLIT_CHUNKS}; ++chunk) {{")
        self.depth += 1
        self._put(f"const int64_t begin = chunk * {name};")
        self._put(f"const int64_t end = begin + {name} < {extent} ? begin + {name} : {extent};")
        self._declare(accumulators)
        self._walk_loops(walk, accumulators, self.kernel.reduced, bounded=first)
        self._finish(accumulators, bounded=True)
        for a in accumulators:
            for part in range(len(a.types)):
                state = self._state(a, part)
                self._put(f"{state}_parts[chunk] = {state};")
        inner = 1
        for d in self.kernel.reduced[1:]:
            inner *= self.kernel.dims[d].extent
        if any(a.reduce.function == "moments" for a in accumulators):
            self._put(f"{name}_counts[chunk] = (end > begin ? end - begin : 0) * {inner};")
        if self.schedule.stream and "stream" in self.helpers:
            self._put("end_stream();")
        self._close(1)
        for a in accumulators:
            for part, ctype in enumerate(a.types):
                state = self._state(a, part)
                self._put(f"{ctype} {state} = {state}_parts[0];")
            counts = ("0", "0")
            if a.reduce.function == "moments":
                count = f"{self._state(a, 0)}_count"
                self._put(f"int64_t {count} = {name}_counts[0];")
                counts = (count, f"{name}_counts[chunk]")
            self._put(f"for (int chunk = 1; chunk < {_SPLIT_CHUNKS}; ++chunk) {{")
            self.depth += 1
            mine = tuple(self._state(a, part) for part in range(len(a.types)))
            for line in a.join(mine, tuple(f"{s}_parts[chunk]" for s in mine), counts):
                self._put(line)
            if a.reduce.function == "moments":
                self._put(f"{counts[0]} += {counts[1]};")
            self._close(1)
            self._name_results(a)

    def _walk_loops(
        self,
        walk: Walk,
        accumulators: Sequence[Accumulator],
        dims: Sequence[int],
        *,
        bounded: int = -1,
    ) -> None:
        lane = self.lane
        outer = [d for d in dims if d != lane] if self.rows else list(dims)
        for d in outer:
            low, high = ("begin", "end") if d == bounded else ("0", self.kernel.dims[d].extent)
            self._put(f"for (int64_t i{d} = {low}; i{d} < {high}; ++i{d}) {{")
            self.depth += 1
        if not self.rows:
            self._block(walk, accumulators, "lanes")
        elif not self.wide:
            low, high = (
                ("begin", "end") if lane == bounded else ("0", self.kernel.dims[lane].extent)
            )
            self._put(f"for (int64_t i{lane} = {low}; i{lane} < {high}; ++i{lane}) {{")
            self.depth += 1
            self._block(walk, accumulators, "1")
            self._close(1)
        else:
            self._row_blocks(walk, accumulators, bounded)
        self._close(len(outer))

    def _row_blocks(self, walk: Walk, accumulators: Sequence[Accumulator], bounded: int) -> None:
        lane, extent = self.lane, self.kernel.dims[self.lane].extent
        own = lane == bounded
        self._put("{")
        self.depth += 1
        low, high = ("begin", "end") if own else ("0", str(extent))
        self._put(
            f"auto block = [&](const int64_t i{lane}, const int lanes)"
            " __attribute__((always_inline)) {"
        )
        self.depth += 1
        self._block(walk, accumulators, "lanes")
        self.depth -= 1
        self._put("};")
        self._put(f"int64_t next = {low};")
        self._put(f"for (; next + LANES <= {high}; next += LANES) block(next, LANES);")
        self._put(f"if (next < {high}) block(next, (int)({high} - next));")
        self._close(1)

    def _block(self, walk: Walk, accumulators: Sequence[Accumulator], lanes: str) -> None:
        """One block of point values: computed, kept, taken, stored."""
        moments = [a for a in accumulators if a.reduce.function == "moments"]
        if moments and not self._counts_by_lane():
            ctype = moments[0].types[0]
            self._put("++taken;")
            self._put(f"const {ctype} share = ({ctype})1 / ({ctype})taken;")
        self.streamed = []
        if self.wide:
            self._declare_streams(walk)
            self._open_lanes()
        for instruction in walk.body:
            self._statement(instruction)
        for name in walk.keeps:
            self._put(f"kept_{self.names[name]}[{self._kept_index()}] = {self.names[name]};")
        for a in accumulators:
            value = self._use(a.reduce.operand)
            states = tuple(
                self._state(a, part) + ("_lanes[l]" if self.wide else "")
                for part in range(len(a.types))
            )
            count = "share"
            if a in moments and self._counts_by_lane():
                if a is moments[0]:
                    self._put("taken_lanes[l] += 1;")
                count = f"(({a.types[0]})1 / taken_lanes[l])"
            self._braced(a.take(states, value, self._flat_position(), count))
        for store in walk.stores:
            self._store(store)
        if self.wide:
            self._close_lanes()
            self._flush_streams()

    def _braced(self, statements: list[str]) -> None:
        if len(statements) == 1:
            self._put(statements[0])
            return
        self._put("{")
        self.depth += 1
        for line in statements:
            self._put(line)
        self._close(1)

    # --- accumulators -----------------------------------------------------------------------------

    def _state(self, a: Accumulator, part: int) -> str:
        base = self.names[a.reduce.results[0]]
        return base + ("", "_second")[part] + "_so_far"

    def _counts_by_lane(self) -> bool:
        """Whether lanes see different numbers of values, other than in one last block."""
        if not self.wide or not self.rows:
            return False
        several = len(self.kernel.reduced) > 1
        return several or self._split()

    def _declare(self, accumulators: Sequence[Accumulator]) -> None:
        for a in accumulators:
            for part, (ctype, start) in enumerate(zip(a.types, a.starts, strict=True)):
                state = self._state(a, part)
                if self.wide:
                    self._put(f"alignas(64) {ctype} {state}_lanes[LANES];")
                    self._put(f"for (int l = 0; l < LANES; ++l) {state}_lanes[l] = {start};")
                else:
                    self._put(f"{ctype} {state} = {start};")
        for a in accumulators:
            if a.reduce.function == "moments":
                if self._counts_by_lane():
                    self._put(f"{a.types[0]} taken_lanes[LANES] = {{0}};")
                else:
                    self._put("int64_t taken = 0;")
                break

    def _finish(self, accumulators: Sequence[Accumulator], *, bounded: bool = False) -> None:
        """Joins the lanes of a row; columns keep one result a lane."""
        for a in accumulators:
            states = [self._state(a, part) for part in range(len(a.types))]
            if self.wide and self.rows:
                moments = a.reduce.function == "moments"
                counts = f"{states[0]}_count"
                if moments:
                    extent = self.kernel.dims[self.lane].extent
                    each = f"{extent} / LANES + (l < {extent} % LANES)"
                    each = "taken_lanes[l]" if self._counts_by_lane() else each
                    self._put(f"{a.types[0]} {counts}[LANES];")
                    self._put(f"for (int l = 0; l < LANES; ++l) {counts}[l] = {each};")
                self._put("for (int half = LANES / 2; half > 0; half /= 2) {")
                self.depth += 1
                self._put("for (int l = 0; l < half; ++l) {")
                self.depth += 1
                mine = tuple(f"{s}_lanes[l]" for s in states)
                theirs = tuple(f"{s}_lanes[l + half]" for s in states)
                for line in a.join(mine, theirs, (f"{counts}[l]", f"{counts}[l + half]")):
                    self._put(line)
                if moments:
                    self._put(f"{counts}[l] += {counts}[l + half];")
                self._close(2)
                for part, state in enumerate(states):
                    self._put(f"const {a.types[part]} {state} = {state}_lanes[0];")
            if not bounded and not (self.wide and not self.rows):
                self._name_results(a)

    def _name_results(self, a: Accumulator) -> None:
        for position, name in enumerate(a.reduce.results):
            part = 1 if a.reduce.function in ("argmax", "argmin") else position
            ctype = COMPUTED[self.names.types[name]]
            self._put(f"const {ctype} {self.names[name]} = {self._state(a, part)};")

    # --- statements -------------------------------------------------------------------------------

    def _statement(self, instruction: Instruction | Reload) -> None:
        if isinstance(instruction, Constant):
            return
        if isinstance(instruction, Reload):
            name = self.names[instruction.result]
            ctype = COMPUTED[self.names.types[instruction.result]]
            self._put(f"const {ctype} {name} = kept_{name}[{self._kept_index()}];")
            return
        if isinstance(instruction, At):
            self._gather(instruction)
            return
        (name,) = results(instruction)
        ctype = COMPUTED[self.names.types[name]]
        self._put(f"const {ctype} {self.names[name]} = {self._expression(instruction)};")

    def _expression(self, instruction: Instruction) -> str:
        match instruction:
            case Load():
                return self._widened(self._element(instruction.access), instruction.dtype)
            case LoadIndexed():
                index = self._use(instruction.index)
                wrapped = f"({index} < 0 ? {index} + {instruction.extent} : {index})"
                place = self._address(instruction.access)
                table = identifier(instruction.access.tensor)
                text = f"{table}[{place} + {instruction.stride} * {wrapped}]"
                safe = f"({wrapped} >= 0 && {wrapped} < {instruction.extent})"
                zero = literal(0, self.names.types[instruction.result])
                return f"{safe} ? {self._widened(text, instruction.dtype)} : {zero}"
            case Index():
                return self._index(instruction.dim)
            case Point():
                operands = tuple(self._use(name) for name in instruction.operands)
                text = point(instruction.function, operands, instruction.dtype)
                self._note(instruction.function, text)
                return text
        raise AssertionError(type(instruction))

    def _note(self, function: str, text: str) -> None:
        self.math.add("exp" if function == "sigmoid" else function)
        for helper in ("remainder_like_divisor", "divide_down"):
            if helper in text:
                self.helpers.add(helper)

    def _gather(self, instruction: At) -> None:
        """The slice of instructions that an element depends on, at the gathered position."""
        extent = self.kernel.dims[self.kernel.reduced[0]].extent
        name, position = self.names[instruction.result], self._use(instruction.position)
        ctype = COMPUTED[self.names.types[instruction.result]]
        where = f"{name}_position"
        self._put(f"const int64_t {where} = {position} < 0 ? {position} + {extent} : {position};")
        zero = literal(0, self.names.types[instruction.result])
        self._put(f"{ctype} {name} = {zero};")
        self._put(f"if ({where} >= 0 && {where} < {extent}) {{")
        self.depth += 1
        self.at_lane = where
        for needed in point_slice(self.kernel, instruction.operand):
            self._statement(needed)
        self.at_lane = ""
        self._put(f"{name} = {self._use(instruction.operand)};")
        self._close(1)

    def _use(self, name: str) -> str:
        constant = self.names.constants.get(name)
        if constant is not None:
            return f"({constant})" if constant.startswith("-") else constant
        by_lane = self.wide and not self.rows and name not in self.points
        if not by_lane or name in self.local:
            return self.names[name]
        if name in self.reduce_of:
            a, position = self.reduce_of[name]
            part = 1 if a.reduce.function in ("argmax", "argmin") else position
            return f"{self._state(a, part)}_lanes[l]"
        return f"{self.names[name]}_lanes[l]"

    def _store(self, store: Store) -> None:
        value = self._use(store.operand)
        if store.dtype == "bfloat16":
            self.helpers.add("to_bfloat16")
            value = f"to_bfloat16({value})"
        elif COMPUTED[store.dtype] != COMPUTED[self.names.types[store.operand]] or (
            store.dtype == "float16"
        ):
            value = f"({STORED[store.dtype]}){value}"
        for tensor, buffer, _ in self.streamed:
            if tensor == store.access.tensor:
                self._put(f"{buffer}[l] = {value};")
                return
        self._put(f"{self._element(store.access)} = {value};")

    def _declare_streams(self, walk: Walk) -> None:
        for store in walk.stores:
            unit = store.access.strides[self.lane] == 1
            if self.schedule.stream and unit and store.access.tensor not in self.in_place:
                self.helpers.add("stream")
                buffer = f"block_of_{identifier(store.access.tensor)}"
                ctype = STORED[store.dtype]
                self._put(f"alignas(64) {ctype} {buffer}[LANES];")
                place = (
                    f"{identifier(store.access.tensor)} + {self._address(store.access, lane='0')}"
                )
                self.streamed.append((store.access.tensor, buffer, place))

    def _flush_streams(self) -> None:
        for tensor, buffer, place in self.streamed:
            ctype = STORED[self._stored(tensor)]
            self._put(f"if (lanes == LANES) stream<{ctype}, LANES>({buffer}, {place});")
            self._put(f"else memcpy({place}, {buffer}, lanes * sizeof({ctype}));")
        self.streamed = []

    # --- addresses --------------------------------------------------------------------------------

    def _index(self, d: int, lane: str = "l") -> str:
        if self.at_lane and d in self.kernel.reduced:
            return self.at_lane
        if d == self.lane and self.wide:
            return f"(i{d} + {lane})"
        return f"i{d}"

    def _address(self, access: Access, *, lane: str = "l") -> str:
        terms = [str(access.offset)] if access.offset else []
        for d, stride in enumerate(access.strides):
            if stride:
                index = self._index(d, lane)
                terms.append(index.strip("()") if stride == 1 else f"{stride} * {index}")
        return " + ".join(terms) or "0"

    def _element(self, access: Access) -> str:
        tensor = self.in_place.get(access.tensor, access.tensor)
        return f"{identifier(tensor)}[{self._address(access)}]"

    def _widened(self, text: str, dtype: str) -> str:
        if dtype == "bfloat16":
            self.helpers.add("from_bfloat16")
            return f"from_bfloat16({text})"
        return f"(float){text}" if dtype == "float16" else text

    def _flat_position(self) -> str:
        text = ""
        for d in self.kernel.reduced:
            index = self._index(d)
            text = f"({text} * {self.kernel.dims[d].extent} + {index})" if text else index
        return text or "0"

    def _kept_index(self) -> str:
        flat = self._flat_position()
        return flat if self.rows or not self.wide else f"{flat} * LANES + l"

    # --- text -------------------------------------------------------------------------------------

    def _open_lanes(self) -> None:
        self._put("#pragma omp simd")
        self._put("for (int l = 0; l < lanes; ++l) {")
        self.depth += 1

    def _close_lanes(self) -> None:
        self._close(1)

    def _put(self, line: str) -> None:
        self.lines.append("  " * self.depth + line)
