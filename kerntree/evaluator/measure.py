"""Measuring several children in turn on one case. Who they are does not matter here."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from kerntree.evaluator.session import CandidateFailed
from kerntree.evaluator.settings import TimingRules
from kerntree.evaluator.timing import BlockTimes, calls_per_block

Blocks = dict[str, list[BlockTimes]]


class Timed(Protocol):
    """A child that can be asked for timed calls."""

    def time(self, slots: Sequence[int], *, warmup: int, timeout: float) -> BlockTimes: ...


class SideFailed(Exception):
    """One of the sides died while it was measured."""

    def __init__(self, side: str, failure: CandidateFailed) -> None:
        super().__init__(f"{side}: {failure.message}")
        self.side = side
        self.failure = failure


def interleaved(
    sides: Mapping[str, Timed],
    *,
    slots: Sequence[int],
    rules: TimingRules,
    timeout: float,
    stop: Callable[[Blocks], bool],
    draw: Callable[[int], int],
    after: Callable[[str, int], None] = lambda side, slot: None,
    rest: Callable[[str], None] = lambda side: None,
) -> Blocks:
    """Blocks of every side, taken in turn: ABC, CBA, ABC, …; as many of each.

    Every side first makes one unmeasured block. A block's calls go through `slots` in an order
    drawn by `draw` (`draw(n)` in [0, n)), the same for all sides of a round; their number varies,
    so that nobody can tell the last call of a block. `after(side, slot)` follows each block, with
    the slot of its last call, and `rest(side)` ends its turn. `stop` sees all blocks after each
    round. Raises `SideFailed`.
    """
    warm = {}
    for name, side in sides.items():
        warm[name] = _block(name, side, slots[:1], warmup=rules.warmup, timeout=timeout)
        _rested(name, rest)
    # a call's copies of its inputs take about as long as a call that is bound by memory
    slowest = max(2 * block.median_ns for block in warm.values())
    most = calls_per_block(slowest / 1e9, rules)
    blocks: Blocks = {name: [] for name in sides}
    order = list(sides)
    while True:
        calls = most - draw(most // 4 + 1)
        picks = [slots[draw(len(slots))] for _ in range(calls)]
        for name in order:
            blocks[name].append(_block(name, sides[name], picks, warmup=0, timeout=timeout))
            after(name, picks[-1])
            _rested(name, rest)
        if stop(blocks):
            return blocks
        order.reverse()


def _rested(name: str, rest: Callable[[str], None]) -> None:
    try:
        rest(name)
    except CandidateFailed as failure:
        raise SideFailed(name, failure) from failure


def _block(
    name: str, side: Timed, slots: Sequence[int], *, warmup: int, timeout: float
) -> BlockTimes:
    try:
        return side.time(slots, warmup=warmup, timeout=timeout)
    except CandidateFailed as failure:
        raise SideFailed(name, failure) from failure
