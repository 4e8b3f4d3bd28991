"""What one life of a run works with: its tree, its journal, and when it has to end."""

from collections.abc import Callable
from dataclasses import dataclass

from kerntree.cache.journal import Journal
from kerntree.plans.candidate import Config
from kerntree.plans.evaluation import EvaluationRequest
from kerntree.plans.problem import Problem
from kerntree.plans.protocols import Evaluator
from kerntree.search.budget import Budget, spent
from kerntree.search.events import SearchEvent, to_data
from kerntree.search.tree import Node, Tree

OnEvent = Callable[[SearchEvent, Tree], None]


class Halt(Exception):
    """The search ends here, for good (`finished`) or until resumed."""

    def __init__(self, reason: str, *, finished: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.finished = finished


@dataclass(frozen=True, kw_only=True)
class Session:
    """`tree` is the fold of the journal, and changes only by what `record` writes."""

    problem: Problem
    evaluator: Evaluator
    journal: Journal
    budget: Budget
    seed: int
    on_event: OnEvent
    stop: Callable[[], bool]
    clock: Callable[[], float]
    tree: Tree

    def request(self, node: Node, config: Config) -> EvaluationRequest:
        return EvaluationRequest(problem=self.problem, candidate=node.candidate, config=config)

    def pause(self) -> None:
        """Where a search may end: between two steps, before anything is measured."""
        self.halt_if_stopped()
        reason = self.budget.exhausted(spent(self.journal.events, now=self.clock()))
        if reason is not None:
            raise Halt(reason, finished=True)

    def pause_for_time(self) -> None:
        """As `_pause`, where no evaluation is about to be spent."""
        self.halt_if_stopped()
        limit = self.budget.only_time()
        reason = limit.exhausted(spent(self.journal.events, now=self.clock()))
        if reason is not None:
            raise Halt(reason, finished=True)

    def halt_if_stopped(self) -> None:
        if self.stop():
            raise Halt("interrupted", finished=False)

    def record(self, event: SearchEvent) -> None:
        self.journal.append(event.kind, to_data(event))
        self.tree.apply(event)
        self.on_event(event, self.tree)
