"""Monte Carlo tree search for one best kernel: PUCT over a graph of states.

Differs from the game-playing kind (Silver et al. 2017) in that values are maxima of cautious
rewards and not means, and that a failure lowers the odds of its kind of step and not the worth of
its parent. The width of a node grows with its visits (Couëtoux et al. 2011).
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import ceil, inf, sqrt

from kerntree.search.explorers.explorer import Expansion, untried
from kerntree.search.reward import Odds, Worth, odds, worth
from kerntree.search.tree import Edge, Node, Tree, ancestors, children_first


@dataclass(frozen=True, kw_only=True)
class MctsExplorer:
    """Implements `Explorer`; deterministic, so that its seed changes nothing.

    A state is worth the best measured below it, or what an untried step there is hoped to bring:
    its own value and `trust` × the gain that the cost model expects. So a step that wins nothing
    by itself is followed for what it makes possible.

    `exploration` weighs priors against values; a node shows `width` × (visits + 1) ^ `widening`
    of its steps.
    """

    seed: int = 0
    exploration: float = 1.2
    trust: float = 0.5
    width: float = 4.0
    widening: float = 0.5

    def ask(
        self, tree: Tree, n: int, *, step: int, pending: Collection[Expansion] = ()
    ) -> list[Expansion]:
        """At most `n` untried steps, the most promising first."""
        if tree.root is None:
            return []
        known, chances = worth(tree), odds(tree)
        hopes = self._hopes(tree, known, chances)
        taken = list(pending)
        virtual: dict[tuple[str, int], int] = {}
        for expansion in taken:
            self._count(tree, expansion, virtual)
        found: list[Expansion] = []
        for _ in range(n):
            chosen = self._descend(tree, known, hopes, chances, set(taken), virtual)
            if chosen is None:
                break
            found.append(chosen)
            taken.append(chosen)
            self._count(tree, chosen, virtual)
        return found

    def _descend(
        self,
        tree: Tree,
        known: Worth,
        hopes: dict[str, float],
        chances: Odds,
        taken: set[Expansion],
        virtual: dict[tuple[str, int], int],
    ) -> Expansion | None:
        is_open = _still_open(tree, known, taken)
        assert tree.root is not None
        node = tree.nodes[tree.root]
        while is_open.get(node.identity, False):
            edge = self._select(tree, node, known, hopes, chances, taken, virtual, is_open)
            if edge.child is None:
                return Expansion(node.identity, edge.index)
            node = tree.nodes[edge.child]
        return None

    def _select(
        self,
        tree: Tree,
        node: Node,
        known: Worth,
        hopes: dict[str, float],
        chances: Odds,
        taken: set[Expansion],
        virtual: dict[tuple[str, int], int],
        is_open: dict[str, bool],
    ) -> Edge:
        edges = node.edges or []
        waiting = {e.index: virtual.get((node.identity, e.index), 0) for e in edges}
        visits = sum(edge.visits + waiting[edge.index] for edge in edges)
        follow = [
            e for e in edges if e.child is not None and not e.loop and is_open.get(e.child, False)
        ]
        shown = ceil(self.width * (visits + 1) ** self.widening)
        tried = sum(edge.tried for edge in edges)
        free = untried(node, taken)
        fresh = free[: max(shown - tried, 0 if follow else 1)]
        mass = sum(e.strategy.prior for e in edges) or 1.0

        highest = max(known.high, *hopes.values())
        known = replace(known, high=highest)

        def score(edge: Edge) -> float:
            if edge.child is None:
                value = known.scaled(self._hoped(known.own[node.identity], edge))
                value *= chances.of(edge.strategy.kind)
            else:
                below = known.below[edge.child]
                value = known.scaled(max(-inf if below is None else below, hopes[edge.child]))
            prior = edge.strategy.prior / mass
            count = edge.visits + waiting[edge.index]
            return value + self.exploration * prior * sqrt(visits + 1) / (1 + count)

        return max([*follow, *fresh], key=lambda edge: (score(edge), -edge.index))

    def _hoped(self, own: float, edge: Edge) -> float:
        return own + self.trust * max(edge.strategy.expected_gain, 0.0)

    def _hopes(self, tree: Tree, known: Worth, chances: Odds) -> dict[str, float]:
        """The highest hope in the part of the tree below each state; -inf where nothing is left.

        A gain is hoped for as far as its kind of step succeeds.
        """
        hopes: dict[str, float] = {}
        for node in children_first(tree):
            own = known.own[node.identity]
            hope = -inf
            for edge in node.edges or ():
                if edge.child is not None:
                    hope = max(hope, -inf if edge.loop else hopes[edge.child])
                elif not edge.failed:
                    gain = self._hoped(own, edge) - own
                    hope = max(hope, own + gain * chances.of(edge.strategy.kind))
            hopes[node.identity] = hope
        return hopes

    def _count(self, tree: Tree, expansion: Expansion, virtual: dict[tuple[str, int], int]) -> None:
        """A step in flight weighs on its way as if it had been tried."""
        keys = [(expansion.node, expansion.index)]
        for identity in ancestors(tree, expansion.node):
            keys.extend(tree.nodes[identity].parents)
        for key in keys:
            virtual[key] = virtual.get(key, 0) + 1


def _still_open(tree: Tree, known: Worth, taken: set[Expansion]) -> dict[str, bool]:
    """`Worth.open` with the taken steps gone."""
    if not taken:
        return known.open
    result: dict[str, bool] = {}
    for node in children_first(tree):
        result[node.identity] = bool(untried(node, taken)) or any(
            result[e.child] for e in node.edges or () if e.child is not None and not e.loop
        )
    return result
