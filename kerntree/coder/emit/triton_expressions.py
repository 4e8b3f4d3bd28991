"""Values of a kernel as Triton expressions."""

from dataclasses import dataclass, replace
from typing import Self

from kerntree.coder.emit.lines import Lines
from kerntree.coder.emit.names import Names
from kerntree.coder.emit.triton_addresses import TileAddresses, tensor_name
from kerntree.coder.emit.triton_nest import TileNest
from kerntree.coder.emit.triton_text import HELPERS, LANGUAGE, LIBDEVICE, TYPES, literal, point
from kerntree.coder.kernel import (
    At,
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

_NEEDS_TENSORS = LANGUAGE | LIBDEVICE.keys() | {
    "cast", "abs", "sigmoid", "remainder", "floor_div", "maximum", "minimum",
}  # fmt: skip
_NEED_LIBDEVICE = frozenset({"remainder_like_divisor", "divide_down"})


@dataclass(frozen=True)
class TileExpressions:
    """Expressions over a tile's columns, or at a gathered position.

    `points` are the values that differ along reduced dimensions, `by_row` those that differ along
    kept ones.
    """

    nest: TileNest
    names: Names
    addresses: TileAddresses
    lines: Lines
    points: frozenset[str]
    by_row: frozenset[str]

    def at(self, position: str) -> Self:
        """The same expressions at one position of the row."""
        return replace(self, addresses=self.addresses.at(position))

    def name(self, result: str) -> str:
        """The name of what is computed here."""
        return self.names[result] + self.addresses.suffix

    def value(self, name: str) -> str:
        """A value that has been computed before, or a constant."""
        constant = self.names.constants.get(name)
        if constant is not None:
            return f"({constant})" if constant.startswith("-") else constant
        return self.name(name) if name in self.points else self.names[name]

    def full_tile(self, name: str) -> str:
        """A value as a full tile, since a reduction counts every column."""
        text = self.value(name)
        if name in self.names.constants:
            return f"tl.full({self.nest.shape}, {text}, {TYPES[self.names.types[name]]})"
        if name in self.points and (self.nest.single or name in self.by_row):
            return text
        return f"tl.broadcast_to({text}, {self.nest.shape})"

    def computed(self, instruction: Instruction, *, again: bool) -> str:
        """What an instruction computes; `again`: what it loads will be loaded once more."""
        match instruction:
            case Load():
                return _widened(self._loaded(instruction, again=again), instruction.dtype)
            case Index():
                return f"{self.addresses.index(instruction.dim)}.to(tl.int64)"
            case Point():
                return self._point(instruction)
        raise AssertionError(type(instruction))

    def wrapped_index(self, load: LoadIndexed) -> str:
        """The index of an indexed load, where a negative one counts from the end."""
        index = self.value(load.index)
        return f"tl.where({index} < 0, {index} + {load.extent}, {index})"

    def indexed(self, load: LoadIndexed, index: str) -> str:
        """What lies at a wrapped index; zero outside."""
        by_row = load.index in self.by_row or self.nest.by_row(load.access)
        along_row = load.index in self.points or self.nest.along_row(load.access)
        inside = self.addresses.inside(by_row=by_row, along_row=along_row)
        mask = " & ".join([f"(({index} >= 0) & ({index} < {load.extent}))", *inside])
        step = index if load.stride == 1 else f"{index} * {load.stride}"
        place = _sum(tensor_name(load.access.tensor), self.addresses.offset(load.access), step)
        return _widened(f"tl.load({place}, mask={mask}, other=0)", load.dtype)

    def stored(self, store: Store) -> str:
        """The value of a store, in the type of its tensor."""
        value, given = self.value(store.operand), self.names.types[store.operand]
        if store.operand in self.names.constants:
            of_row = "()" if self.nest.single else "[ROWS, 1]"
            full = self.nest.flat or self.nest.along_row(store.access)
            value = f"tl.full({self.nest.shape if full else of_row}, {value}, {TYPES[given]})"
        if store.dtype == given:
            return value
        return f"{value} != 0" if store.dtype == "bool" else f"{value}.to({TYPES[store.dtype]})"

    def _loaded(self, load: Load, *, again: bool) -> str:
        access = load.access
        inside = self.addresses.inside(
            by_row=self.nest.by_row(access), along_row=self.nest.along_row(access)
        )
        mask = f", mask={' & '.join(inside)}" if inside else ""
        policy = ""
        if self.nest.schedule.stream and self.nest.large(access):
            policy = f', eviction_policy="evict_{"last" if again else "first"}"'
        place = _sum(self.addresses.tensor(access), self.addresses.offset(access))
        return f"tl.load({place}{mask}{policy})"

    def _point(self, instruction: Point) -> str:
        function, dtype = instruction.function, instruction.dtype
        operands = [self._operand(instruction, place) for place in range(len(instruction.operands))]
        text = point(function, operands, dtype)
        self._note(text)
        literals = any(name in self.names.constants for name in instruction.operands)
        if function == "where" and literals and dtype != "float32":
            return f"{text}.to({TYPES[dtype]})"
        return text

    def _operand(self, instruction: Point, place: int) -> str:
        """An operand in the type of the result, where Triton would not see to it."""
        name, function = instruction.operands[place], instruction.function
        text, given = self.value(name), self.names.types[name]
        if name in self.names.constants:
            needs = function in _NEEDS_TENSORS
            return f"tl.full((), {text}, {TYPES[given]})" if needs else text
        condition = function == "where" and place == 0
        if given == instruction.dtype or condition or function == "cast":
            return text
        return f"{text}.to({TYPES[instruction.dtype]})"

    def _note(self, text: str) -> None:
        called = {helper for helper in HELPERS if f"{helper}(" in text}
        if "libdevice." in text or called & _NEED_LIBDEVICE:
            called.add("libdevice")
        self.lines.helpers.update(called)


def tile_expressions(nest: TileNest, addresses: TileAddresses, lines: Lines) -> TileExpressions:
    """The expressions of a kernel, which note the helpers they call in `lines`."""
    kernel = nest.kernel
    names = Names(kernel, literal=literal)
    return TileExpressions(nest, names, addresses, lines, point_values(kernel), _by_row(kernel))


def _by_row(kernel: Kernel) -> frozenset[str]:
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


def _sum(*terms: str) -> str:
    return " + ".join(term for term in terms if term)


def _widened(text: str, dtype: str) -> str:
    if dtype in ("bfloat16", "float16"):
        return f"{text}.to(tl.float32)"
    return f"({text} != 0)" if dtype == "bool" else text
