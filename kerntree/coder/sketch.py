"""The sketch coder: candidates printed from programs that rewrites change step by step."""

from collections.abc import Callable, Iterable
from math import log2
from typing import Literal

from kerntree.cache.digest import digest
from kerntree.coder.cost import CpuMachine, Machine, group_seconds
from kerntree.coder.gpu import GpuMachine
from kerntree.coder.groups import root_program
from kerntree.coder.program import Group, Program, from_json, to_json
from kerntree.coder.rewrites import ALL, REWRITES, kinds_for
from kerntree.plans.candidate import Candidate
from kerntree.plans.errors import CannotRealizeError
from kerntree.plans.graph import OperatorGraph
from kerntree.plans.problem import Problem
from kerntree.plans.strategy import Strategy

Emit = Callable[[Problem, Program | None], Candidate]


class SketchCoder:
    """Implements `Coder` with a program of groups and schedules; needs no model.

    All cases share one program, so that a strategy is listed only where it does the same to every
    case's graph. Where a case has no graph, or the graphs differ in their operators, the root is
    the plain operator as torch runs it and there are no strategies; `obstacle` says why.
    `machine` is what the expected gains assume; `emit` prints a program as a candidate.
    """

    def __init__(
        self,
        target: Literal["cpp", "triton"] = "cpp",
        *,
        machine: Machine | None = None,
        emit: Emit | None = None,
    ) -> None:
        self.target = target
        self._machine = machine or (CpuMachine() if target == "cpp" else GpuMachine())
        self._emit = emit or _emit_module

    def obstacle(self, problem: Problem) -> str:
        """Why nothing of this problem can be rewritten, or an empty text."""
        for case in problem.cases:
            if case.graph is None:
                return f"case {case.name} has no operator graph: {case.graph_error}"
        shapes = {case.name: _operators(case.graph) for case in problem.cases if case.graph}
        first = problem.cases[0].name
        for name, operators in shapes.items():
            if operators != shapes[first]:
                return (
                    f"case {name} runs other operators than case {first}:"
                    " search them as two problems"
                )
        return ""

    def root(self, problem: Problem) -> Candidate:
        """The plain operator, op by op; correct by construction."""
        if self.obstacle(problem):
            return self._emit(problem, None)
        return self._emit(problem, root_program(_graphs(problem)[0], target=self.target))

    def strategies(self, problem: Problem, candidate: Candidate) -> list[Strategy]:
        """The rewrites that apply, with what the cost model expects of each.

        `expected_gain` is log2 of expected time before over after. `parameters` hold `seconds`
        (expected after the step, summed over cases) and `unlocks` (log2 of what the best program
        now within reach gains over the best one within reach before).
        """
        if candidate.program is None or self.obstacle(problem):
            return []
        program = _program(candidate)
        graphs = _graphs(problem)
        estimates = _Estimates(problem, program, self._machine)
        found = []
        for strategy in _common(graphs, program):
            child = _applied(graphs, program, strategy)
            if child is not None:
                found.append(estimates.judged(strategy, child))
        return found

    def preview(self, problem: Problem, candidate: Candidate, strategy: Strategy) -> str | None:
        """The identity that `realize` would give; None if it would fail."""
        try:
            return digest(to_json(self._after(problem, candidate, strategy)))
        except CannotRealizeError:
            return None

    def realize(self, problem: Problem, candidate: Candidate, strategy: Strategy) -> Candidate:
        """The candidate after one rewrite; raises `CannotRealizeError`."""
        return self._emit(problem, self._after(problem, candidate, strategy))

    def _after(self, problem: Problem, candidate: Candidate, strategy: Strategy) -> Program:
        reason = self.obstacle(problem)
        if reason:
            raise CannotRealizeError(reason)
        if candidate.program is None:
            raise CannotRealizeError("this candidate is text, not a program of the sketch coder")
        if strategy.kind not in kinds_for(self.target):
            known = ", ".join(kinds_for(self.target))
            raise CannotRealizeError(f"no rewrite of kind {strategy.kind}: there are {known}")
        rewrite, program = REWRITES[strategy.kind], _program(candidate)
        results = {rewrite.apply(graph, program, strategy) for graph in _graphs(problem)}
        if len(results) > 1:
            raise CannotRealizeError(
                f"{strategy.kind} {strategy.target} does not do the same in every case"
            )
        return results.pop()


