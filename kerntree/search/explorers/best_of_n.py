"""Independent descents from the root, each by priors and blind to every measurement."""

import random
from collections.abc import Collection
from dataclasses import dataclass

from kerntree.search.explorers.explorer import Expansion, untried
from kerntree.search.reward import worth
from kerntree.search.tree import Edge, Node, Tree


@dataclass(frozen=True, kw_only=True)
class BestOfNExplorer:
    """Implements `Explorer`: a descent goes on from the newest state down to `depth`.

    Every choice is drawn by prior.
    """

    seed: int = 0
    depth: int = 6

    def ask(
        self, tree: Tree, n: int, *, step: int, pending: Collection[Expansion] = ()
    ) -> list[Expansion]:
        """At most `n` untried steps."""
        source = random.Random(f"{self.seed}:{step}")
        taken = set(pending)
        found: list[Expansion] = []
        for _ in range(n):
            expansion = self._next(tree, source, taken)
            if expansion is None:
                break
            found.append(expansion)
            taken.add(expansion)
        return found

    def _next(self, tree: Tree, source: random.Random, taken: set[Expansion]) -> Expansion | None:
        newest = next(reversed(tree.nodes.values()), None)
        if newest is None or tree.root is None:
            return None
        if not taken and untried(newest, taken) and _depth(tree, newest) < self.depth:
            edge = _drawn(untried(newest, taken), source)
            return Expansion(newest.identity, edge.index)
        is_open = worth(tree).open
        node = tree.nodes[tree.root]
        while True:
            free = untried(node, taken)
            follow = [
                e
                for e in node.edges or ()
                if e.child is not None and not e.loop and is_open[e.child]
            ]
            # A new descent takes a new step as soon as it can.
            if free:
                return Expansion(node.identity, _drawn(free, source).index)
            if not follow:
                return _any(tree, source, taken)
            child = _drawn(follow, source).child
            assert child is not None
            node = tree.nodes[child]


def _drawn(edges: list[Edge], source: random.Random) -> Edge:
    weights = [edge.strategy.prior + 1e-6 for edge in edges]
    return source.choices(edges, weights=weights)[0]


def _depth(tree: Tree, node: Node) -> int:
    depth = 0
    while node.parents:
        node = tree.nodes[node.parents[0][0]]
        depth += 1
    return depth


def _any(tree: Tree, source: random.Random, taken: set[Expansion]) -> Expansion | None:
    free = [(node, edge) for node in tree.nodes.values() for edge in untried(node, taken)]
    if not free:
        return None
    node, edge = source.choice(free)
    return Expansion(node.identity, edge.index)
