"""What a rewrite is, and those that change fields of schedules."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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
    """One kind of strategy on programs, for some targets."""

    @property
    def kind(self) -> str: ...
    @property
    def targets(self) -> frozenset[str]: ...

    def applicable(self, graph: OperatorGraph, program: Program) -> list[Strategy]:
        """The strategies of this kind that change the program and can be applied."""
        ...

    def apply(self, graph: OperatorGraph, program: Program, strategy: Strategy) -> Program:
        """The program after the step; raises `CannotRealizeError` with the reason."""
        ...


@dataclass(frozen=True, kw_only=True)
class ScheduleRewrite:
    """Implements `Rewrite` for a step that changes fields of schedules, where it `fits`.

    `instruction` has `{target}` where the group is named; `change` gives a group's new fields. A
    step that `depends_on_machine` (on the state of its memory, say) says so in its parameters: no
    model foresees what it brings.
    """

    kind: str
    targets: frozenset[str]
    instruction: str
    fits: Fits
    change: Callable[[Group], Mapping[str, Any]]
    depends_on_machine: bool = False

    def applicable(self, graph: OperatorGraph, program: Program) -> list[Strategy]:
        """One strategy a lowered group that fits, and one for all of them if there are several."""
        names = [group.name for group in self._fitting(graph, program)]
        found = [self._strategy(name, f"kernel {name}") for name in names]
        if len(names) > 1:
            found.insert(0, self._strategy(ALL, f"each of the kernels {', '.join(names)}"))
        return found

    def apply(self, graph: OperatorGraph, program: Program, strategy: Strategy) -> Program:
        """The program with the target's schedule changed; raises `CannotRealizeError`."""
        chosen = self._fitting(graph, program)
        if strategy.target == ALL:
            if len(chosen) < 2:
                raise CannotRealizeError(f"{self.kind} has fewer than two kernels to change")
        else:
            group = containing(program, strategy.target)
            if group not in chosen:
                raise CannotRealizeError(
                    f"{self.kind} changes nothing at {strategy.target}: choose another step"
                )
            chosen = [group]
        for group in chosen:
            schedule = replace(group.schedule, **self.change(group))
            program = program.with_group(group.name, replace(group, schedule=schedule))
        return program

    def _fitting(self, graph: OperatorGraph, program: Program) -> list[Group]:
        return [group for group in program.groups if self._fits(graph, program, group)]

    def _fits(self, graph: OperatorGraph, program: Program, group: Group) -> bool:
        if not group.lowered:
            return False
        kernel = kernel_of(graph, group)
        return kernel is not None and self.fits(graph, program, group, kernel)

    def _strategy(self, target: str, words: str) -> Strategy:
        parameters: dict[str, JsonValue] = {}
        if self.depends_on_machine:
            parameters["depends_on_machine"] = True
        return Strategy(
            kind=self.kind,
            target=target,
            instruction=self.instruction.format(target=words),
            parameters=parameters,
        )
