"""The search itself: one function for a fresh run and for a resumed one.

All it knows is the fold of the journal. An event is on the disk before anyone sees its effect, so
that a run killed anywhere goes on from its last event, and nothing journaled is measured again.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from kerntree.cache.errors import CacheError, KerntreeError
from kerntree.cache.journal import Journal
from kerntree.plans.candidate import Config
from kerntree.plans.evaluation import Duel, Evaluation, Verdict
from kerntree.plans.problem import Problem
from kerntree.plans.protocols import Analyst, Coder, Evaluator, Planner
from kerntree.plans.strategy import Strategy
from kerntree.search.budget import Budget
from kerntree.search.contest import Racing, challenge, evaluate, last_challenges, race, reward_of
from kerntree.search.events import (
    BaselinesMeasured,
    BudgetSet,
    Finished,
    Linked,
    NodeAdded,
    Proposed,
    RealizeFailed,
    Replayed,
    Resumed,
    Reverified,
    RunStarted,
    Stopped,
)
from kerntree.search.explorers import Explorer
from kerntree.search.session import Halt, OnEvent, Session
from kerntree.search.tree import (
    Edge,
    Node,
    Tree,
    best_parent,
    evaluation_of,
    fold,
    plan_of,
)
from kerntree.search.tuner import projected

_NEGLIGIBLE = 0.01  # log2: less than any measurement could tell


@dataclass(frozen=True)
class Result:
    """What a search came to. `best_*` are None where nothing beat the baseline for sure.

    Not `finished`: interrupted, and to be resumed. `reverified` is the last, fresh measurement
    against the baseline.
    """

    best_node: str | None
    best_config: Config | None
    best_evaluation: Evaluation | None
    finished: bool
    reason: str
    reverified: Duel | None = None


def run_search(
    *,
    problem: Problem,
    coder: Coder,
    planner: Planner,
    analyst: Analyst,
    evaluator: Evaluator,
    explorer: Explorer,
    journal: Journal,
    budget: Budget,
    seed: int = 0,
    on_event: OnEvent | None = None,
    stop: Callable[[], bool] = lambda: False,
    racing: Racing | None = None,
    max_depth: int = 12,
    clock: Callable[[], float] = time.time,
) -> Result:
    """Searches until the budget is spent, nothing is left to try, or `stop()` is true.

    `max_depth` bounds the enabling steps taken at once without measuring between them. `stop` is
    asked before every measurement. Raises `CacheError` if the journal cannot be written, and what
    the evaluator raises where the reference itself does not run.
    """
    session = Session(
        problem=problem,
        evaluator=evaluator,
        journal=journal,
        budget=budget,
        seed=seed,
        on_event=on_event or (lambda event, tree: None),
        stop=stop,
        clock=clock,
        tree=fold(journal.events),
    )
    search = _Search(
        session=session,
        coder=coder,
        planner=planner,
        analyst=analyst,
        explorer=explorer,
        racing=racing or Racing(),
        max_depth=max_depth,
    )
    return search.run()


@dataclass(frozen=True)
class _Tried:
    """Implements `Outcome`."""

    strategy: Strategy
    correct: bool
    gain: float | None


@dataclass(frozen=True, kw_only=True)
class _Search:
    session: Session
    coder: Coder
    planner: Planner
    analyst: Analyst
    explorer: Explorer
    racing: Racing
    max_depth: int

    @property
    def tree(self) -> Tree:
        return self.session.tree

    @property
    def problem(self) -> Problem:
        return self.session.problem

    def run(self) -> Result:
        try:
            try:
                self._begin()
                self._take_up()
                self._explore()
            except Halt as halt:
                if not halt.finished:
                    raise
                return self._finish(halt.reason)
        except Halt as halt:
            self.session.record(Stopped(reason=halt.reason))
            return self._result(halt.reason, finished=False)

    def _explore(self) -> NoReturn:
        while True:
            self.session.pause()
            asked = self.explorer.ask(self.tree, 1, step=self.tree.steps)
            if not asked:
                raise Halt("nothing is left to try", finished=True)
            for expansion in asked:
                child = self._realize(self.tree.edge(expansion.node, expansion.index))
                if child is not None:
                    self._settle(child)

    def _begin(self) -> None:
        if not self.session.journal.events:
            self.session.record(
                RunStarted(
                    problem=self.problem.name,
                    seed=self.session.seed,
                    explorer=type(self.explorer).__name__,
                )
            )
        else:
            self.session.record(Resumed())
        limits = BudgetSet(
            evaluations=self.session.budget.evaluations, seconds=self.session.budget.seconds
        )
        self.session.record(limits)
        self.session.halt_if_stopped()
        if self.tree.baselines is None:
            self.session.record(BaselinesMeasured(baselines=self.session.evaluator.baselines()))
        if self.tree.root is None:
            root = self.coder.root(self.problem)
            self.session.record(NodeAdded(identity=root.identity, candidate=root))

    def _take_up(self) -> None:
        """Ends what the last life of this run left half done."""
        last = self.tree.last_evaluated
        waiting = [node.identity for node in self.tree.nodes.values() if _unsettled(node)]
        for identity in dict.fromkeys([*waiting, *([last] if last else [])]):
            self._settle(self.tree.nodes[identity])

    def _realize(self, edge: Edge) -> Node | None:
        """Takes one step; the new node, or None where it failed or led to a known one."""
        parent = self.tree.nodes[edge.parent]
        at = {"parent": edge.parent, "strategy": edge.index}
        try:
            known = self.coder.preview(self.problem, parent.candidate, edge.strategy)
            if known is not None and known in self.tree.nodes:
                self.session.record(Linked.model_validate({**at, "child": known}))
                return None
            candidate = self.coder.realize(self.problem, parent.candidate, edge.strategy)
        except CacheError:
            raise
        except KerntreeError as error:
            self.session.record(RealizeFailed.model_validate({**at, "message": str(error)}))
            return None
        identity = candidate.identity
        if identity in self.tree.nodes:
            self.session.record(Linked.model_validate({**at, "child": identity}))
            return None
        self.session.record(
            NodeAdded(
                identity=identity, candidate=candidate, parent=edge.parent, strategy=edge.index
            )
        )
        return self.tree.nodes[identity]

    def _settle(self, node: Node) -> None:
        """Measures a new node, or passes through it where the step only enables others.

        The first way down is a plunge: it follows the likeliest steps as long as they are expected
        to win something, and measures where it ends. A measurement may take long, and what many
        steps together bring shows at once.

        Asked again for a node already settled, it does nothing twice.
        """
        passed = 0
        plunge = not any(
            n.measured for n in self.tree.nodes.values() if n.parents and n.candidate.program
        )
        while not node.measured and passed < self.max_depth:
            enabling = self._enabling(node)
            if not enabling and not (plunge and node.parents):
                break
            self._propose(node)
            free = [edge for edge in node.edges or () if not edge.tried]
            if not enabling:
                free = [edge for edge in free if _promising(edge.strategy)]
            if not free:
                break
            self.session.pause()
            edge = max(free, key=lambda edge: (edge.strategy.prior, -edge.index))
            child = self._realize(edge)
            if child is None:
                if edge.failed:
                    continue
                return  # it leads to a known state: nothing new lies on this way
            node = child
            passed += 1
        known = next(iter(node.measured.values()), None)
        first = known or evaluate(self.session, node, self._inherited(node))
        if node.identity == self.tree.root or first.correct:
            self._propose(node)
        if first.correct:
            if self.tree.incumbent is None:  # a run interrupted early should have a record
                challenge(self.session, node)
            race(self.session, node, racing=self.racing)
            self.session.pause_for_time()
            challenge(self.session, node)

    def _enabling(self, node: Node) -> bool:
        return bool(node.parents) and self.tree.edge(*node.parents[0]).strategy.enabling

    def _inherited(self, node: Node) -> Config:
        """The best config of the nearest measured state above, as far as this one admits it."""
        above = node
        while (link := best_parent(self.tree, above)) is not None:
            above = self.tree.nodes[link[0]]
            if above.best is not None:
                return projected(above.best.config, node.candidate)
        return projected(node.candidate.config, node.candidate)

    def _propose(self, node: Node) -> None:
        if node.edges is not None:
            return
        evaluation, finding = node.best, None
        strategies: list[Strategy] = []
        message = ""
        try:
            if evaluation is not None:
                finding = self.analyst.find(self.problem, node.candidate, evaluation)
            strategies = self.planner.propose(
                self.problem,
                node.candidate,
                plan=plan_of(self.tree, node.identity),
                applicable=self.coder.strategies(self.problem, node.candidate),
                evaluation=evaluation,
                finding=finding,
                history=_outcomes(self.tree),
            )
        except CacheError:
            raise
        except KerntreeError as error:
            message = str(error)
        self.session.record(
            Proposed(
                node=node.identity,
                strategies=tuple(strategies),
                finding=finding,
                message=message,
            )
        )

    def _finish(self, reason: str) -> Result:
        """Measures the best once more, alone against the baseline; if it fails, the one before."""
        last_challenges(self.session, duels=self.racing.last_duels)
        verified: Duel | None = None
        while (best := self.tree.incumbent) is not None:
            self.session.halt_if_stopped()
            node = self.tree.nodes[best.node]
            duel = self.session.evaluator.duel(self.session.request(node, best.config), None)
            lost = duel.challenger.verdict is Verdict.LOST
            confirmed = duel.challenger.correct and duel.gain_low > 0
            if lost or confirmed:
                verified = duel
            self.session.record(
                Reverified(
                    node=best.node, config=best.config, duel=duel, confirmed=lost or confirmed
                )
            )
            if verified is not None:
                self._replay(node, best.config)
                break
        self.session.record(Finished(reason=reason, best=self.tree.incumbent, reverified=verified))
        return self._result(reason, finished=True, reverified=verified)

    def _replay(self, node: Node, config: Config) -> None:
        """A reading for the report alone: it costs a fresh child, so not when asked to stop."""
        self.session.halt_if_stopped()
        replay = self.session.evaluator.replay(self.session.request(node, config))
        if replay is not None:
            self.session.record(Replayed(node=node.identity, config=config, replay=replay))

    def _result(self, reason: str, *, finished: bool, reverified: Duel | None = None) -> Result:
        best = self.tree.incumbent
        return Result(
            best_node=None if best is None else best.node,
            best_config=None if best is None else best.config,
            best_evaluation=evaluation_of(self.tree, best),
            finished=finished,
            reason=reason,
            reverified=reverified,
        )


def _promising(strategy: Strategy) -> bool:
    """Expected to win something, and not by the state of the machine, which must be measured."""
    if strategy.parameters.get("depends_on_machine"):
        return False
    return strategy.enabling or strategy.expected_gain > _NEGLIGIBLE


def _unsettled(node: Node) -> bool:
    """Neither measured nor passed through."""
    return not node.measured and all(edge.child is None for edge in node.edges or ())


def _outcomes(tree: Tree) -> list[_Tried]:
    """Every step tried so far whose outcome is known."""
    found = []
    for node in tree.nodes.values():
        before = reward_of(node.best)
        for edge in node.edges or ():
            child = None if edge.child is None else tree.nodes[edge.child]
            if edge.failed:
                found.append(_Tried(edge.strategy, correct=False, gain=None))
            elif child is not None and child.measured:
                after = reward_of(child.best)
                gain = None if after is None or before is None else after - before
                found.append(_Tried(edge.strategy, correct=child.correct, gain=gain))
    return found
