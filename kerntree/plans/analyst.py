"""The rule analyst: what limits a measured kernel, from its times, its floor and its launches."""

from dataclasses import dataclass
from typing import Literal

from kerntree.plans.candidate import Candidate
from kerntree.plans.evaluation import CaseTiming, Evaluation
from kerntree.plans.finding import Finding
from kerntree.plans.problem import Problem
from kerntree.plans.roofline import TYPICAL_CPU, Cost, DeviceLimits, case_cost, floor_seconds

# What to try, the likeliest first; a coder lists what applies.
_SLOW = ("vectorize", "parallelize", "reorder", "split", "one_pass", "keep_row", "tile")
_BYTES = ("parallelize", "split", "one_pass", "keep_row", "stream", "persist", "huge_pages", "tile")
_OPERATIONS = ("vectorize", "tile", "parallelize", "split", "one_pass", "pipeline")
_FOR_CPU = frozenset({"vectorize", "parallelize", "huge_pages"})
_FOR_GPU = frozenset({"split", "persist", "pipeline"})


@dataclass(frozen=True, kw_only=True)
class RuleAnalyst:
    """Implements `Analyst` from timings alone.

    `limits` is what the device reaches; where a timing has no floor, it is taken from them.
    `launch_seconds` is what starting a kernel or a torch call takes. A kernel within `near` times
    its floor has nothing left to gain.
    """

    limits: DeviceLimits = TYPICAL_CPU
    launch_seconds: float = 4.0e-6
    near: float = 1.3

    def find(self, problem: Problem, candidate: Candidate, evaluation: Evaluation) -> Finding:
        """One finding about the case with most to gain; `unknown` where nothing was timed."""
        if not evaluation.timings:
            return Finding(limit="unknown", statement=f"not timed: {evaluation.verdict.value}")
        costs = {case.name: case_cost(case) for case in problem.timed_cases}
        weights = {case.name: case.weight for case in problem.cases}
        timing = max(
            evaluation.timings,
            key=lambda t: weights.get(t.case, 1.0) * self._over(t, costs.get(t.case, Cost())),
        )
        cost = costs.get(timing.case, Cost())
        return self._finding(candidate, timing, cost)

    def _finding(self, candidate: Candidate, timing: CaseTiming, cost: Cost) -> Finding:
        seconds = timing.median_ns * 1e-9
        over = self._over(timing, cost) or None
        launches = len(candidate.kernels) + len(candidate.torch_calls)
        if launches > 1 and launches * self.launch_seconds > 0.5 * seconds:
            return Finding(
                limit="launches",
                statement=f"{launches} launches take most of {_time(seconds)} in case"
                f" {timing.case}: make fewer of them",
                over_floor=over,
                recommended=("fuse", "lower"),
            )
        if over is None:
            return Finding(limit="unknown", statement=f"case {timing.case} has no known floor")
        resource = self._resource(cost)
        if over <= self.near:
            return Finding(
                limit=resource,
                statement=f"at {over:.2f} times the floor in case {timing.case}: little is left",
                over_floor=over,
            )
        place = f"{over:.1f} times the floor in case {timing.case}"
        if len(candidate.torch_calls) > 1 or len(candidate.kernels) > 1:
            return Finding(
                limit="bytes",
                statement=f"{place}: {launches} launches pass their results through memory",
                over_floor=over,
                recommended=("fuse", "lower") if candidate.kernels else ("lower",),
            )
        if not candidate.kernels:
            return Finding(
                limit="unknown",
                statement=f"{place}, in a torch call",
                over_floor=over,
                recommended=("lower",),
            )
        if over > 4 * self.near:
            return Finding(
                limit="operations",
                statement=f"{place}: far from what memory allows, so it computes too slowly",
                over_floor=over,
                recommended=_on(candidate, _SLOW),
            )
        return Finding(
            limit="latency" if resource == "operations" else resource,
            statement=f"{place}: reads, writes or waits more than it needs",
            over_floor=over,
            recommended=_on(candidate, _BYTES if resource == "bytes" else _OPERATIONS),
        )

    def _over(self, timing: CaseTiming, cost: Cost) -> float:
        floor = timing.floor_ns or floor_seconds(cost, self.limits) * 1e9
        return timing.median_ns / floor if floor > 0 else 0.0

    def _resource(self, cost: Cost) -> Literal["bytes", "operations"]:
        memory = cost.bytes / self.limits.bandwidth_bytes_per_second
        arithmetic = cost.work / self.limits.operations_per_second
        return "bytes" if memory >= arithmetic else "operations"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def _on(candidate: Candidate, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Those of these kinds that mean something for the candidate's language."""
    other = _FOR_CPU if candidate.language == "triton" else _FOR_GPU
    return tuple(kind for kind in kinds if kind not in other)
