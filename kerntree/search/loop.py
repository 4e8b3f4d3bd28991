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
from kerntree.plans.evaluation import Duel, Evaluation, EvaluationRequest, Verdict
from kerntree.plans.problem import Problem
from kerntree.plans.protocols import Analyst, Coder, Evaluator, Planner
from kerntree.plans.strategy import Strategy
from kerntree.search.budget import Budget, spent
from kerntree.search.events import (
    BaselinesMeasured,
    BudgetSet,
    Dueled,
    Evaluated,
    Finished,
    Linked,
    NodeAdded,
    Proposed,
    RealizeFailed,
    Record,
    Resumed,
    Reverified,
    RunStarted,
    SearchEvent,
    Stopped,
    to_data,
)
from kerntree.search.explorers import Explorer
from kerntree.search.reward import cautious
from kerntree.search.tree import (
    LOST_ATTEMPTS,
    Edge,
    Node,
    Tree,
    best_parent,
    config_key,
    duel_key,
    evaluation_of,
    fold,
    plan_of,
)
from kerntree.search.tuner import Trial, next_config, projected

_NEGLIGIBLE = 0.01  # log2: less than any measurement could tell

OnEvent = Callable[[SearchEvent, Tree], None]


@dataclass(frozen=True, kw_only=True)
class Racing:
    """How many configs a candidate is worth.

    Within `margin` (log2) of the best, `neighbours` are measured; a new leader's race goes on to
    `leader_neighbours` and, proposed by a model, to `leader_limit` in all. When the budget is
    spent, up to `last_duels` are still fought.
    """

    margin: float = 0.3
    neighbours: int = 4
    leader_neighbours: int = 6
    leader_limit: int = 12
    last_duels: int = 3


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
    search = _Search(
        problem=problem,
        coder=coder,
        planner=planner,
        analyst=analyst,
        evaluator=evaluator,
        explorer=explorer,
        journal=journal,
        budget=budget,
        seed=seed,
        on_event=on_event or (lambda event, tree: None),
        stop=stop,
        racing=racing or Racing(),
        max_depth=max_depth,
        clock=clock,
        tree=fold(journal.events),
    )
    return search.run()


