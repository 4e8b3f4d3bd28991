"""Kernel to kernel: tidying, stages and levels, one-pass reductions, cost figures."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

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
from kerntree.plans.graph import ITEM_BYTES


def results(instruction: Instruction) -> tuple[str, ...]:
    """The names an instruction defines."""
    if isinstance(instruction, Store):
        return ()
    return instruction.results if isinstance(instruction, Reduce) else (instruction.result,)


def uses(instruction: Instruction) -> tuple[str, ...]:
    """The names an instruction reads."""
    match instruction:
        case Point():
            return instruction.operands
        case Reduce() | Store():
            return (instruction.operand,)
        case At():
            return (instruction.operand, instruction.position)
        case LoadIndexed():
            return (instruction.index,)
        case _:
            return ()


def renamed(instruction: Instruction, name: Callable[[str], str]) -> Instruction:
    """The instruction with other operand names."""
    match instruction:
        case Point():
            return replace(instruction, operands=tuple(map(name, instruction.operands)))
        case Reduce() | Store():
            return replace(instruction, operand=name(instruction.operand))
        case At():
            return replace(
                instruction,
                operand=name(instruction.operand),
                position=name(instruction.position),
            )
        case LoadIndexed():
            return replace(instruction, index=name(instruction.index))
        case _:
            return instruction


def without_repetition(kernel: Kernel) -> Kernel:
    """Each value computed once: equal instructions become one."""
    known: dict[Instruction, tuple[str, ...]] = {}
    alias: dict[str, str] = {}
    body: list[Instruction] = []
    for instruction in kernel.body:
        current = renamed(instruction, lambda name: alias.get(name, name))
        names = results(current)
        if not names:
            body.append(current)
            continue
        nameless = _nameless(current)
        if nameless in known:
            alias.update(zip(names, known[nameless], strict=True))
        else:
            known[nameless] = names
            body.append(current)
    return replace(kernel, body=tuple(body))


def _nameless(instruction: Instruction) -> Instruction:
    match instruction:
        case Store():
            return instruction
        case Reduce():
            return replace(instruction, results=("",) * len(instruction.results))
        case _:
            return replace(instruction, result="")


def without_dead_code(kernel: Kernel) -> Kernel:
    """Only what some store needs."""
    needed: set[str] = set()
    body: list[Instruction] = []
    for instruction in reversed(kernel.body):
        if isinstance(instruction, Store) or needed.intersection(results(instruction)):
            needed.update(uses(instruction))
            body.append(instruction)
    return replace(kernel, body=tuple(reversed(body)))


def coalesced(kernel: Kernel) -> Kernel:
    """Neighbouring dimensions walked as one where every address allows; at least one is kept."""
    dims = list(kernel.dims)
    indexed = {i.dim for i in kernel.body if isinstance(i, Index)}
    accesses = [i.access for i in kernel.body if isinstance(i, Load | LoadIndexed | Store)]
    strides = [list(access.strides) for access in accesses]
    d = len(dims) - 2
    while d >= 0:
        same_kind = dims[d].reduced == dims[d + 1].reduced
        aligned = all(s[d] == s[d + 1] * dims[d + 1].extent for s in strides)
        if same_kind and aligned and not indexed & {d, d + 1}:
            dims[d : d + 2] = [Dim(dims[d].extent * dims[d + 1].extent, dims[d].reduced)]
            for s in strides:
                del s[d]
            indexed = {i - 1 if i > d else i for i in indexed}
        d -= 1
    if not any(not dim.reduced for dim in dims):
        dims.insert(0, Dim(1, False))
        for s in strides:
            s.insert(0, 0)
    walk = iter(strides)
    moved = _moved_dims(kernel, dims)
    body: list[Instruction] = []
    for instruction in kernel.body:
        if isinstance(instruction, Load | LoadIndexed | Store):
            access = instruction.access
            body.append(
                replace(instruction, access=Access(access.tensor, tuple(next(walk)), access.offset))
            )
        elif isinstance(instruction, Index):
            body.append(replace(instruction, dim=moved[instruction.dim]))
        else:
            body.append(instruction)
    return replace(kernel, dims=tuple(dims), body=tuple(body))


def _moved_dims(kernel: Kernel, dims: list[Dim]) -> dict[int, int]:
    """Where each old dimension that some Index names went: they are never merged."""
    moved: dict[int, int] = {}
    new, covered = 0, 1
    if kernel.dims and kernel.dims[0].reduced and not dims[0].reduced:
        new = 1
    for old, dim in enumerate(kernel.dims):
        moved[old] = new
        covered *= dim.extent
        if covered == dims[new].extent:
            new, covered = new + 1, 1
    return moved


@lru_cache(maxsize=4096)
def point_values(kernel: Kernel) -> frozenset[str]:
    """Names of the values that differ along reduced dimensions; all others are row values."""
    reduced = kernel.reduced
    names: set[str] = set()
    for instruction in kernel.body:
        match instruction:
            case Load() | LoadIndexed():
                varies = any(instruction.access.strides[d] for d in reduced)
                if varies or names.intersection(uses(instruction)):
                    names.add(instruction.result)
            case Index():
                if instruction.dim in reduced:
                    names.add(instruction.result)
            case Point():
                if names.intersection(instruction.operands):
                    names.add(instruction.result)
            case _:
                pass
    return frozenset(names)


@lru_cache(maxsize=4096)
def stages(kernel: Kernel) -> dict[str, int]:
    """For each value the number of passes over the reduced dimensions that must end before it."""
    stage: dict[str, int] = {}
    for instruction in kernel.body:
        before = max((stage[name] for name in uses(instruction)), default=0)
        after = before + 1 if isinstance(instruction, Reduce) else before
        for name in results(instruction):
            stage[name] = after
    return stage


def passes_over_rows(kernel: Kernel) -> int:
    """How often the reduced dimensions are walked: reductions by stage, and the writing pass."""
    if not kernel.reduced:
        return 1
    stage = stages(kernel)
    points = point_values(kernel)
    walks = {stage[i.results[0]] - 1 for i in kernel.body if isinstance(i, Reduce)}
    writes = {
        stage[i.operand]
        for i in kernel.body
        if isinstance(i, Store) and (i.operand in points or _walks(kernel, i.access))
    }
    return len(walks | ({max(writes | walks | {0})} if writes else set()))


def _walks(kernel: Kernel, access: Access) -> bool:
    return any(access.strides[d] for d in kernel.reduced)


@lru_cache(maxsize=4096)
def one_pass(kernel: Kernel) -> Kernel:
    """Maximum with sum of exponentials, and mean with squared deviations, in one walk each.

    The online softmax is Milakov and Gimelshein's (arXiv 1805.02867). Returns the kernel itself
    where neither pattern occurs.
    """
    defined = {name: i for i in kernel.body for name in results(i)}
    replaced: dict[str, Reduce] = {}
    dropped: set[str] = set()
    count = _elements(kernel)
    for instruction in kernel.body:
        if not isinstance(instruction, Reduce) or instruction.function != "sum":
            continue
        operand = defined.get(instruction.operand)
        match operand:
            case Point(function="exp", operands=(shifted,)):
                found = _online_softmax(defined, instruction, shifted)
            case Point(function="square", operands=(deviation,)):
                found = _moments(defined, instruction, deviation, count)
            case _:
                found = None
        if found is not None:
            first, merged = found
            replaced[first] = merged
            dropped.add(instruction.results[0])
    if not replaced:
        return kernel
    body: list[Instruction] = []
    for instruction in kernel.body:
        names = results(instruction)
        if names and names[0] in replaced:
            body.append(replaced[names[0]])
        elif not names or names[0] not in dropped:
            body.append(instruction)
    return without_dead_code(replace(kernel, body=tuple(body)))


def _online_softmax(
    defined: dict[str, Instruction], total: Reduce, shifted: str
) -> tuple[str, Reduce] | None:
    difference = defined.get(shifted)
    if not (isinstance(difference, Point) and difference.function == "sub"):
        return None
    value, peak = difference.operands
    maximum = defined.get(peak)
    if not (isinstance(maximum, Reduce) and maximum.function == "max"):
        return None
    if maximum.operand != value:
        return None
    results_ = (maximum.results[0], total.results[0])
    return peak, Reduce(results_, "online_softmax", value, total.dtype)


def _moments(
    defined: dict[str, Instruction], squares: Reduce, deviation: str, count: int
) -> tuple[str, Reduce] | None:
    difference = defined.get(deviation)
    if not (isinstance(difference, Point) and difference.function == "sub"):
        return None
    value, mean = difference.operands
    division = defined.get(mean)
    if not (isinstance(division, Point) and division.function == "div"):
        return None
    total, divisor = (defined.get(name) for name in division.operands)
    if not (isinstance(total, Reduce) and total.function == "sum" and total.operand == value):
        return None
    if not (isinstance(divisor, Constant) and divisor.value == count):
        return None
    return mean, Reduce((mean, squares.results[0]), "moments", value, squares.dtype)


def _elements(kernel: Kernel) -> int:
    count = 1
    for d in kernel.reduced:
        count *= kernel.dims[d].extent
    return count


def bytes_moved(kernel: Kernel, *, walks: int = 1) -> int:
    """Bytes read and written if each pass reads its tensors anew (`walks` times) from memory."""
    total = 0
    for instruction in kernel.body:
        if isinstance(instruction, Load | LoadIndexed | Store):
            touched = ITEM_BYTES[instruction.dtype]
            for stride, dim in zip(instruction.access.strides, kernel.dims, strict=True):
                touched *= dim.extent if stride else 1
            total += touched * (1 if isinstance(instruction, Store) else walks)
    return total


def operations(kernel: Kernel) -> dict[str, int]:
    """How often each function is computed, by name, over the whole domain."""
    points = point_values(kernel)
    all_points = rows = 1
    for dim in kernel.dims:
        all_points *= dim.extent
        rows *= 1 if dim.reduced else dim.extent
    counts: dict[str, int] = {}
    for instruction in kernel.body:
        if isinstance(instruction, Point | Reduce):
            wide = (
                isinstance(instruction, Reduce)
                or not kernel.reduced
                or instruction.result in points
            )
            counts[instruction.function] = counts.get(instruction.function, 0) + (
                all_points if wide else rows
            )
    return counts
