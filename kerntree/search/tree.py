"""The tree of a search: program states, joined by the steps that lead from one to another.

A node is a state and not a path, so that the tree is a directed graph without cycles: a state
reached in two ways has two parents. Visits are kept on edges; whatever is said of a node's worth is
computed from the measurements (`reward`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kerntree.cache.digest import canonical
from kerntree.cache.journal import Event
from kerntree.plans.candidate import Candidate, Config
from kerntree.plans.evaluation import Baseline, Duel, Evaluation, Verdict
from kerntree.plans.finding import Finding
from kerntree.plans.strategy import Plan, Strategy
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
    Replayed,
    Resumed,
    Reverified,
    RunStarted,
    SearchEvent,
    Stopped,
    decode,
)

LOST_ATTEMPTS = 2


@dataclass
class Edge:
    """One proposed step. `child` is None until it is tried, and where it `failed`.

    `visits` counts the steps tried in the part of the tree that the edge leads to, this one
    included. A `loop` leads back to a state above and is never followed.
    """

    parent: str
    index: int
    strategy: Strategy
    child: str | None = None
    failed: bool = False
    loop: bool = False
    visits: int = 0
    message: str = ""

    @property
    def tried(self) -> bool:
        return self.failed or self.child is not None


@dataclass
class Node:
    """A state. `measured` holds the latest evaluation by config (canonical text).

    `edges` is None until strategies were proposed. `parents` are the edges that lead here, the
    first found first.
    """

    identity: str
    candidate: Candidate
    parents: list[tuple[str, int]] = field(default_factory=list)
    edges: list[Edge] | None = None
    measured: dict[str, Evaluation] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    finding: Finding | None = None
    visits: int = 0

    @property
    def correct(self) -> bool:
        return any(evaluation.correct for evaluation in self.measured.values())

    @property
    def failed(self) -> bool:
        """Every config tried so far came to nothing."""
        return bool(self.measured) and not self.correct

    @property
    def best(self) -> Evaluation | None:
        """The correct evaluation with the highest reward."""
        timed = [e for e in self.measured.values() if e.correct and e.reward is not None]
        return max(timed, key=lambda e: e.reward or 0.0, default=None)


@dataclass
class Tree:
    """The state of a search. Changed by `apply` alone."""

    nodes: dict[str, Node] = field(default_factory=dict)
    root: str | None = None
    baselines: tuple[Baseline, ...] | None = None
    records: list[Record] = field(default_factory=list)
    refused: set[tuple[str, str, str]] = field(default_factory=set)
    steps: int = 0
    evaluations: int = 0
    last_evaluated: str | None = None
    reverified: Duel | None = None
    replayed: Replayed | None = None
    seed: int | None = None
    ended: str | None = None

    @property
    def incumbent(self) -> Record | None:
        """What is to be beaten; None: the baseline."""
        return self.records[-1] if self.records else None

    def apply(self, event: SearchEvent) -> None:
        """Takes in one event; the same events in the same order give the same tree."""
        match event:
            case RunStarted():
                self.seed = event.seed
            case BaselinesMeasured():
                self.baselines = event.baselines
            case NodeAdded():
                self.nodes.setdefault(event.identity, Node(event.identity, event.candidate))
                if event.parent is None or event.strategy is None:
                    self.root = event.identity
                else:
                    self._link(event.parent, event.strategy, event.identity)
            case Proposed():
                node = self.nodes[event.node]
                node.finding = event.finding
                node.edges = [
                    Edge(event.node, index, strategy)
                    for index, strategy in enumerate(event.strategies)
                ]
            case Linked():
                self._link(event.parent, event.strategy, event.child)
            case RealizeFailed():
                edge = self.edge(event.parent, event.strategy)
                edge.failed, edge.message = True, event.message
                self._visit(edge)
            case Evaluated():
                self.evaluations += 1
                self.last_evaluated = event.node
                self._measure(event.node, event.config, event.evaluation)
            case Dueled():
                self._measure(event.node, event.config, event.duel.challenger)
                if event.accepted:
                    self.records.append(Record(node=event.node, config=event.config))
                else:
                    self.refused.add(duel_key(event.node, event.config, event.incumbent))
            case Reverified():
                self._measure(event.node, event.config, event.duel.challenger)
                if not event.confirmed:
                    gone = Record(node=event.node, config=event.config)
                    self.records = [record for record in self.records if record != gone]
                    self.refused.add(duel_key(event.node, event.config, None))
            case Replayed():
                self.replayed = event
            case Stopped() | Finished():
                self.ended = event.reason
                self.reverified = getattr(event, "reverified", None)
            case Resumed():
                self.ended = None
            case BudgetSet():
                pass

    def edge(self, node: str, index: int) -> Edge:
        """A proposed step; raises `KeyError` where there is none."""
        edges = self.nodes[node].edges
        if edges is None or not 0 <= index < len(edges):
            raise KeyError(f"node {node[:12]} has no proposed step {index}")
        return edges[index]

    def _link(self, parent: str, index: int, child: str) -> None:
        edge = self.edge(parent, index)
        edge.child = child
        edge.loop = child in ancestors(self, parent)
        if not edge.loop:
            self.nodes[child].parents.append((parent, index))
        self._visit(edge)

    def _visit(self, edge: Edge) -> None:
        """Counts one tried step at every state above it, once each however many ways lead there."""
        self.steps += 1
        edge.visits += 1
        above = ancestors(self, edge.parent)
        for identity in above:
            node = self.nodes[identity]
            node.visits += 1
            for parent, index in node.parents:
                self.edge(parent, index).visits += 1

    def _measure(self, node: str, config: Config, evaluation: Evaluation) -> None:
        key = config_key(config)
        state = self.nodes[node]
        if evaluation.verdict is Verdict.LOST:
            state.lost[key] = state.lost.get(key, 0) + 1
            if key in state.measured or state.lost[key] < LOST_ATTEMPTS:
                return
        state.measured[key] = evaluation


def fold(events: Iterable[Event]) -> Tree:
    """The tree that a journal's events make."""
    tree = Tree()
    for event in events:
        known = decode(event)
        if known is not None:
            tree.apply(known)
    return tree


