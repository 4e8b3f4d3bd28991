"""A kernel and a schedule as one Triton function.

A program works on a tile of kept positions (`row`) times reduced ones (`column`). Either the tile
holds a whole row, and every value is computed once; or each pass over the row is a loop over tiles;
or several programs share a row, hand their partial results over through memory, and wait for each
other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from kerntree.coder.emit.names import Names, identifier
from kerntree.coder.emit.triton_reduce import Reduction
from kerntree.coder.emit.triton_text import HELPERS, LANGUAGE, LIBDEVICE, TYPES, literal, point
from kerntree.coder.emit.triton_tiles import Tiles, tiles_of
from kerntree.coder.emit.walks import Plan, Reload, Walk, plan_walks, point_slice
from kerntree.coder.kernel import (
    Access,
    At,
    Constant,
    Dim,
    Index,
    Instruction,
    Kernel,
    Load,
    LoadIndexed,
    Point,
    Reduce,
    Store,
)
from kerntree.coder.passes import point_values, results, uses
from kerntree.coder.program import Schedule

_RESERVED = frozenset(
    "tl triton torch libdevice row column inside inside_row inside_column part first ticket tile "
    "better step shrink before peak lost middle apart entries count share start taken arrived "
    "ROWS BLOCK PARTS WIDTH CHUNK STAGES float min max range".split()
)
_NEEDS_TENSORS = LANGUAGE | LIBDEVICE.keys() | {"cast", "abs", "sigmoid", "remainder", "floor_div"}


@dataclass(frozen=True)
class TritonFunction:
    """Triton text of one kernel, its tensors in order, sizes, helpers, and how it is launched.

    `scratch` are types of the buffers through which programs that share a row hand over partial
    results, with the number of results of each; `meetings` is how often they wait for each other.
    """

    name: str
    text: str
    parameters: tuple[str, ...]
    writes: tuple[str, ...]
    helpers: frozenset[str]
    tiles: Tiles
    rows: int
    columns: int
    persist: bool
    scratch: Mapping[str, int] = field(default_factory=dict)
    meetings: int = 0


def emit_triton(
    kernel: Kernel, schedule: Schedule, *, name: str, in_place: Mapping[str, str] | None = None
) -> TritonFunction:
    """The Triton function of a kernel; `in_place` maps written values to what they replace."""
    return _Writer(kernel, schedule, name, dict(in_place or {})).function()


class _Writer:
    def __init__(
        self, kernel: Kernel, schedule: Schedule, name: str, in_place: dict[str, str]
    ) -> None:
        kernel = _with_columns(kernel)
        self.kernel, self.schedule, self.name, self.in_place = kernel, schedule, name, in_place
        self.tiles = tiles_of(kernel, schedule)
        self.rows = prod(kernel.dims[d].extent for d in kernel.kept)
        self.columns = prod(kernel.dims[d].extent for d in kernel.reduced)
        self.flat = not kernel.reduced
        self.names = Names(kernel, literal=literal)
        self.points = point_values(kernel)
        self.by_row = _row_values(kernel)
        self.split = self.tiles.split
        self.single = not self.flat and self.tiles.largest("ROWS") == 1
        self.shape = "[BLOCK]" if self.flat or self.single else "[ROWS, BLOCK]"
        self.across = "" if self.single else "[None, :]"
        self.lines: list[str] = []
        self.depth = 1
        self.helpers: set[str] = set()
        self.scratch: dict[str, int] = {}
        self.meetings = 0
        self.at = ""  # inside a gather, the position that replaces the column
        self.suffix = ""
        self.wide = _needs_wide_index(kernel)
        row_tile = self.tiles.largest("BLOCK" if self.flat else "ROWS")
        self.row_mask = self.rows % row_tile != 0
        covered = self.tiles.largest("BLOCK")
        self.column_mask = not self.flat and self.columns % covered != 0
        if self.split and "PARTS" in self.tiles.choices:
            self.column_mask |= self.columns % (covered * self.tiles.largest("PARTS")) != 0

    # --- the function ----------------------------------------------------------------------------

    def function(self) -> TritonFunction:
        parameters = list(self.kernel.reads)
        parameters += [t for t in self.kernel.writes if t not in self.in_place]
        persist = self.schedule.persist and not self.split
        if persist:
            self._open("for tile in tl.range(tl.program_id(0), TILES, tl.num_programs(0)):")
        self._rows(persist)
        if self.tiles.whole or self.flat:
            self._whole()
        else:
            self._walks(plan_walks(self.kernel, keep=False))
        scratch = [f"parts_{dtype}" for dtype in self.scratch]
        sizes = ["BLOCK"] if self.flat or self.single else ["ROWS", "BLOCK"]
        sizes += ["PARTS", "WIDTH"] if self.split else []
        sizes += ["CHUNK"] if self.split and not self.tiles.whole else []
        sizes += ["STAGES"] if "STAGES" in self.tiles.choices else []
        sizes += ["TILES"] if persist else []
        signature = [_name(t) for t in parameters]
        signature += [*scratch, "arrived"] if self.split else []
        signature += [f"{size}: tl.constexpr" for size in sizes]
        head = f"@triton.jit\ndef {self.name}({', '.join(signature)}):\n{self._comment()}"
        return TritonFunction(
            self.name,
            head + "\n".join(self.lines) + "\n",
            tuple(parameters),
            self.kernel.writes,
            frozenset(self.helpers),
            self.tiles,
            self.rows,
            self.columns,
            persist,
            dict(self.scratch),
            self.meetings,
        )

    def _comment(self) -> str:
        extents = ["x".join(str(self.kernel.dims[d].extent) for d in dims)
                   for dims in (self.kernel.kept, self.kernel.reduced) if dims]  # fmt: skip
        words = f"rows {extents[0]}" + (f", columns {extents[1]}" if len(extents) > 1 else "")
        outputs = ", ".join(
            f"{t} in place of {self.in_place[t]}" if t in self.in_place else t
            for t in self.kernel.writes
        )
        return f"    # {', '.join(self.kernel.reads)} -> {outputs}   [{words}]\n"

    def _rows(self, persist: bool) -> None:
        wide = ".to(tl.int64)" if self.wide else ""
        if self.split:
            self._put("ticket = tl.atomic_add(arrived, 1)")
            self._put("part = ticket % PARTS")
            self._put(f"row = (ticket // PARTS){wide}")
        else:
            program = "tile" if persist else "tl.program_id(0)"
            program = f"{program}{wide}"
            size, shape = ("BLOCK", "") if self.flat else ("ROWS", "[:, None]")
            within = "" if self.single else f" * {size} + tl.arange(0, {size}){shape}"
            self._put(f"row = {program}{within}")
        if self.row_mask and not self.split:
            self._put(f"inside_row = row < {self.rows}")
        self._positions(self.kernel.kept, "row")

    def _columns(self, begin: str) -> None:
        wide = ".to(tl.int64)" if self.wide else ""
        begin = f"{begin} + " if begin else ""
        self._put(f"column = {begin}tl.arange(0, BLOCK){self.across}{wide}")
        if self.column_mask:
            self._put(f"inside_column = column < {self.columns}")
        self._positions(self.kernel.reduced, "column")

    def _positions(self, dims: Sequence[int], flat: str, suffix: str = "") -> None:
        """The index along each dimension that some address or index needs by itself."""
        if len(dims) < 2:
            return
        needed = {i.dim for i in self.kernel.body if isinstance(i, Index)}
        for i in self.kernel.body:
            if isinstance(i, Load | LoadIndexed | Store) and not self._merges(i.access, dims):
                needed |= {d for d in dims if i.access.strides[d]}
        for place, d in enumerate(dims):
            if d in needed:
                below = prod(self.kernel.dims[e].extent for e in dims[place + 1 :])
                text = f"{flat} // {below}" if below > 1 else flat
                text = f"({text}) % {self.kernel.dims[d].extent}" if place else text
                self._put(f"i{d}{suffix} = {text}")

    def _merges(self, access: Access, dims: Sequence[int]) -> bool:
        extents = [self.kernel.dims[d].extent for d in dims]
        strides = [access.strides[d] for d in dims]
        return all(strides[k] == strides[k + 1] * extents[k + 1] for k in range(len(dims) - 1))

    # --- one tile holds it all -------------------------------------------------------------------

    def _whole(self) -> None:
        if not self.flat:
            self._columns("part * BLOCK" if self.split else "")
        count = f"{self.columns}.0"
        inside = "inside_column" if self.column_mask else ""
        if self.split and self.column_mask:
            count = f"tl.minimum(BLOCK, {self.columns} - part * BLOCK).to(tl.float32)"
        elif self.split:
            count = "BLOCK * 1.0"
        for instruction in self.kernel.body:
            match instruction:
                case Reduce():
                    reduction = self._reduction(instruction)
                    value = self._tile_of(instruction.operand)
                    lines, found = reduction.whole(value, "column", count, inside)
                    for line in lines:
                        self._put(line)
                    if self.split:
                        found = self._shared(reduction, found, "BLOCK")
                    self._name_results(reduction, found)
                case Store():
                    self._store(instruction)
                case _:
                    self._statement(instruction)

    # --- passes over a row -----------------------------------------------------------------------

    def _walks(self, plan: Plan) -> None:
        last = len(plan.walks) - 1
        for number, walk in enumerate(plan.walks):
            for instruction in walk.rows_before:
                self._statement(instruction)
            what = [r.function.replace("_", " ") for r in walk.reduces]
            what += [f"write {s.access.tensor}" for s in walk.stores]
            self._put(f"# pass {number + 1} of {last + 1}: {', '.join(what)}")
            self._walk(walk, number == last)
        for instruction in plan.rows_after:
            self._statement(instruction)
        for store in plan.row_stores:
            self._store(store)

    def _walk(self, walk: Walk, last: bool) -> None:
        reductions = [self._reduction(r) for r in walk.reduces]
        states = {r: self._states(r) for r in reductions}
        for r in reductions:
            for state, tile in zip(states[r], r.empty(self.shape), strict=True):
                self._put(f"{state} = {tile}")
        counted = any(r.function == "moments" for r in reductions)
        if counted:
            self._put("taken = 0.0")
        stages = ", num_stages=STAGES" if "STAGES" in self.tiles.choices else ""
        if self.split:
            self._put(f"end = tl.minimum(part * CHUNK + CHUNK, {self.columns})")
            self._open(f"for start in tl.range(part * CHUNK, end, BLOCK{stages}):")
        else:
            self._open(f"for start in tl.range(0, {self.columns}, BLOCK{stages}):")
        self._columns("start")
        if counted:
            self._put("taken += 1.0")
        for instruction in walk.body:
            assert not isinstance(instruction, Reload), "nothing is kept between passes"
            self._statement(instruction, again=not last)
        inside = "inside_column" if self.column_mask else ""
        for r in reductions:
            value = self._tile_of(r.reduce.operand)
            for line in r.take(states[r], value, "column", "(1.0 / taken)", inside):
                self._put(line)
        for store in walk.stores:
            self._store(store)
        self._close()
        for r in reductions:
            lines, found = r.finish(states[r], self._lane_counts(), "")
            for line in lines:
                self._put(line)
            if self.split:
                found = self._shared(r, found, "CHUNK")
            self._name_results(r, found)

    def _states(self, r: Reduction) -> tuple[str, ...]:
        base = f"{self.names[r.reduce.results[0]]}_so_far"
        return tuple(base + ("", "_second")[k] for k in range(len(r.types)))

    def _lane_counts(self) -> str:
        """How many values each lane of the passes took, as numbers."""
        length = f"({self.columns} - part * CHUNK)" if self.split else str(self.columns)
        length = f"tl.minimum(CHUNK, {length})" if self.split else length
        lane = f"tl.arange(0, BLOCK){self.across}"
        return f"(({length} - {lane} + BLOCK - 1) // BLOCK).to(tl.float32)"

    # --- several programs a row ------------------------------------------------------------------

    def _shared(self, r: Reduction, found: Sequence[str], width: str) -> list[str]:
        """Hands this program's part over, waits for the others, and joins all parts."""
        meeting = self.meetings
        self.meetings += 1
        where: list[str] = []
        self._put("# hand over, and wait for the other programs of this row")
        for value, dtype in zip(found, r.types, strict=True):
            slot = self.scratch.get(dtype, 0)
            self.scratch[dtype] = slot + 1
            base = f"parts_{dtype} + ({slot * self.rows} + row) * PARTS"
            stored = f"({value}).to({TYPES[dtype]})"
            self._put(f"tl.store({base} + part, {stored})")
            where.append(base)
        self._put("tl.debug_barrier()")
        counter = f"arrived + {1 + meeting * self.rows} + row"
        self._put(f'tl.atomic_add({counter}, 1, sem="acq_rel")')
        self._open(f'while tl.atomic_add({counter}, 0, sem="acquire") < PARTS:')
        self._put("pass")
        self._close()
        self._put("tl.debug_barrier()")
        self._put("part_of_row = tl.arange(0, WIDTH)")
        states = []
        for k, (base, start) in enumerate(zip(where, r.starts, strict=True)):
            name = f"{self.names[r.reduce.results[0]]}_parts{'_second' if k else ''}"
            self._put(
                f"{name} = tl.load({base} + part_of_row, mask=part_of_row < PARTS, "
                f'other={start}, cache_modifier=".cg")'
            )
            states.append(name)
        counts = f"tl.minimum({width}, {self.columns} - part_of_row * {width})"
        counts = f"tl.maximum({counts}, 0).to(tl.float32)"
        lines, joined = r.finish(tuple(states), counts, "")
        for line in lines:
            self._put(line)
        return joined

    # --- statements ------------------------------------------------------------------------------

    def _statement(self, instruction: Instruction, *, again: bool = False) -> None:
        match instruction:
            case Constant():
                return
            case At():
                self._gather(instruction)
                return
            case Load():
                access = instruction.access
                text = self._load(access, "", again=again)
                text = self._widened(text, instruction.dtype)
                result = instruction.result
            case LoadIndexed():
                text, result = self._load_indexed(instruction), instruction.result
            case Index():
                text, result = self._index(instruction.dim), instruction.result
            case Point():
                text, result = self._point(instruction), instruction.result
            case _:
                raise AssertionError(type(instruction))
        self._put(f"{self.names[result]}{self.suffix} = {text}")

    def _point(self, instruction: Point) -> str:
        dtype = instruction.dtype
        texts = []
        for place, name in enumerate(instruction.operands):
            text = self._use(name)
            condition = instruction.function == "where" and place == 0
            given = self.names.types[name]
            if name in self.names.constants:
                if instruction.function in _NEEDS_TENSORS:
                    text = f"tl.full((), {text}, {TYPES[given]})"
            elif given != dtype and not condition and instruction.function != "cast":
                text = f"{text}.to({TYPES[dtype]})"
            texts.append(text)
        text = point(instruction.function, texts, dtype)
        for helper in HELPERS:
            if f"{helper}(" in text:
                self.helpers.add(helper)
        if "libdevice." in text or self.helpers & {"remainder_like_divisor", "divide_down"}:
            self.helpers.add("libdevice")
        literals = any(n in self.names.constants for n in instruction.operands)
        if instruction.function in ("where", "maximum", "minimum") and literals:
            text = f"{text}.to({TYPES[dtype]})" if dtype != "float32" else text
        return text

    def _load(self, access: Access, extra: str, *, again: bool = False, condition: str = "") -> str:
        address = self._address(access)
        masks = [m for m in (self._mask(access), condition) if m]
        mask = f", mask={' & '.join(masks)}" if masks else ""
        tensor = self.in_place.get(access.tensor, access.tensor)
        policy = ""
        if self.schedule.stream and self._large(access):
            policy = (
                ', eviction_policy="evict_last"' if again else ', eviction_policy="evict_first"'
            )
        other = ", other=0" if condition else ""
        place = " + ".join(part for part in (_name(tensor), address, extra) if part)
        return f"tl.load({place}{mask}{other}{policy})"

    def _load_indexed(self, instruction: LoadIndexed) -> str:
        index, extent = self._use(instruction.index), instruction.extent
        wrapped = f"tl.where({index} < 0, {index} + {extent}, {index})"
        name = f"{self.names[instruction.result]}{self.suffix}_index"
        self._put(f"{name} = {wrapped}")
        inside = f"(({name} >= 0) & ({name} < {extent}))"
        extra = name if instruction.stride == 1 else f"{name} * {instruction.stride}"
        masks = []
        varies_row = instruction.index in self.by_row or self._varies(instruction.access, "row")
        varies_column = instruction.index in self.points or self._varies(
            instruction.access, "column"
        )
        if self.row_mask and not self.split and varies_row:
            masks.append("inside_row")
        if self.column_mask and varies_column and not self.at:
            masks.append("inside_column")
        condition = " & ".join([inside, *masks])
        tensor = _name(instruction.access.tensor)
        address = self._address(instruction.access)
        place = " + ".join(part for part in (tensor, address, extra) if part)
        text = f"tl.load({place}, mask={condition}, other=0)"
        return self._widened(text, instruction.dtype)

    def _gather(self, instruction: At) -> None:
        """The slice of instructions that an element depends on, at the gathered position."""
        name = self.names[instruction.result]
        position = self._use(instruction.position)
        where = f"{name}_position"
        self._put(f"{where} = tl.where({position} < 0, {position} + {self.columns}, {position})")
        self._put(f"{name}_inside = ({where} >= 0) & ({where} < {self.columns})")
        self._put(f"{where} = tl.where({name}_inside, {where}, 0)")
        self.at, self.suffix = where, "_taken"
        self._positions(self.kernel.reduced, where, "_taken")
        for needed in point_slice(self.kernel, instruction.operand):
            self._statement(needed)
        value = self._use(instruction.operand)
        self.at = self.suffix = ""
        self._put(f"{name} = tl.where({name}_inside, {value}, 0)")

    def _store(self, store: Store) -> None:
        address = self._address(store.access)
        along_row = self._varies(store.access, "column")
        if self.flat and not self._varies(store.access, "row"):
            address = f"{address} + row" if address else "row"
        masks = [self._mask(store.access, every_row=True)]
        if self.split and not along_row:
            masks.append("(part == 0)")
        kept = " & ".join(m for m in masks if m)
        mask = f", mask={kept}" if kept else ""
        aside = self.schedule.stream and self._large(store.access)
        hint = ', cache_modifier=".cs"' if aside else ""
        tensor = _name(self.in_place.get(store.access.tensor, store.access.tensor))
        place = f"{tensor} + {address}" if address else tensor
        self._put(f"tl.store({place}, {self._stored(store, along_row)}{mask}{hint})")

    def _stored(self, store: Store, along_row: bool) -> str:
        value, given = self._use(store.operand), self.names.types[store.operand]
        if store.operand in self.names.constants:
            of_row = "()" if self.single else "[ROWS, 1]"
            shape = self.shape if along_row or self.flat else of_row
            value = f"tl.full({shape}, {value}, {TYPES[given]})"
        if store.dtype == given:
            return value
        return f"{value} != 0" if store.dtype == "bool" else f"{value}.to({TYPES[store.dtype]})"

    def _name_results(self, r: Reduction, found: Sequence[str]) -> None:
        chosen = found[r.result_part :] if r.result_part else found
        for name, text in zip(r.reduce.results, chosen, strict=True):
            self._put(f"{self.names[name]} = {text}")

    def _reduction(self, reduce: Reduce) -> Reduction:
        if reduce.function == "prod":
            self.helpers.add("multiply")
        quiet = _is_softmax_peak(self.kernel, reduce)
        return Reduction(reduce, single=self.single, quiet_peak=quiet)

    def _tile_of(self, name: str) -> str:
        """A value as a full tile, since a reduction counts every column."""
        dtype = self.names.types[name]
        text = self._use(name)
        if name in self.names.constants:
            return f"tl.full({self.shape}, {text}, {TYPES[dtype]})"
        if name in self.points and (self.single or name in self.by_row):
            return text
        return f"tl.broadcast_to({text}, {self.shape})"

    def _use(self, name: str) -> str:
        constant = self.names.constants.get(name)
        if constant is not None:
            return f"({constant})" if constant.startswith("-") else constant
        taken = self.suffix and name in self.points
        return self.names[name] + (self.suffix if taken else "")

    # --- addresses -------------------------------------------------------------------------------

    def _address(self, access: Access) -> str:
        terms = [str(access.offset)] if access.offset else []
        for dims, flat in ((self.kernel.kept, "row"), (self.kernel.reduced, "column")):
            taken = flat == "column" and bool(self.at)
            if self._merges(access, dims):
                index = self.at if taken else flat
                terms += _term(index, access.strides[dims[-1]]) if dims else []
                continue
            tail = "_taken" if taken else ""
            for d in dims:
                terms += _term(f"i{d}{tail}", access.strides[d])
        return " + ".join(terms)

    def _index(self, d: int) -> str:
        dims, flat = (
            (self.kernel.reduced, "column")
            if d in self.kernel.reduced
            else (self.kernel.kept, "row")
        )
        tail = "_taken" if flat == "column" and self.at else ""
        if flat == "column" and self.at:
            flat = self.at
        name = flat if len(dims) == 1 else f"i{d}{tail}"
        return f"{name}.to(tl.int64)"

    def _varies(self, access: Access, axis: str) -> bool:
        dims = self.kernel.kept if axis == "row" else self.kernel.reduced
        return any(access.strides[d] for d in dims)

    def _mask(self, access: Access, *, every_row: bool = False) -> str:
        masks = []
        if self.row_mask and not self.split and (every_row or self._varies(access, "row")):
            masks.append("inside_row")
        if self.column_mask and self._varies(access, "column") and not self.at:
            masks.append("inside_column")
        return " & ".join(masks)

    def _large(self, access: Access) -> bool:
        reach = prod(
            dim.extent for s, dim in zip(access.strides, self.kernel.dims, strict=True) if s
        )
        return reach == prod(dim.extent for dim in self.kernel.dims)

    def _widened(self, text: str, dtype: str) -> str:
        if dtype in ("bfloat16", "float16"):
            return f"{text}.to(tl.float32)"
        return f"({text} != 0)" if dtype == "bool" else text

    # --- text ------------------------------------------------------------------------------------

    def _put(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def _open(self, line: str) -> None:
        self._put(line)
        self.depth += 1

    def _close(self) -> None:
        self.depth -= 1


def _with_columns(kernel: Kernel) -> Kernel:
    """The kernel with a reduced dimension of one element, if it reduces over nothing."""
    if kernel.reduced or not any(isinstance(i, Reduce) for i in kernel.body):
        return kernel
    body = tuple(
        replace(i, access=replace(i.access, strides=(*i.access.strides, 0)))
        if isinstance(i, Load | LoadIndexed | Store)
        else i
        for i in kernel.body
    )
    return replace(kernel, dims=(*kernel.dims, Dim(1, reduced=True)), body=body)


def _term(index: str, stride: int) -> list[str]:
    if not stride:
        return []
    return [index if stride == 1 else f"{index} * {stride}"]


def _name(tensor: str) -> str:
    text = identifier(tensor)
    return text + "_" if text in _RESERVED else text


def _row_values(kernel: Kernel) -> frozenset[str]:
    """Values that differ along kept dimensions."""
    found: set[str] = set()
    for i in kernel.body:
        varies = bool(found.intersection(uses(i)))
        if isinstance(i, Load | LoadIndexed):
            varies |= any(i.access.strides[d] for d in kernel.kept)
        elif isinstance(i, Index):
            varies |= i.dim in kernel.kept
        elif isinstance(i, Reduce | At):
            varies = True
        if varies:
            found.update(results(i))
    return frozenset(found)


def _needs_wide_index(kernel: Kernel) -> bool:
    """Whether some address may pass 2**31."""
    for i in kernel.body:
        if isinstance(i, Load | LoadIndexed | Store):
            reach = i.access.offset + sum(
                abs(s) * dim.extent for s, dim in zip(i.access.strides, kernel.dims, strict=True)
            )
            if isinstance(i, LoadIndexed):
                reach += abs(i.stride) * i.extent
            if reach >= 1 << 31:
                return True
    return prod(dim.extent for dim in kernel.dims) >= 1 << 31


def _is_softmax_peak(kernel: Kernel, reduce: Reduce) -> bool:
    """Whether a maximum only shifts the values it is of, before they are summed up as powers.

    A NaN among the values then comes through the sum, and the maximum need not tell of it.
    """
    if reduce.function != "max":
        return False
    peak = reduce.results[0]
    readers = [i for i in kernel.body if peak in uses(i)]
    shifts = {
        i.result
        for i in readers
        if isinstance(i, Point) and i.function == "sub" and i.operands == (reduce.operand, peak)
    }
    if len(shifts) != len(readers):
        return False
    powers = {
        i.result for i in kernel.body
        if isinstance(i, Point) and i.function == "exp" and i.operands[0] in shifts
    }  # fmt: skip
    return any(
        isinstance(i, Reduce) and i.function == "sum" and i.operand in powers for i in kernel.body
    )
