"""What a rewrite is, and what those that change one field of schedules have in common."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from pydantic import JsonValue

from kerntree.coder.groups import containing, kernel_of
from kerntree.coder.kernel import Kernel
from kerntree.coder.program import Group, Program
from kerntree.plans.errors import CannotRealizeError
from kerntree.plans.graph import OperatorGraph
from kerntree.plans.strategy import Strategy

ALL = "all"
Fits = Callable[[OperatorGraph, Program, Group, Kernel], bool]


class Rewrite(Protocol):
    """One kind of strategy on programs, for some targets. A module of this package is one."""

    KIND: str
    TARGETS: frozenset[str]

    def applicable(self, graph: OperatorGraph, program: Program) -> list[Strategy]:
        """The strategies of this kind that change the program and can be applied."""
        ...

    def apply(self, graph: OperatorGraph, program: Program, strategy: Strategy) -> Program:
        """The program after the step; raises `CannotRealizeError` with the reason."""
        ...


def schedule_strategies(
    graph: OperatorGraph,
    program: Program,
    *,
    kind: str,
    instruction: str,
    fits: Fits,
    depends_on_machine: bool = False,
) -> list[Strategy]:
    """One strategy a lowered group that fits, and one for all of them where there are several.

    `instruction` has `{target}` where the group is named. A step that `depends_on_machine` (on the
    state of its memory, say) says so in its parameters: no model foresees what it brings.
    """
    parameters: dict[str, JsonValue] = {"depends_on_machine": True} if depends_on_machine else {}
    names = [group.name for group in program.groups if _fits(graph, program, group, fits)]
    found = [
        Strategy(
            kind=kind,
            target=name,
            instruction=instruction.format(target=f"kernel {name}"),
            parameters=parameters,
        )
        for name in names
    ]
    if len(names) > 1:
        every = instruction.format(target=f"each of the kernels {', '.join(names)}")
        found.insert(0, Strategy(kind=kind, target=ALL, instruction=every, parameters=parameters))
    return found


def with_schedule(
    graph: OperatorGraph,
    program: Program,
    strategy: Strategy,
    *,
    fits: Fits,
    change: Callable[[Group], Mapping[str, Any]],
) -> Program:
    """The program with fields of the target's schedule changed; raises `CannotRealizeError`."""
    if strategy.target == ALL:
        chosen = [g for g in program.groups if _fits(graph, program, g, fits)]
        if len(chosen) < 2:
            raise CannotRealizeError(f"{strategy.kind} has fewer than two kernels to change")
    else:
        chosen = [containing(program, strategy.target)]
        if not _fits(graph, program, chosen[0], fits):
            raise CannotRealizeError(
                f"{strategy.kind} changes nothing at {strategy.target}: choose another step"
            )
    for group in chosen:
        schedule = replace(group.schedule, **change(group))
        program = program.with_group(group.name, replace(group, schedule=schedule))
    return program


def _fits(graph: OperatorGraph, program: Program, group: Group, fits: Fits) -> bool:
    if not group.lowered:
        return False
    kernel = kernel_of(graph, group)
    return kernel is not None and fits(graph, program, group, kernel)