def config_key(config: Config) -> str:
    """The one text of a config."""
    return canonical(config)


def duel_key(node: str, config: Config, incumbent: Record | None) -> tuple[str, str, str]:
    """What a duel was about, whoever won."""
    against = "" if incumbent is None else f"{incumbent.node} {config_key(incumbent.config)}"
    return node, config_key(config), against


def ancestors(tree: Tree, identity: str) -> dict[str, None]:
    """The state itself and every state above it, nearest first."""
    seen = {identity: None}
    waiting = [identity]
    for current in waiting:
        for parent, _ in tree.nodes[current].parents:
            if parent not in seen:
                seen[parent] = None
                waiting.append(parent)
    return seen


def children_first(tree: Tree) -> Iterator[Node]:
    """Every state, each after all states below it."""
    done: set[str] = set()
    for start in tree.nodes:
        stack = [(start, False)]
        while stack:
            identity, expanded = stack.pop()
            if identity in done:
                continue
            if expanded:
                done.add(identity)
                yield tree.nodes[identity]
                continue
            stack.append((identity, True))
            for edge in tree.nodes[identity].edges or ():
                if edge.child is not None and not edge.loop and edge.child not in done:
                    stack.append((edge.child, False))


def best_parent(tree: Tree, node: Node) -> tuple[str, int] | None:
    """The edge to a state from its best measured parent; the first found where none is."""
    if not node.parents:
        return None

    def reward(link: tuple[str, int]) -> float:
        best = tree.nodes[link[0]].best
        return float("-inf") if best is None or best.reward is None else best.reward

    return max(node.parents, key=reward)


def plan_of(tree: Tree, identity: str) -> Plan:
    """The steps from the root to a state, along best parents."""
    steps: list[Strategy] = []
    node = tree.nodes[identity]
    while (link := best_parent(tree, node)) is not None:
        steps.append(tree.edge(*link).strategy)
        node = tree.nodes[link[0]]
    return tuple(reversed(steps))


def evaluation_of(tree: Tree, record: Record | None) -> Evaluation | None:
    """The latest evaluation of a record."""
    if record is None:
        return None
    return tree.nodes[record.node].measured.get(config_key(record.config))
