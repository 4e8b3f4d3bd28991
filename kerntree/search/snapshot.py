"""A run at a moment, as plain data: what every view is drawn from."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from kerntree.cache.journal import Event
from kerntree.plans.candidate import Config
from kerntree.plans.evaluation import Baseline, Evaluation, Replay
from kerntree.plans.strategy import words
from kerntree.search.budget import Budget, Spend, spent
from kerntree.search.events import (
    BudgetSet,
    Dueled,
    Evaluated,
    Finished,
    RealizeFailed,
    Record,
    Resumed,
    Stopped,
    decode,
)
from kerntree.search.tree import Node, Tree, best_parent, evaluation_of

Status = Literal["measured", "passed", "failed", "unevaluated"]


@dataclass(frozen=True)
class Speedup:
    """Times faster than the baseline, with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class NodeView:
    """One state.

    `step` is the strategy that leads here from the best parent ("" for the root), `plan` all steps
    from the root. `verdict`, `message` and `config` are those of the best evaluation, or of the
    last failed one. `untried` counts proposed steps not tried yet.
    """

    identity: str
    parents: tuple[str, ...]
    best_parent: str | None
    step: str
    plan: tuple[str, ...]
    status: Status
    visits: int
    speedup: Speedup | None
    verdict: str
    message: str
    config: Config
    configs_tried: int
    untried: int


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The whole run.

    `best` is the record, `best_path` the states from the root to it, `leader` the state with the
    highest measured reward, which need not have won a duel. `replay` is the record's reading as
    CUDA graphs. `ended` is why the run is not being searched; None: it is, or was killed.
    """

    nodes: dict[str, NodeView]
    root: str | None
    best: Record | None
    best_evaluation: Evaluation | None
    best_path: tuple[str, ...]
    replay: Replay | None
    leader: str | None
    leader_evaluation: Evaluation | None
    baselines: tuple[Baseline, ...]
    verdicts: dict[str, int]
    realize_failures: int
    duels: int
    memo_hits: int
    evaluations: int
    budget: Budget
    spend: Spend
    finished: bool
    ended: str | None


def snapshot(events: Iterable[Event], *, now: float | None = None) -> Snapshot:
    """What a journal's events say; `now` (unix time) for the clock of a run under way.

    Raises `CacheError` if an event was written by another version.
    """
    events = tuple(events)
    tree = Tree()
    verdicts: Counter[str] = Counter()
    duels = memo_hits = failures = 0
    budget, finished = Budget(), False
    for event in events:
        typed = decode(event)
        if typed is None:
            continue
        tree.apply(typed)
        match typed:
            case Evaluated():
                verdicts[str(typed.evaluation.verdict)] += 1
                memo_hits += typed.evaluation.from_memo
            case Dueled():
                duels += 1
            case RealizeFailed():
                failures += 1
            case BudgetSet():
                budget = Budget(evaluations=typed.evaluations, seconds=typed.seconds)
            case Finished():
                finished = True
            case Resumed() | Stopped():
                finished = False
    spend = spent(events, now=now if tree.ended is None else None)
    return Snapshot(
        nodes={node.identity: _view(tree, node) for node in tree.nodes.values()},
        root=tree.root,
        best=tree.incumbent,
        best_evaluation=evaluation_of(tree, tree.incumbent),
        best_path=() if tree.incumbent is None else _path(tree, tree.incumbent.node),
        replay=_replay(tree),
        leader=(leader := _leader(tree)),
        leader_evaluation=None if leader is None else tree.nodes[leader].best,
        baselines=tree.baselines or (),
        verdicts=dict(verdicts),
        realize_failures=failures,
        duels=duels,
        memo_hits=memo_hits,
        evaluations=tree.evaluations,
        budget=budget,
        spend=spend,
        finished=finished,
        ended=tree.ended,
    )


def speedup(evaluation: Evaluation | None) -> Speedup | None:
    """The ratio to the baseline that an evaluation measured."""
    if evaluation is None or not evaluation.correct or evaluation.reward is None:
        return None
    low = evaluation.reward if evaluation.reward_low is None else evaluation.reward_low
    high = evaluation.reward if evaluation.reward_high is None else evaluation.reward_high
    return Speedup(2.0**evaluation.reward, 2.0**low, 2.0**high)


def _view(tree: Tree, node: Node) -> NodeView:
    link = best_parent(tree, node)
    path = _path(tree, node.identity)
    shown = node.best or next(reversed(node.measured.values()), None)
    steps = []
    for identity in path[1:]:
        above = best_parent(tree, tree.nodes[identity])
        steps.append("" if above is None else words(tree.edge(*above).strategy))
    return NodeView(
        identity=node.identity,
        parents=tuple(parent for parent, _ in node.parents),
        best_parent=None if link is None else link[0],
        step=steps[-1] if steps else "",
        plan=tuple(steps),
        status=_status(node),
        visits=node.visits,
        speedup=speedup(node.best),
        verdict="" if shown is None else str(shown.verdict),
        message="" if shown is None else shown.message,
        config=dict(node.candidate.config if shown is None else shown.config),
        configs_tried=len(node.measured),
        untried=sum(not edge.tried for edge in node.edges or ()),
    )


def _status(node: Node) -> Status:
    if node.correct:
        return "measured"
    if node.measured:
        return "failed"
    return "passed" if any(edge.child is not None for edge in node.edges or ()) else "unevaluated"


def _path(tree: Tree, identity: str) -> tuple[str, ...]:
    """The states from the root to this one, along best parents."""
    path = [identity]
    while (link := best_parent(tree, tree.nodes[path[-1]])) is not None:
        path.append(link[0])
    return tuple(reversed(path))


def _replay(tree: Tree) -> Replay | None:
    """The record's reading as CUDA graphs, not that of one before it."""
    event, best = tree.replayed, tree.incumbent
    if event is None or best is None or (event.node, event.config) != (best.node, best.config):
        return None
    return event.replay


def _leader(tree: Tree) -> str | None:
    timed = [(node.best.reward or 0.0, node.identity) for node in tree.nodes.values() if node.best]
    return max(timed)[1] if timed else None
