"""ε-greedy best-first search whose root is throttled (as in STARK, 2025)."""

import random
from collections.abc import Collection
from dataclasses import dataclass

from kerntree.search.explorers.explorer import Expansion, untried
from kerntree.search.reward import worth
from kerntree.search.tree import Node, Tree


@dataclass(frozen=True, kw_only=True)
class BestFirstExplorer:
    """Implements `Explorer`: the best open state, or with probability `epsilon` any open one.

    A state stops being asked once `root_children` (the root) or `children` (any other) of its
    steps were tried, as long as another one is left.
    """

    seed: int = 0
    epsilon: float = 0.35
    root_children: int = 5
    children: int = 3

    def ask(
        self, tree: Tree, n: int, *, step: int, pending: Collection[Expansion] = ()
    ) -> list[Expansion]:
        """At most `n` untried steps."""
        source = random.Random(f"{self.seed}:{step}")
        known = worth(tree)
        taken = set(pending)
        found: list[Expansion] = []
        for _ in range(n):
            open_nodes = [node for node in tree.nodes.values() if untried(node, taken)]
            if not open_nodes:
                break
            below = [node for node in open_nodes if not self._full(tree, node, taken)]
            choice = below or open_nodes
            if source.random() < self.epsilon:
                node = source.choice(choice)
            else:
                node = max(choice, key=lambda node: known.own[node.identity])
            expansion = Expansion(node.identity, untried(node, taken)[0].index)
            found.append(expansion)
            taken.add(expansion)
        return found

    def _full(self, tree: Tree, node: Node, taken: Collection[Expansion]) -> bool:
        limit = self.root_children if node.identity == tree.root else self.children
        waiting = sum(expansion.node == node.identity for expansion in taken)
        return sum(edge.tried for edge in node.edges or ()) + waiting >= limit
