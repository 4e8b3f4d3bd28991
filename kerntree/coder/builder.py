"""Builds one kernel's instructions over symbolic axes; the operators' meanings stand elsewhere."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kerntree.coder.domain import Axes, Dims
from kerntree.coder.errors import CannotLowerError
from kerntree.coder.kernel import PointFunction, ReduceFunction
from kerntree.coder.regions import Region
from kerntree.coder.types import Scalar, compute_type, is_float, wrapped
from kerntree.plans.graph import TensorSpec


@dataclass(frozen=True)
class Register:
    """A value of the kernel: its SSA name, its dimensions as axes, and its logical spec."""

    name: str
    dims: Dims
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class InMemory:
    """A tensor outside the kernel, seen through views: nothing is read until it is used."""

    tensor: str
    dims: Dims
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[tuple[int, int], ...]  # (axis, elements)
    offset: int = 0


Value = Register | InMemory


@dataclass(frozen=True)
class Address:
    """An address over symbolic axes; becomes an `Access` when the axes are known."""

    tensor: str
    strides: tuple[tuple[int, int], ...]
    offset: int


@dataclass(frozen=True)
class Draft:
    """An instruction before its addresses and dimensions are resolved."""

    kind: str
    results: tuple[str, ...]
    function: str = ""
    operands: tuple[str, ...] = ()
    dtype: str = ""
    address: Address | None = None
    number: Scalar = 0
    axes: tuple[int, ...] = ()
    stride: int = 0
    extent: int = 0


class Builder:
    """Collects instructions; every method returns the value it made."""

    def __init__(self) -> None:
        self.axes = Axes()
        self.drafts: list[Draft] = []
        self._count = 0

    # --- values -------------------------------------------------------------------------------

    def external(self, tensor: str, spec: TensorSpec) -> InMemory:
        """A tensor in memory, taken as contiguous."""
        dims = tuple(self.axes.fresh(extent) for extent in spec.shape)
        strides, step = [], 1
        for dim, extent in zip(reversed(dims), reversed(spec.shape), strict=True):
            strides += [(axis, step) for axis in dim]
            step *= extent
        return InMemory(tensor, dims, spec.shape, spec.dtype, tuple(strides))

    def read(self, value: Value) -> Register:
        """The value in a register. Each reading has axes of its own, so that x + x.T is right."""
        if isinstance(value, Register):
            return value
        renamed: dict[int, int] = {}
        strides = []
        for axis, stride in value.strides:
            for leaf, step in self.axes.steps(axis, stride):
                if leaf not in renamed:
                    (renamed[leaf],) = self.axes.fresh(self.axes.extent(leaf))
                strides.append((renamed[leaf], step))
        dims = tuple(
            tuple(
                renamed.setdefault(leaf, self.axes.fresh(self.axes.extent(leaf))[0])
                for leaf in self.axes.leaves(dim)
            )
            for dim in value.dims
        )
        address = Address(value.tensor, tuple(strides), value.offset)
        name = self._emit("load", dtype=value.dtype, address=address)
        return Register(name, dims, value.shape, value.dtype)

    def constant(self, number: Scalar, dtype: str) -> Register:
        """A plain number, computed in `dtype`'s compute type."""
        compute = compute_type(dtype)
        if is_float(compute):
            number = float(number)
        elif compute == "bool":
            number = bool(number)
        else:
            number = wrapped(int(number), compute)
        return Register(self._emit("constant", number=number, dtype=compute), (), (), dtype)

    def cast(self, value: Value, dtype: str) -> Register:
        """The value as another type; no instruction where the compute type is the same."""
        register = self.read(value)
        if compute_type(register.dtype) == compute_type(dtype):
            return replace(register, dtype=dtype)
        name = self._emit(
            "point", function="cast", operands=(register.name,), dtype=compute_type(dtype)
        )
        return replace(register, name=name, dtype=dtype)

    def point(
        self, function: PointFunction, *operands: Value | Scalar, dtype: str, result: str = ""
    ) -> Register:
        """A pointwise function computed in `dtype`, broadcasting; `result` is its type if other."""
        registers: list[Register] = []
        for position, operand in enumerate(operands):
            is_condition = function == "where" and position == 0
            wanted = "bool" if is_condition else dtype
            if isinstance(operand, Register | InMemory):
                registers.append(self.cast(operand, wanted))
            else:
                registers.append(self.constant(operand, wanted))
        dims, shape = self._broadcast(registers)
        name = self._emit(
            "point",
            function=function,
            operands=tuple(register.name for register in registers),
            dtype=compute_type(dtype),
        )
        return Register(name, dims, shape, result or dtype)

    def reduce(
        self,
        function: ReduceFunction,
        value: Value,
        dims: Sequence[int],
        *,
        keepdim: bool = False,
        dtype: str = "",
    ) -> Register:
        """Reduces over the given dimensions (all if none are given)."""
        register = self.read(value)
        rank = len(register.shape)
        which = {d % rank for d in dims} if dims and rank else set(range(rank))
        axes = tuple(axis for d in sorted(which) for axis in register.dims[d])
        kept = [d for d in range(rank) if keepdim or d not in which]
        accumulator = compute_type(dtype or register.dtype)
        if function not in ("argmax", "argmin"):
            register = self.cast(register, accumulator)
        name = self._emit(
            "reduce", function=function, operands=(register.name,), dtype=accumulator, axes=axes
        )
        return Register(
            name,
            tuple(() if d in which else register.dims[d] for d in kept),
            tuple(1 if d in which else register.shape[d] for d in kept),
            "int64" if function in ("argmax", "argmin") else dtype or register.dtype,
        )

    def index(self, shape: tuple[int, ...], dim: int) -> Register:
        """The position along one dimension of a tensor of that shape, as int64."""
        dims = tuple(self.axes.fresh(extent) for extent in shape)
        if not dims[dim]:
            return self.constant(0, "int64")
        return Register(self._emit("index", axes=dims[dim], dtype="int64"), dims, shape, "int64")

    # --- views --------------------------------------------------------------------------------

    def viewed(self, value: Value, shape: tuple[int, ...]) -> Value:
        """The same elements in another shape; broadcast dimensions get axes where they merge."""
        if value.shape == shape:
            return value
        dims = tuple(
            dim or self.axes.fresh(extent)
            for dim, extent in zip(value.dims, value.shape, strict=True)
        )
        return replace(value, dims=self.axes.group(dims, shape), shape=shape)

    def permuted(self, value: Value, order: Sequence[int]) -> Value:
        """Dimensions in another order."""
        return replace(
            value,
            dims=tuple(value.dims[d] for d in order),
            shape=tuple(value.shape[d] for d in order),
        )

    def expanded(self, value: Value, shape: tuple[int, ...]) -> Value:
        """Dimensions of extent 1 repeated, and new leading ones."""
        lead = len(shape) - len(value.shape)
        dims = [self.axes.fresh(extent) for extent in shape[:lead]]
        for dim, old, new in zip(value.dims, value.shape, shape[lead:], strict=True):
            dims.append(dim if old == new else self.axes.fresh(new))
        return replace(value, dims=tuple(dims), shape=shape)

    def sliced(self, value: InMemory, dim: int, start: int, step: int, count: int) -> InMemory:
        """Every `step`-th position of one dimension, from `start`."""
        leaves = self.axes.leaves(value.dims[dim])
        if len(leaves) > 1:
            raise CannotLowerError("a slice of a regrouped dimension")
        steps = [s for axis, width in value.strides for s in self.axes.steps(axis, width)]
        stride = sum(width for axis, width in steps if axis in leaves)
        axes = self.axes.fresh(count)
        return replace(
            value,
            dims=tuple(axes if d == dim else old for d, old in enumerate(value.dims)),
            shape=tuple(count if d == dim else old for d, old in enumerate(value.shape)),
            strides=(
                *(pair for pair in steps if pair[0] not in leaves),
                *((axis, stride * step) for axis in axes),
            ),
            offset=value.offset + start * stride,
        )

    def reshaped_constant(self, value: Register, shape: tuple[int, ...]) -> Register:
        """A number as a tensor of that shape: it differs along no axis."""
        return replace(value, dims=((),) * len(shape), shape=shape)

    # --- memory -------------------------------------------------------------------------------

    def at(self, value: Register, dim: int, position: Value) -> Register:
        """One element along a reduced dimension, at a position that is itself a value."""
        where = self.cast(position, "int64")
        dims, shape = self._broadcast(
            [replace(value, dims=_without(value.dims, dim), shape=_ones(value.shape, dim)), where]
        )
        name = self._emit(
            "at",
            operands=(value.name, where.name),
            dtype=compute_type(value.dtype),
            axes=value.dims[dim],
        )
        return Register(name, dims, shape, value.dtype)

    def load_indexed(self, table: InMemory, dim: int, index: Register, dims: Dims) -> str:
        """Reads `table` with its dimension `dim` replaced by an index value; returns the name.

        `dims` are the axes of the table's other dimensions, in order, as the result has them.
        """
        if len(table.dims[dim]) > 1:
            raise CannotLowerError("a gather along a regrouped dimension")
        steps = dict(table.strides)
        stride = steps[table.dims[dim][0]] if table.dims[dim] else 0
        others = [d for d in range(len(table.dims)) if d != dim]
        strides: list[tuple[int, int]] = []
        for d, target in zip(others, dims, strict=True):
            if not table.dims[d]:
                continue
            if len(table.dims[d]) != 1 or len(target) > 1:
                raise CannotLowerError("a gather through a regrouped dimension")
            if target:
                strides.append((target[0], steps[table.dims[d][0]]))
        return self._emit(
            "load_indexed",
            operands=(index.name,),
            dtype=table.dtype,
            address=Address(table.tensor, tuple(strides), table.offset),
            stride=stride,
            extent=table.shape[dim],
        )

    def store(
        self, tensor: str, pieces: Sequence[tuple[Register, Region]], spec: TensorSpec
    ) -> None:
        """Writes pieces of one shape to their regions of a fresh contiguous tensor.

        All are written at the same points of the domain. Raises `CannotLowerError` if they do not
        differ along the same dimensions.
        """
        laid_out = [
            tuple(
                dim or self.axes.fresh(extent)
                for dim, extent in zip(register.dims, register.shape, strict=True)
            )
            for register, _ in pieces
        ]
        for dims in laid_out[1:]:
            for first, dim in zip(laid_out[0], dims, strict=True):
                self.axes.unify(first, dim)
        for (register, region), dims in zip(pieces, laid_out, strict=True):
            address = self._address(tensor, dims, region, spec)
            self.drafts.append(
                Draft("store", (), operands=(register.name,), dtype=spec.dtype, address=address)
            )

    def _address(self, tensor: str, dims: Dims, region: Region, spec: TensorSpec) -> Address:
        strides: list[tuple[int, int]] = []
        step, offset = 1, 0
        for dim, extent, run in zip(
            reversed(dims), reversed(spec.shape), reversed(region), strict=True
        ):
            offset += run.start * step
            inner = run.step * step
            for axis in reversed(self.axes.leaves(dim)):
                strides.append((axis, inner))
                inner *= self.axes.extent(axis)
            step *= extent
        return Address(tensor, tuple(strides), offset)

    # --- inside -------------------------------------------------------------------------------

    def _emit(self, kind: str, **fields: object) -> str:
        name = f"v{self._count}"
        self._count += 1
        self.drafts.append(Draft(kind, (name,), **fields))  # type: ignore[arg-type]
        return name

    def _broadcast(self, registers: Sequence[Register]) -> tuple[Dims, tuple[int, ...]]:
        rank = max((len(register.shape) for register in registers), default=0)
        dims: list[tuple[int, ...]] = [()] * rank
        shape = [1] * rank
        for register in registers:
            lead = rank - len(register.shape)
            for d, (dim, extent) in enumerate(
                zip(register.dims, register.shape, strict=True), start=lead
            ):
                if extent == 1:
                    continue
                if shape[d] not in (1, extent):
                    raise CannotLowerError("shapes do not broadcast")
                shape[d] = extent
                if dims[d]:
                    self.axes.unify(dims[d], dim)
                else:
                    dims[d] = dim
        return tuple(dims), tuple(shape)


def _without(dims: Dims, dim: int) -> Dims:
    return tuple(() if d == dim else axes for d, axes in enumerate(dims))


def _ones(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    return tuple(1 if d == dim else extent for d, extent in enumerate(shape))


def elements(shape: Sequence[int]) -> int:
    """Number of elements of a shape."""
    return math.prod(shape)
