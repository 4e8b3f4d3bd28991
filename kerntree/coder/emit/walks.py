"""Which instructions run in which pass over a row, and what is kept from one pass to the next."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kerntree.coder.kernel import (
    At,
    Constant,
    Instruction,
    Kernel,
    Load,
    LoadIndexed,
    Point,
    Reduce,
    Store,
)
from kerntree.coder.passes import point_values, results, stages, uses

_CHEAP = frozenset({
    "add", "sub", "mul", "neg", "abs", "square", "relu", "maximum", "minimum", "where", "cast",
    "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not",
})  # fmt: skip


@dataclass(frozen=True)
class Reload:
    """A point value read back from a row's scratch memory."""

    result: str


@dataclass(frozen=True)
class Walk:
    """One pass: row values computed before it, its point values, and what becomes of them."""

    rows_before: tuple[Instruction, ...]
    body: tuple[Instruction | Reload, ...]
    reduces: tuple[Reduce, ...]
    stores: tuple[Store, ...]
    keeps: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """All passes of a kernel in order, and the row values and row stores after the last.

    `crossing` are the row values used outside the segment that computes them.
    """

    walks: tuple[Walk, ...]
    rows_after: tuple[Instruction, ...]
    row_stores: tuple[Store, ...]
    kept: tuple[str, ...]
    crossing: frozenset[str]


def plan_walks(kernel: Kernel, *, keep: bool) -> Plan:
    """The passes of a kernel; `keep` keeps what is costly to compute again."""
    points, stage = point_values(kernel), stages(kernel)
    reduced = set(kernel.reduced)
    defined = {name: i for i in kernel.body for name in results(i)}
    stores = [i for i in kernel.body if isinstance(i, Store)]
    point_stores = [
        s for s in stores if s.operand in points or any(s.access.strides[d] for d in reduced)
    ]
    row_stores = [s for s in stores if s not in point_stores]
    reduces = [i for i in kernel.body if isinstance(i, Reduce)]
    last = max([stage[r.results[0]] - 1 for r in reduces], default=-1)
    if point_stores:
        last = max(last, *(stage[s.operand] for s in point_stores), 0)
    walks: list[Walk] = []
    known: set[str] = set()
    kept: list[str] = []
    computed: set[str] = set()
    reads_rows: dict[int, set[str]] = {}
    for number in range(last + 1):
        taken = [r for r in reduces if stage[r.results[0]] - 1 == number]
        written = point_stores if number == last else []
        roots = [r.operand for r in taken] + [s.operand for s in written]
        if not roots and number < last:
            continue
        fresh = _keep(kernel, defined, points, roots, computed, kept) if keep else []
        if fresh:
            walks = [_keeping(walk, fresh) for walk in walks]
            kept += fresh
        body = _needed(kernel, points, roots, set(kept) & computed)
        computed |= {name for i in body for name in _results(i)}
        rows = _rows(kernel, points, stage, known, number)
        known |= {name for i in rows for name in results(i)}
        walks.append(Walk(tuple(rows), tuple(body), tuple(taken), tuple(written), ()))
        used = {n for i in body if not isinstance(i, Reload) for n in uses(i)} | set(roots)
        reads_rows[len(walks) - 1] = used
    after = _rows(kernel, points, stage, known, 1 << 30)
    crossing = _crossing(walks, after, row_stores, kernel, reads_rows)
    return Plan(tuple(walks), tuple(after), tuple(row_stores), tuple(kept), crossing)


def point_slice(kernel: Kernel, name: str) -> list[Instruction]:
    """The point instructions that a value depends on, itself included, in order."""
    return [
        i for i in _needed(kernel, point_values(kernel), [name], set())
        if not isinstance(i, Reload)
    ]  # fmt: skip


def _results(instruction: Instruction | Reload) -> tuple[str, ...]:
    if isinstance(instruction, Reload):
        return (instruction.result,)
    return results(instruction)


def _needed(
    kernel: Kernel, points: frozenset[str], roots: Iterable[str], reload: set[str]
) -> list[Instruction | Reload]:
    wanted = {name for name in roots if name in points}
    body: list[Instruction | Reload] = []
    for instruction in reversed(kernel.body):
        names = [n for n in results(instruction) if n in wanted]
        if not names:
            continue
        if names[0] in reload:
            body.append(Reload(names[0]))
            continue
        body.append(instruction)
        wanted.update(n for n in uses(instruction) if n in points)
    return body[::-1]


def _keep(
    kernel: Kernel,
    defined: dict[str, Instruction],
    points: frozenset[str],
    roots: Sequence[str],
    computed: set[str],
    kept: list[str],
) -> list[str]:
    """Values of earlier passes that this one would compute again at some cost."""
    chosen: list[str] = []
    seen: set[str] = set()

    def visit(name: str) -> None:
        if name in seen or name not in points or name in kept:
            return
        seen.add(name)
        if name in computed and _worth(name):
            chosen.append(name)
            return
        for operand in uses(defined[name]):
            visit(operand)

    def _worth(name: str) -> bool:
        loads, costly = 0, False
        for i in _needed(kernel, points, [name], set(kept)):
            if isinstance(i, Load | LoadIndexed):
                loads += 1
            elif isinstance(i, Point) and i.function not in _CHEAP:
                costly = True
        return isinstance(defined[name], Point) and (costly or loads > 1)

    for root in roots:
        visit(root)
    return chosen


def _keeping(walk: Walk, fresh: Sequence[str]) -> Walk:
    """The pass that computes these values also keeps them: the first one that does."""
    mine = {i.result for i in walk.body if isinstance(i, Point)}
    keeps = tuple(name for name in fresh if name in mine)
    return Walk(walk.rows_before, walk.body, walk.reduces, walk.stores, (*walk.keeps, *keeps))


def _rows(
    kernel: Kernel, points: frozenset[str], stage: dict[str, int], known: set[str], number: int
) -> list[Instruction]:
    """Row values that can be computed before pass `number`, and have not been."""
    return [
        i
        for i in kernel.body
        if not isinstance(i, Reduce | Store | Constant)
        and results(i)[0] not in points
        and results(i)[0] not in known
        and stage[results(i)[0]] <= number
    ]


def _crossing(
    walks: Sequence[Walk],
    after: Sequence[Instruction],
    row_stores: Sequence[Store],
    kernel: Kernel,
    reads_rows: dict[int, set[str]],
) -> frozenset[str]:
    segments = [list(walk.rows_before) for walk in walks] + [list(after)]
    home = {n: k for k, segment in enumerate(segments) for i in segment for n in results(i)}
    crossing: set[str] = set()
    for used in reads_rows.values():
        crossing |= used & home.keys()
    for k, segment in enumerate(segments):
        for i in segment:
            names = set(uses(i))
            if isinstance(i, At):
                names |= {n for s in point_slice(kernel, i.operand) for n in uses(s)}
            crossing |= {n for n in names if home.get(n, k) != k}
    for store in row_stores:
        if home.get(store.operand, len(segments) - 1) != len(segments) - 1:
            crossing.add(store.operand)
    return frozenset(crossing)
