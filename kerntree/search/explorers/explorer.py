"""What an explorer is asked, and what all of them need to know of a tree."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from kerntree.search.tree import Edge, Node, Tree


@dataclass(frozen=True)
class Expansion:
    """One step to try: the `index`-th strategy proposed at a node."""

    node: str
    index: int


class Explorer(Protocol):
    """Decides where to go next. Holds settings only: all state is in the tree.

    `ask` returns at most `n` different untried steps, none of them `pending`; fewer (none) only
    where the tree holds no more. `step` numbers the asks; with the seed it fixes every random
    choice, so that the same tree and step give the same answer.
    """

    def ask(
        self, tree: Tree, n: int, *, step: int, pending: Collection[Expansion] = ()
    ) -> list[Expansion]: ...


def untried(node: Node, taken: Collection[Expansion]) -> list[Edge]:
    """The steps of a node not tried and not taken, by falling prior."""
    free = [
        edge
        for edge in node.edges or ()
        if not edge.tried and Expansion(node.identity, edge.index) not in taken
    ]
    return sorted(free, key=lambda edge: (-edge.strategy.prior, edge.index))
