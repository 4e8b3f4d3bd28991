"""Where to go next: explorers by name, all behind one protocol."""

from collections.abc import Callable

from kerntree.plans.errors import SettingsError
from kerntree.search.explorers.best_first import BestFirstExplorer
from kerntree.search.explorers.best_of_n import BestOfNExplorer
from kerntree.search.explorers.explorer import Expansion, Explorer
from kerntree.search.explorers.mcts import MctsExplorer
from kerntree.search.explorers.random_walk import RandomExplorer

EXPLORERS: dict[str, Callable[[int], Explorer]] = {
    "mcts": lambda seed: MctsExplorer(seed=seed),
    "best-first": lambda seed: BestFirstExplorer(seed=seed),
    "random": lambda seed: RandomExplorer(seed=seed),
    "best-of-n": lambda seed: BestOfNExplorer(seed=seed),
}


def explorer_named(name: str, *, seed: int = 0) -> Explorer:
    """The explorer of that name; raises `SettingsError` for any other name."""
    if name not in EXPLORERS:
        raise SettingsError(f"no explorer is named {name}: choose from {', '.join(EXPLORERS)}")
    return EXPLORERS[name](seed)


__all__ = ["EXPLORERS", "Expansion", "Explorer", "explorer_named"]