class _Halt(Exception):
    """The search ends here, for good (`finished`) or until resumed."""

    def __init__(self, reason: str, *, finished: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.finished = finished


@dataclass(frozen=True)
class _Tried:
    """Implements `Outcome`."""

    strategy: Strategy
    correct: bool
    gain: float | None


@dataclass(frozen=True, kw_only=True)
class _Search:
    problem: Problem
    coder: Coder
    planner: Planner
    analyst: Analyst
    evaluator: Evaluator
    explorer: Explorer
    journal: Journal
    budget: Budget
    seed: int
    on_event: OnEvent
    stop: Callable[[], bool]
    racing: Racing
    max_depth: int
    clock: Callable[[], float]
    tree: Tree

    def run(self) -> Result:
        try:
            try:
                self._begin()
                self._take_up()
                self._explore()
            except _Halt as halt:
                if not halt.finished:
                    raise
                return self._finish(halt.reason)
        except _Halt as halt:
            self._record(Stopped(reason=halt.reason))
            return self._result(halt.reason, finished=False)

    def _explore(self) -> NoReturn:
        while True:
            self._pause()
            asked = self.explorer.ask(self.tree, 1, step=self.tree.steps)
            if not asked:
                raise _Halt("nothing is left to try", finished=True)
            for expansion in asked:
                child = self._realize(self.tree.edge(expansion.node, expansion.index))
                if child is not None:
                    self._settle(child)

    def _begin(self) -> None:
        if not self.journal.events:
            self._record(
                RunStarted(
                    problem=self.problem.name,
                    seed=self.seed,
                    explorer=type(self.explorer).__name__,
                )
            )
        else:
            self._record(Resumed())
        limits = BudgetSet(evaluations=self.budget.evaluations, seconds=self.budget.seconds)
        self._record(limits)
        self._halt_if_stopped()
        if self.tree.baselines is None:
            self._record(BaselinesMeasured(baselines=self.evaluator.baselines()))
        if self.tree.root is None:
            root = self.coder.root(self.problem)
            self._record(NodeAdded(identity=root.identity, candidate=root))

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
                self._record(Linked.model_validate({**at, "child": known}))
                return None
            candidate = self.coder.realize(self.problem, parent.candidate, edge.strategy)
        except CacheError:
            raise
        except KerntreeError as error:
            self._record(RealizeFailed.model_validate({**at, "message": str(error)}))
            return None
        identity = candidate.identity
        if identity in self.tree.nodes:
            self._record(Linked.model_validate({**at, "child": identity}))
            return None
        self._record(
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
        plunge = not any(n.measured for n in self.tree.nodes.values() if n.parents)
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
            self._pause()
            edge = max(free, key=lambda edge: (edge.strategy.prior, -edge.index))
            child = self._realize(edge)
            if child is None:
                if edge.failed:
                    continue
                return  # it leads to a known state: nothing new lies on this way
            node = child
            passed += 1
        first = self._evaluate(node, self._inherited(node))
        if node.identity == self.tree.root or first.correct:
            self._propose(node)
        if first.correct:
            self._race(node)
            self._pause_for_time()
            self._challenge(node)

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

    def _evaluate(self, node: Node, config: Config) -> Evaluation:
        """The journaled evaluation, or a new one; a lost one is tried once more, then believed."""
        first = next(iter(node.measured.values()), None)
        key = config_key(config)
        if key in node.measured:
            return node.measured[key]
        if first is not None and not first.correct:
            return first
        while True:
            self._pause()
            evaluation = self.evaluator.evaluate(self._request(node, config))
            self._record(Evaluated(node=node.identity, config=config, evaluation=evaluation))
            again = evaluation.verdict is Verdict.LOST
            if not again or node.lost.get(key, 0) >= LOST_ATTEMPTS:
                return evaluation

    def _race(self, node: Node) -> None:
        """More configs for a node near the best, and more of them for a new leader."""
        if node.identity == self.tree.root:
            return
        racing = self.racing
        while (mine := _reward(node.best)) is not None:
            best = self._best_reward(node)
            if best is not None and mine < best - racing.margin:
                return
            leads = best is None or mine > best
            config = next_config(
                node.candidate.tunables,
                [Trial(e.config, cautious(e)) for e in node.measured.values()],
                neighbours=racing.leader_neighbours if leads else racing.neighbours,
                limit=racing.leader_limit if leads else racing.neighbours + 1,
                seed=self.seed,
            )
            if config is None:
                return
            self._evaluate(node, config)

    def _best_reward(self, node: Node) -> float | None:
        """The reward to be near to, of any other state; None: the first of all."""
        others = [
            reward
            for other in self.tree.nodes.values()
            if other is not node and (reward := _reward(other.best)) is not None
        ]
        return max(others, default=None)

    def _challenge(self, node: Node) -> bool:
        """Lets a node's best config meet the incumbent where it looks better; whether they met."""
        incumbent, best = self.tree.incumbent, node.best
        if best is None or node.identity == self.tree.root:
            return False
        challenger = Record(node=node.identity, config=best.config)
        to_beat = _reward(evaluation_of(self.tree, incumbent)) or 0.0
        if challenger == incumbent or (best.reward or 0.0) <= to_beat:
            return False
        if duel_key(node.identity, best.config, incumbent) in self.tree.refused:
            return False
        self._halt_if_stopped()
        against = None
        if incumbent is not None:
            against = self._request(self.tree.nodes[incumbent.node], incumbent.config)
        duel = self.evaluator.duel(self._request(node, best.config), against)
        self._record(
            Dueled(
                node=node.identity,
                config=best.config,
                incumbent=incumbent,
                duel=duel,
                accepted=duel.challenger.correct and duel.gain_low > 0,
            )
        )
        return True

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
        self._record(
            Proposed(
                node=node.identity,
                strategies=tuple(strategies),
                finding=finding,
                message=message,
            )
        )

    def _finish(self, reason: str) -> Result:
        """Measures the best once more, alone against the baseline; if it fails, the one before."""
        self._last_challenges()
        verified: Duel | None = None
        while (best := self.tree.incumbent) is not None:
            self._halt_if_stopped()
            node = self.tree.nodes[best.node]
            duel = self.evaluator.duel(self._request(node, best.config), None)
            lost = duel.challenger.verdict is Verdict.LOST
            confirmed = duel.challenger.correct and duel.gain_low > 0
            if lost or confirmed:
                verified = duel
            self._record(
                Reverified(
                    node=best.node, config=best.config, duel=duel, confirmed=lost or confirmed
                )
            )
            if verified is not None:
                break
        self._record(Finished(reason=reason, best=self.tree.incumbent, reverified=verified))
        return self._result(reason, finished=True, reverified=verified)

    def _last_challenges(self) -> None:
        """A budget may end between a good measurement and its duel: this is the time for it."""
        for _ in range(self.racing.last_duels):
            leader = max(
                (n for n in self.tree.nodes.values() if n.best and n.identity != self.tree.root),
                key=lambda node: _reward(node.best) or 0.0,
                default=None,
            )
            spend = spent(self.journal.events, now=self.clock())
            late = self.budget.seconds is not None and spend.seconds >= self.budget.seconds
            if leader is None or late or not self._challenge(leader):
                return

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

    def _request(self, node: Node, config: Config) -> EvaluationRequest:
        return EvaluationRequest(problem=self.problem, candidate=node.candidate, config=config)

    def _pause(self) -> None:
        """Where a search may end: between two steps, before anything is measured."""
        self._halt_if_stopped()
        reason = self.budget.exhausted(spent(self.journal.events, now=self.clock()))
        if reason is not None:
            raise _Halt(reason, finished=True)

    def _pause_for_time(self) -> None:
        """As `_pause`, where no evaluation is about to be spent."""
        self._halt_if_stopped()
        limit = self.budget.only_time()
        reason = limit.exhausted(spent(self.journal.events, now=self.clock()))
        if reason is not None:
            raise _Halt(reason, finished=True)

    def _halt_if_stopped(self) -> None:
        if self.stop():
            raise _Halt("interrupted", finished=False)

    def _record(self, event: SearchEvent) -> None:
        self.journal.append(event.kind, to_data(event))
        self.tree.apply(event)
        self.on_event(event, self.tree)


def _promising(strategy: Strategy) -> bool:
    return strategy.enabling or strategy.expected_gain > _NEGLIGIBLE


def _unsettled(node: Node) -> bool:
    """Neither measured nor passed through."""
    return not node.measured and all(edge.child is None for edge in node.edges or ())


def _reward(evaluation: Evaluation | None) -> float | None:
    if evaluation is None or not evaluation.correct:
        return None
    return evaluation.reward


def _outcomes(tree: Tree) -> list[_Tried]:
    """Every step tried so far whose outcome is known."""
    found = []
    for node in tree.nodes.values():
        before = _reward(node.best)
        for edge in node.edges or ():
            child = None if edge.child is None else tree.nodes[edge.child]
            if edge.failed:
                found.append(_Tried(edge.strategy, correct=False, gain=None))
            elif child is not None and child.measured:
                after = _reward(child.best)
                gain = None if after is None or before is None else after - before
                found.append(_Tried(edge.strategy, correct=child.correct, gain=gain))
    return found
