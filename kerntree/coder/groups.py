"""Groups of operators: the root program, the order in which groups can run, and merging two."""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from kerntree.coder.errors import CannotLowerError
from kerntree.coder.kernel import Kernel
from kerntree.coder.lowering import build_kernel
from kerntree.coder.program import Group, Program
from kerntree.plans.errors import CannotRealizeError
from kerntree.plans.graph import OperatorGraph, operands


def live_nodes(graph: OperatorGraph) -> tuple[str, ...]:
    """The nodes that some output needs, in graph order."""
    needed = {output.value for output in graph.outputs}
    live: list[str] = []
    for node in reversed(graph.nodes):
        if node.name in needed:
            needed.update(operands(node))
            live.append(node.name)
    return tuple(reversed(live))


def root_program(graph: OperatorGraph, *, target: Literal["cpp", "triton"] = "cpp") -> Program:
    """Every live operator a torch call of its own; results of several stay with their operator."""
    live = set(live_nodes(graph))
    members: dict[str, list[str]] = {}
    for node in graph.nodes:
        if node.name not in live:
            continue
        if node.target == "getitem":
            members[operands(node)[0]].append(node.name)
        else:
            members[node.name] = [node.name]
    groups = [Group(nodes=tuple(names)) for names in members.values()]
    return Program(target=target, groups=in_running_order(graph, groups))


def in_running_order(graph: OperatorGraph, groups: Iterable[Group]) -> tuple[Group, ...]:
    """The groups in the one canonical order: topological, ties by the first node's place.

    Raises `CannotRealizeError` if groups depend on each other in a circle.
    """
    place = _places(graph)
    entries = sorted(groups, key=lambda group: place[group.nodes[0]])
    after = successors(graph, entries)
    waiting = [0] * len(entries)
    for followers in after:
        for follower in followers:
            waiting[follower] += 1
    ready = [index for index, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    ordered: list[Group] = []
    while ready:
        index = heapq.heappop(ready)
        ordered.append(entries[index])
        for follower in after[index]:
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, follower)
    if len(ordered) < len(entries):
        stuck = next(entries[i].name for i, count in enumerate(waiting) if count)
        raise CannotRealizeError(
            f"the group of {stuck} would need its own result: fuse what stands between first"
        )
    return tuple(ordered)


def successors(graph: OperatorGraph, groups: Sequence[Group]) -> list[list[int]]:
    """For each group the positions of the groups that read what it computes, ascending."""
    home = {name: index for index, group in enumerate(groups) for name in group.nodes}
    after: list[set[int]] = [set() for _ in groups]
    for node in graph.nodes:
        if node.name not in home:
            continue
        for ref in operands(node):
            source = home.get(ref)
            if source is not None and source != home[node.name]:
                after[source].add(home[node.name])
    return [sorted(followers) for followers in after]


def containing(program: Program, node: str) -> Group:
    """The group that a node is in now; raises `CannotRealizeError`."""
    for group in program.groups:
        if node in group.nodes:
            return group
    raise CannotRealizeError(f"the program has no operator {node}: choose one of its groups")


def merged(graph: OperatorGraph, first: Group, second: Group) -> Group:
    """One lowered group of both; its schedule has what either lowered one has."""
    place = _places(graph)
    schedules = [group.schedule for group in (first, second) if group.lowered]
    schedule = schedules[0].joined(schedules[1]) if len(schedules) == 2 else schedules[0]
    nodes = tuple(sorted((*first.nodes, *second.nodes), key=place.__getitem__))
    return Group(nodes=nodes, lowered=True, schedule=schedule)


def with_merged(graph: OperatorGraph, program: Program, first: Group, second: Group) -> Program:
    """The program with two groups as one; raises `CannotRealizeError` if that is circular."""
    rest = [group for group in program.groups if group not in (first, second)]
    groups = in_running_order(graph, [*rest, merged(graph, first, second)])
    return replace(program, groups=groups)


def kernel_of(graph: OperatorGraph, group: Group) -> Kernel | None:
    """The group's loop nest, or None if it has none."""
    try:
        return build_kernel(graph, group.nodes, name=group.name)
    except CannotLowerError:
        return None


def lowered_kernels(graph: OperatorGraph, program: Program) -> Mapping[str, Kernel]:
    """The kernels of a program by the names of their groups, in running order."""
    kernels: dict[str, Kernel] = {}
    for group in program.groups:
        if group.lowered:
            kernel = kernel_of(graph, group)
            if kernel is not None:
                kernels[group.name] = kernel
    return kernels


def _places(graph: OperatorGraph) -> dict[str, int]:
    return {node.name: index for index, node in enumerate(graph.nodes)}
