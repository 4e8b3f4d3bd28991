"""What a state is worth: a cautious reading of noisy measurements, and its place in the range."""

from dataclasses import dataclass

from kerntree.plans.evaluation import Evaluation
from kerntree.search.tree import Node, Tree, children_first


def cautious(evaluation: Evaluation) -> float | None:
    """The lower end of the reward's interval (log2), so that a lucky timing promises little."""
    if not evaluation.correct or evaluation.reward is None:
        return None
    low = evaluation.reward_low
    return evaluation.reward if low is None else min(low, evaluation.reward)


def value(node: Node) -> float | None:
    """The best cautious reward over the configs of a state; None where nothing was timed."""
    known = [v for v in map(cautious, node.measured.values()) if v is not None]
    return max(known, default=None)


@dataclass(frozen=True)
class Worth:
    """What the whole tree says of each state.

    `own` is its value, or the best of its parents' where it was only passed through; `below` the
    best value in the part of the tree under it, itself included; `open` whether anything can still
    be tried there.
    """

    own: dict[str, float]
    below: dict[str, float | None]
    open: dict[str, bool]
    low: float
    high: float

    def scaled(self, reward: float | None) -> float:
        """A reward's place between the worst and the best one known, within [0, 1]."""
        if reward is None:
            return 0.0
        if self.high <= self.low:
            return 0.5
        return min(max((reward - self.low) / (self.high - self.low), 0.0), 1.0)


def worth(tree: Tree) -> Worth:
    """One pass over the tree."""
    order = list(children_first(tree))
    below: dict[str, float | None] = {}
    is_open: dict[str, bool] = {}
    for node in order:
        follow = [e.child for e in node.edges or () if e.child is not None and not e.loop]
        untried = any(not edge.tried for edge in node.edges or ())
        values = [value(node), *(below[child] for child in follow)]
        below[node.identity] = max((v for v in values if v is not None), default=None)
        is_open[node.identity] = untried or any(is_open[child] for child in follow)
    known = [v for v in map(value, order) if v is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    own: dict[str, float] = {}
    for node in reversed(order):
        inherited = max((own[parent] for parent, _ in node.parents), default=low)
        mine = value(node)
        own[node.identity] = inherited if mine is None else mine
    return Worth(own=own, below=below, open=is_open, low=low, high=high)


@dataclass(frozen=True)
class Odds:
    """How often each kind of step led to a correct candidate, with one imagined success."""

    correct: dict[str, int]
    tried: dict[str, int]

    def of(self, kind: str) -> float:
        """The estimated probability that a step of this kind succeeds."""
        return (1.0 + self.correct.get(kind, 0)) / (1.0 + self.tried.get(kind, 0))


def odds(tree: Tree) -> Odds:
    """Counted over all tried steps whose outcome is known."""
    correct: dict[str, int] = {}
    tried: dict[str, int] = {}
    for node in tree.nodes.values():
        for edge in node.edges or ():
            child = None if edge.child is None else tree.nodes[edge.child]
            if not edge.failed and (child is None or not child.measured):
                continue
            kind = edge.strategy.kind
            tried[kind] = tried.get(kind, 0) + 1
            correct[kind] = correct.get(kind, 0) + bool(child is not None and child.correct)
    return Odds(correct=correct, tried=tried)
