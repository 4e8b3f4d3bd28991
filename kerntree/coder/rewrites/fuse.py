"""Two kernels as one, so that what passes between them stays in registers.

Views and plain constants, which have no kernel of their own, are taken in as well.
"""

from collections.abc import Iterator
from dataclasses import replace

from kerntree.coder.errors import CannotLowerError
from kerntree.coder.groups import (
    containing,
    kernel_of,
    merged,
    successors,
    with_merged,
)
from kerntree.coder.kernel import Kernel, Load, LoadIndexed, Store
from kerntree.coder.lowering import build_kernel
from kerntree.coder.operators import OPERATORS
from kerntree.coder.passes import operations
from kerntree.coder.program import PLAIN, Group, Program
from kerntree.coder.rewrites.rewrite import ALL
from kerntree.coder.traffic import touched_bytes
from kerntree.plans.errors import CannotRealizeError
from kerntree.plans.graph import OperatorGraph, operands
from kerntree.plans.roofline import FREE, FUNCTION_WORK
from kerntree.plans.strategy import Strategy

kind = "fuse"
targets = frozenset({"cpp", "triton"})
_MOST_EXTRA_WORK = 2.0  # a producer computed anew for each reader's point is no gain


def applicable(graph: OperatorGraph, program: Program) -> list[Strategy]:
    """One strategy an edge between kernels, and one for all of them where there are several."""
    found = [
        Strategy(
            kind=kind,
            target=f"{first.name}+{second.name}",
            instruction=f"Compute {first.name} and {second.name} in one kernel, so that what "
            "passes between them is not written to memory.",
        )
        for first, second in _edges(graph, program)
        if _fused(graph, program, first, second) is not None
    ]
    if len(found) < 2:
        return found
    everything = fused_all(graph, program)
    if everything == program:
        return found
    every = "Fuse all neighbouring kernels that fit one loop nest and move no more bytes fused."
    return [Strategy(kind=kind, target=ALL, instruction=every), *found]


def apply(graph: OperatorGraph, program: Program, strategy: Strategy) -> Program:
    """The program with the target's groups as one; raises `CannotRealizeError`."""
    if strategy.target == ALL:
        everything = fused_all(graph, program)
        if everything == program:
            raise CannotRealizeError("no kernels are left that gain from being fused")
        return everything
    names = strategy.target.split("+")
    if len(names) != 2:
        raise CannotRealizeError(f"fuse takes two groups as a+b, not {strategy.target}")
    first, second = (containing(program, name) for name in names)
    if first == second:
        raise CannotRealizeError(f"{names[0]} and {names[1]} are one kernel already")
    if not _joinable(graph, first, second):
        raise CannotRealizeError(
            f"{names[0]} and {names[1]} are not both kernels: lower them first"
        )
    try:
        build_kernel(graph, merged(graph, first, second).nodes, name="fused")
    except CannotLowerError as error:
        raise CannotRealizeError(f"{strategy.target} do not fit one kernel: {error}") from error
    return with_merged(graph, program, first, second)


def fused_all(graph: OperatorGraph, program: Program) -> Program:
    """Edge after edge fused in running order until none is left that is legal and worth it."""
    refused: set[tuple[Group, Group]] = set()
    while True:
        for pair in _edges(graph, program):
            if pair in refused or not _worth_it(graph, *pair):
                refused.add(pair)
                continue
            fused = _fused(graph, program, *pair)  # circular now, it may not be so later
            if fused is not None:
                program = fused
                break
        else:
            return program


def _edges(graph: OperatorGraph, program: Program) -> Iterator[tuple[Group, Group]]:
    """Producer and consumer groups that may share a kernel, consumers in running order."""
    groups = program.groups
    pairs = [
        (reader, source)
        for source, readers in enumerate(successors(graph, groups))
        for reader in readers
    ]
    for reader, source in sorted(pairs):
        if _joinable(graph, groups[source], groups[reader]):
            yield groups[source], groups[reader]


def _joinable(graph: OperatorGraph, first: Group, second: Group) -> bool:
    if first.lowered and second.lowered:
        return True
    if first.lowered or second.lowered:
        return _is_absorbed(graph, second if first.lowered else first)
    return False


def _is_absorbed(graph: OperatorGraph, group: Group) -> bool:
    """Whether a torch call is only a view, or a constant that a kernel has as a number."""
    nodes = [graph.node(name) for name in group.nodes]
    return all(
        node.target in FREE or (node.target in OPERATORS and not operands(node)) for node in nodes
    )


def _fused(graph: OperatorGraph, program: Program, first: Group, second: Group) -> Program | None:
    if kernel_of(graph, replace(merged(graph, first, second), schedule=PLAIN)) is None:
        return None
    try:
        return with_merged(graph, program, first, second)
    except CannotRealizeError:
        return None


def _worth_it(graph: OperatorGraph, first: Group, second: Group) -> bool:
    """Whether the fused kernel moves no more bytes and computes little anew.

    Schedules have no say, so that fusing commutes with what changes them.
    """
    whole = kernel_of(graph, merged(graph, first, second))
    if whole is None:
        return False
    parts = [kernel_of(graph, group) for group in (first, second) if group.lowered]
    kernels = [kernel for kernel in parts if kernel is not None]
    if _boundary_bytes(whole) > sum(map(_boundary_bytes, kernels)):
        return False
    return _work(whole) <= _MOST_EXTRA_WORK * sum(map(_work, kernels))


def _boundary_bytes(kernel: Kernel) -> int:
    touched: dict[object, int] = {}
    for i in kernel.body:
        if isinstance(i, Load | LoadIndexed | Store):
            touched[i.access] = max(touched.get(i.access, 0), touched_bytes(kernel, i))
    return sum(touched.values())


def _work(kernel: Kernel) -> float:
    return 1.0 + sum(
        FUNCTION_WORK.get(name, 1.0) * count for name, count in operations(kernel).items()
    )
