"""A kernel and a schedule as one C++ function.

Both loop orders share one shape: segments that compute row values, between walks over the reduced
dimensions that compute point values, take them into accumulators, or store them. Work is done in
blocks of LANES neighbouring elements, in the manner of Triton; a block is an `omp simd` loop.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kerntree.coder.emit.cpp_text import STORED
from kerntree.coder.emit.kept_loops import write_kept_loops
from kerntree.coder.emit.lines import Lines
from kerntree.coder.emit.names import identifier
from kerntree.coder.emit.nest import Nest
from kerntree.coder.emit.row_program import row_program
from kerntree.coder.kernel import Kernel, Load, LoadIndexed, Store
from kerntree.coder.program import Schedule
from kerntree.plans.graph import ITEM_BYTES

_HUGE = 4 << 20  # bytes: below, an allocator reuses pages and there are no faults to save


@dataclass(frozen=True)
class Function:
    """C++ text of one kernel, its parameters in order, and the helpers and functions it uses.

    `sized`: the outermost extent is one more argument.
    """

    name: str
    text: str
    parameters: tuple[str, ...]
    writes: tuple[str, ...]
    helpers: frozenset[str]
    math: frozenset[str]
    sized: bool = False


def emit_function(
    kernel: Kernel, schedule: Schedule, *, name: str, in_place: Mapping[str, str] | None = None
) -> Function:
    """The C++ function of a kernel; `in_place` maps written values to the tensors they replace."""
    in_place = dict(in_place or {})
    nest, lines = Nest(kernel, schedule), Lines()
    if schedule.huge_pages:
        _expect_huge_pages(kernel, lines, in_place)
    write_kept_loops(nest, lines, write_rows=row_program(nest, lines, in_place=in_place).write)
    fresh = (t for t in kernel.writes if t not in in_place)
    parameters = tuple(dict.fromkeys((*kernel.reads, *in_place.values(), *fresh)))
    sized = kernel.dims[0].at_run_time
    sizes = ["int64_t n0"] * sized
    signature = ", ".join(
        [*(_parameter(kernel, t, in_place) for t in parameters), *sizes, "int threads"]
    )
    used = "" if schedule.parallel else "  (void)threads;\n"
    head = f'{_comment(kernel, in_place)}extern "C" void {name}({signature}) {{\n{used}'
    return Function(
        name,
        f"{head}{lines.text}\n}}\n",
        parameters,
        kernel.writes,
        frozenset(lines.helpers),
        frozenset(lines.math),
        sized,
    )


def _comment(kernel: Kernel, in_place: Mapping[str, str]) -> str:
    extents = [
        f"i{d}: {'n0' if dim.at_run_time else dim.extent}{' reduced' if dim.reduced else ''}"
        for d, dim in enumerate(kernel.dims)
    ]
    outputs = ", ".join(
        f"{t} in place of {in_place[t]}" if t in in_place else t for t in kernel.writes
    )
    return f"// {', '.join(kernel.reads)} -> {outputs}   [{'; '.join(extents)}]\n"


def _parameter(kernel: Kernel, tensor: str, in_place: Mapping[str, str]) -> str:
    written = tensor in kernel.writes or tensor in in_place.values()
    constant = "" if written else "const "
    return (
        f"{constant}{STORED[_dtype(kernel, tensor, in_place)]}* __restrict__ {identifier(tensor)}"
    )


def _dtype(kernel: Kernel, tensor: str, in_place: Mapping[str, str]) -> str:
    for i in kernel.body:
        if isinstance(i, Load | LoadIndexed | Store) and tensor in (
            i.access.tensor,
            in_place.get(i.access.tensor),
        ):
            return i.dtype
    raise KeyError(tensor)


def _expect_huge_pages(kernel: Kernel, lines: Lines, in_place: Mapping[str, str]) -> None:
    """Asks for huge pages under each large output that is not an input."""
    sizes: dict[tuple[str, str], int] = {}
    for i in kernel.body:
        if isinstance(i, Store) and i.access.tensor not in in_place:
            size = ITEM_BYTES[i.dtype]
            at_run_time = ""
            for d, (stride, dim) in enumerate(zip(i.access.strides, kernel.dims, strict=True)):
                if stride and dim.at_run_time:
                    at_run_time = f"n{d} * "
                elif stride:
                    size *= dim.extent
            key = (identifier(i.access.tensor), at_run_time)
            sizes[key] = sizes.get(key, 0) + size
    for (tensor, at_run_time), size in sizes.items():
        if at_run_time or size >= _HUGE:
            lines.helpers.add("expect_huge_pages")
            lines.put(f"expect_huge_pages({tensor}, {at_run_time}{size});")
