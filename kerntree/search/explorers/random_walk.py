"""Any open step, each as likely as any other: what every policy must beat."""

import random
from collections.abc import Collection
from dataclasses import dataclass

from kerntree.search.explorers.explorer import Expansion, untried
from kerntree.search.tree import Tree


@dataclass(frozen=True, kw_only=True)
class RandomExplorer:
    """Implements `Explorer`."""

    seed: int = 0

    def ask(
        self, tree: Tree, n: int, *, step: int, pending: Collection[Expansion] = ()
    ) -> list[Expansion]:
        """At most `n` untried steps, drawn without regard to priors or measurements."""
        taken = set(pending)
        free = [
            Expansion(node.identity, edge.index)
            for node in tree.nodes.values()
            for edge in untried(node, taken)
        ]
        return random.Random(f"{self.seed}:{step}").sample(free, min(n, len(free)))
