"""Checks of a candidate beyond its outputs. What is here is the floor that every device has."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kerntree.evaluator.timing import BlockTimes, always_unexplained_ns, unexplained_ns
from kerntree.plans.evaluation import Verdict
from kerntree.plans.problem import Case


@dataclass(frozen=True)
class Objection:
    """Why a guard refuses a candidate."""

    verdict: Verdict
    message: str


class Guard(Protocol):
    """Looks at what a candidate is and at what its measurement claims.

    Static advice, a census of threads or the proof of a profile go behind the same two methods.
    """

    def before(self, source: str) -> Objection | None:
        """What the text alone gives away, before anything runs."""
        ...

    def after(
        self,
        case: Case,
        *,
        candidate: Sequence[BlockTimes],
        baseline: Sequence[BlockTimes],
        floor_ns: float | None,
    ) -> Objection | None:
        """What the timing of one case gives away."""
        ...


@dataclass(frozen=True)
class PlainGuard:
    """Times that cannot be true: above or far below what the supervisor's own clock saw, or
    below what the bytes and operations of the case allow.

    `slack_ns` per call, plus `share` of what the trusted child's calls cost beside their timed
    part, plus `share` of the claim: so much may a candidate's calls cost unexplained.
    """

    slack_ns: float = 300_000.0
    share: float = 0.35

    def before(self, source: str) -> Objection | None:
        return None

    def after(
        self,
        case: Case,
        *,
        candidate: Sequence[BlockTimes],
        baseline: Sequence[BlockTimes],
        floor_ns: float | None,
    ) -> Objection | None:
        claims = sorted(value for block in candidate for value in block.calls_ns)
        if not claims:
            return None
        claim = claims[len(claims) // 2]
        for block in candidate:
            if sum(block.calls_ns) > block.wall_ns:
                return Objection(
                    Verdict.FORGED,
                    f"case {case.name}: {sum(block.calls_ns) / 1e6:.3f} ms claimed for a block "
                    f"that took {block.wall_ns / 1e6:.3f} ms; a candidate must leave clocks alone",
                )
        if floor_ns is not None and claim < floor_ns:
            return Objection(
                Verdict.FORGED,
                f"case {case.name}: {claim / 1e3:.1f} us a call is impossible: its bytes and "
                f"operations take {floor_ns / 1e3:.1f} us on this device at the very least",
            )
        own, trusted = always_unexplained_ns(candidate), unexplained_ns(baseline)
        if own - trusted > self.slack_ns + self.share * (trusted + claim):
            return Objection(
                Verdict.FORGED,
                f"case {case.name}: {claim / 1e3:.1f} us a call claimed, but every call kept the "
                f"supervisor waiting {(own - trusted) / 1e3:.1f} us longer than that explains; "
                "all work must end before forward returns",
            )
        return None
