"""Torch calls turned into kernels of ours, where they have a loop nest."""

from dataclasses import replace

from kerntree.coder.errors import CannotLowerError
from kerntree.coder.groups import containing, kernel_of
from kerntree.coder.lowering import build_kernel
from kerntree.coder.program import Group, Program
from kerntree.coder.rewrites.rewrite import ALL
from kerntree.plans.errors import CannotRealizeError
from kerntree.plans.graph import OperatorGraph
from kerntree.plans.roofline import FREE
from kerntree.plans.strategy import Strategy

kind = "lower"
targets = frozenset({"cpp", "triton"})


def applicable(graph: OperatorGraph, program: Program) -> list[Strategy]:
    """One strategy a torch call that can be lowered, and one for all where there are several.

    Views stay with torch, where they cost nothing, until `fuse` takes them into a kernel.
    """
    names = [group.name for group in program.groups if _can_lower(graph, group)]
    found = [
        Strategy(
            kind=kind,
            target=name,
            instruction=f"Write {name} as a kernel of our own in place of the torch call.",
        )
        for name in names
    ]
    if len(names) > 1:
        every = f"Write each of {', '.join(names)} as a kernel of our own in place of torch calls."
        found.insert(0, Strategy(kind=kind, target=ALL, instruction=every))
    return found


def apply(graph: OperatorGraph, program: Program, strategy: Strategy) -> Program:
    """The program with the target lowered; raises `CannotRealizeError`."""
    if strategy.target == ALL:
        chosen = [group for group in program.groups if _can_lower(graph, group)]
        if len(chosen) < 2:
            raise CannotRealizeError("fewer than two torch calls can be lowered")
    else:
        chosen = [containing(program, strategy.target)]
        _check(graph, chosen[0])
    for group in chosen:
        program = program.with_group(group.name, replace(group, lowered=True))
    return program


def _can_lower(graph: OperatorGraph, group: Group) -> bool:
    return not group.lowered and not _is_view(graph, group) and kernel_of(graph, group) is not None


def _check(graph: OperatorGraph, group: Group) -> None:
    if group.lowered:
        raise CannotRealizeError(f"{group.name} is a kernel already: choose another step")
    if _is_view(graph, group):
        raise CannotRealizeError(f"{group.name} only views memory: fuse it into a kernel instead")
    try:
        build_kernel(graph, group.nodes, name=group.name)
    except CannotLowerError as error:
        raise CannotRealizeError(f"{group.name} stays a torch call: {error}") from error


def _is_view(graph: OperatorGraph, group: Group) -> bool:
    return all(graph.node(name).target in FREE for name in group.nodes)