class _Estimates:
    """What the cost model expects of a program's children; each group is costed once."""

    def __init__(self, problem: Problem, program: Program, machine: Machine) -> None:
        self._cases = [(case, case.graph) for case in problem.timed_cases if case.graph is not None]
        self._graphs = _graphs(problem)
        self._machine = machine
        self._known: dict[tuple[str, Group], float] = {}
        self._before = self._seconds(program)
        self._reach = self._within_reach(program)

    def judged(self, strategy: Strategy, child: Program) -> Strategy:
        """The strategy with what it is expected to gain and to bring within reach."""
        after = self._seconds(child)
        gain = self._gain(self._before, after)
        # Only what turns torch calls into kernels brings new programs within reach.
        unlocks = 0.0
        if strategy.kind == "lower":
            unlocks = self._gain(self._reach, self._within_reach(child))
        return strategy.replaced(
            expected_gain=round(gain, 4),
            enabling=unlocks > max(gain, 0.0) + 0.1,
            parameters={
                **strategy.parameters,
                "seconds": sum(after.values()),
                "unlocks": round(unlocks, 4),
            },
        )

    def _seconds(self, program: Program) -> dict[str, float]:
        return {
            case.name: sum(self._group(case.name, graph, group) for group in program.groups)
            for case, graph in self._cases
        }

    def _group(self, case: str, graph: OperatorGraph, group: Group) -> float:
        key = (case, group)
        if key not in self._known:
            self._known[key] = group_seconds(graph, group, self._machine)
        return self._known[key]

    def _gain(self, before: dict[str, float], after: dict[str, float]) -> float:
        total = sum(case.weight for case, _ in self._cases) or 1.0
        return (
            sum(
                case.weight * log2(before[case.name] / after[case.name])
                for case, _ in self._cases
                if after[case.name]
            )
            / total
        )

    def _within_reach(self, program: Program) -> dict[str, float]:
        """Expected seconds by case once everything but lowering more is done to a program."""
        best = self._seconds(program)
        for kind in kinds_for(program.target):
            if kind == "lower":
                continue
            listed = _common(self._graphs, program, kinds=(kind,))
            everywhere = [s for s in listed if s.target == ALL]
            for strategy in everywhere or listed:
                child = _applied(self._graphs, program, strategy)
                if child is None:
                    continue
                seconds = self._seconds(child)
                if self._gain(best, seconds) >= 0:
                    program, best = child, seconds
        return best


def _emit_module(problem: Problem, program: Program | None) -> Candidate:
    from kerntree.coder.emit import emit_module

    return emit_module(problem, program)


def _graphs(problem: Problem) -> list[OperatorGraph]:
    return [case.graph for case in problem.cases if case.graph is not None]


def _operators(graph: OperatorGraph) -> tuple[tuple[str, str], ...]:
    return tuple((node.name, node.target) for node in graph.nodes)


def _program(candidate: Candidate) -> Program:
    if not isinstance(candidate.program, dict):
        raise CannotRealizeError("this candidate's program is not one of the sketch coder")
    return from_json(candidate.program)


def _common(
    graphs: list[OperatorGraph], program: Program, *, kinds: Iterable[str] = ()
) -> list[Strategy]:
    """The strategies that every case's graph admits, in the order of the catalogue."""
    kinds = tuple(kinds) or kinds_for(program.target)
    lists = [[s for k in kinds for s in REWRITES[k].applicable(g, program)] for g in graphs]
    admitted = [{(s.kind, s.target) for s in listed} for listed in lists[1:]]
    return [s for s in lists[0] if all((s.kind, s.target) in other for other in admitted)]


def _applied(graphs: list[OperatorGraph], program: Program, strategy: Strategy) -> Program | None:
    rewrite = REWRITES[strategy.kind]
    try:
        results = {rewrite.apply(graph, program, strategy) for graph in graphs}
    except CannotRealizeError:
        return None
    return results.pop() if len(results) == 1 else None
