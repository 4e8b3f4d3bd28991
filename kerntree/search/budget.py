"""How much a run may spend, and what it has spent: a fold of its journal."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from kerntree.cache.journal import Event
from kerntree.plans.errors import SettingsError


@dataclass(frozen=True, kw_only=True)
class Spend:
    """What was spent so far: evaluations (those that the memo answered too) and active seconds."""

    evaluations: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limits, whichever is reached first; None: none of that sort.

    `reserve_seconds` of the time are kept for the last measurement. Raises `SettingsError` for a
    negative limit.
    """

    evaluations: int | None = None
    seconds: float | None = None
    reserve_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in ("evaluations", "seconds", "reserve_seconds"):
            limit = getattr(self, name)
            if limit is not None and not limit >= 0:
                raise SettingsError(f"the budget's {name} is {limit}: give a number from 0 up")

    def exhausted(self, spend: Spend) -> str | None:
        """Why the search ends here, or None."""
        if self.evaluations is not None and spend.evaluations >= self.evaluations:
            return f"{self.evaluations} evaluations are spent"
        if self.seconds is not None and spend.seconds + self.reserve_seconds >= self.seconds:
            return f"{self.seconds:g} seconds are spent"
        return None

    def only_time(self) -> Self:
        """This budget without its limit on evaluations."""
        return replace(self, evaluations=None)


def spent(events: Iterable[Event], *, now: float | None = None) -> Spend:
    """The spend of a journal; `now` (unix time) adds what passed since its last event.

    The time between a run's end and its resumption is nobody's.
    """
    evaluations, seconds = 0, 0.0
    last: float | None = None
    for event in events:
        evaluations += event.kind == "evaluated"
        if last is not None and event.kind != "resumed":
            seconds += max(event.time - last, 0.0)
        last = event.time
    if now is not None and last is not None:
        seconds += max(now - last, 0.0)
    return Spend(evaluations=evaluations, seconds=seconds)


def forecast(budget: Budget, spend: Spend) -> str:
    """What is left, in a line; at the pace so far where both limits are set."""
    parts = []
    pace = spend.seconds / spend.evaluations if spend.evaluations else None
    if budget.evaluations is not None:
        left = max(budget.evaluations - spend.evaluations, 0)
        parts.append(f"{left} of {budget.evaluations} evaluations left")
        if pace is not None and budget.seconds is None:
            parts.append(f"about {duration(left * pace)}")
    if budget.seconds is not None:
        time_left = max(budget.seconds - spend.seconds, 0.0)
        parts.append(f"{duration(time_left)} of {duration(budget.seconds)} left")
        if pace:
            usable = max(time_left - budget.reserve_seconds, 0.0)
            parts.append(f"room for about {int(usable / pace)} more evaluations")
    return ", ".join(parts) or "no limit"


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"
