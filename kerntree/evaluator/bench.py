"""One candidate's way through load, build and check: what evaluation and duel share."""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field

from pydantic import JsonValue

from kerntree.evaluator.blocks import OutputBlock, output_block, output_layout
from kerntree.evaluator.oracle_process import BlockUnusable
from kerntree.evaluator.room import Room
from kerntree.evaluator.session import CandidateFailed, Session
from kerntree.evaluator.settings import EvaluatorSettings
from kerntree.evaluator.trials import Oracle, Prepared, Slot, TrialInputs
from kerntree.plans.candidate import Config
from kerntree.plans.evaluation import OutputError, Stage, Verdict
from kerntree.plans.problem import Case, Problem

_TIME_SLOT = 64  # the child's slots for timed inputs start here, those of the check at 0


@dataclass
class Bench:
    """What every child of a run has in common.

    `open_session` spawns a child and loads a module into it; it raises `CandidateFailed`.
    `patience` holds seconds that one call of a case may take by the baseline's measure. `rooms`
    say, on a GPU, how each case is kept: children lend memory there instead of sharing ours.
    """

    problem: Problem
    settings: EvaluatorSettings
    inputs: TrialInputs
    open_session: Callable[[str, str, Config | None, bool], Session]
    patience: dict[str, float] = field(default_factory=dict)
    rooms: Mapping[str, Room] = field(default_factory=dict)

    @property
    def oracle(self) -> Oracle:
        return self.inputs.oracle

    def check(self, session: Session, *, full: bool) -> tuple[OutputError, ...]:
        """Runs a candidate on its trials, case by case; raises `CandidateFailed`.

        The order is the search's: what most often fails comes first.
        """
        errors: list[OutputError] = []
        for case in self.problem.cases:
            for number, slot in enumerate(self.inputs.check_slots(case, full=full)):
                errors += self._trial(session, case, slot, number)
                self._rest(session, case)  # before the oracle makes the next set
        return tuple(errors)

    def exercise(self, session: Session) -> None:
        """The calls of a check, without judging them; raises `CandidateFailed`.

        What is timed against candidates must have had the same life: how a process allocates
        depends on what it has freed, and page faults that only one side has would be a gain.
        Other strides are left out, since a compiler would compile once more for them.
        """
        for case in self.problem.cases:
            for number, slot in enumerate(self.inputs.check_slots(case, full=True)):
                with self.inputs.at(slot) as prepared:
                    if prepared.skipped or prepared.distribution == "strided":
                        continue
                    at = self._hand(session, number, prepared)
                    with self._block(case) as block:
                        session.run(at, case, block, timeout=self.settings.deadlines.compile)
                self._rest(session, case)

    def check_timed(self, session: Session, case: Case, prepared: Prepared) -> None:
        """Has the last timed call's outputs compared; raises `CandidateFailed`."""
        with self._block(case) as block:
            session.submit(case, block, timeout=self.call_timeout(case))
            self._compare(case, prepared, block, Stage.TIME)

    @contextmanager
    def timed_inputs(self, case: Case) -> Iterator[list[Prepared]]:
        """The sets on which a case is timed, held for as long as all sides need them."""
        with ExitStack() as stack:
            room = self.rooms.get(case.name)
            count = room.slots if room else self.settings.timing.slots
            slots = self.inputs.time_slots(case, count=count)
            yield [stack.enter_context(self.inputs.at(slot)) for slot in slots]

    def give(self, session: Session, prepared: Sequence[Prepared]) -> tuple[int, ...]:
        """Hands timed inputs to a child; the child's slots."""
        slots = tuple(range(_TIME_SLOT, _TIME_SLOT + len(prepared)))
        for slot, entry in zip(slots, prepared, strict=True):
            self._hand(session, slot, entry)
        return slots

    def prepared_at(self, prepared: Sequence[Prepared], slot: int) -> Prepared:
        """The set behind one of the child's slots."""
        return prepared[slot - _TIME_SLOT]

    def call_timeout(self, case: Case) -> float:
        """Seconds after which one call is called a hang."""
        slowest = self.settings.slowest_ratio * self.patience.get(case.name, 0.0)
        return max(self.settings.deadlines.run, slowest)

    def _trial(
        self, session: Session, case: Case, slot: Slot, number: int
    ) -> tuple[OutputError, ...]:
        with self.inputs.at(slot) as prepared:
            if prepared.skipped:
                return ()
            at = self._hand(session, number, prepared)
            with self._block(case) as block:
                session.run(at, case, block, timeout=self.call_timeout(case))
                return self._compare(case, prepared, block, Stage.CHECK)

    def _hand(self, session: Session, slot: int, prepared: Prepared) -> int:
        """Gives a child a set; its slot there. On a GPU it keeps one set of the check at most."""
        room = self.rooms.get(prepared.case)
        if room is not None:
            session.thrifty = room.thrifty
            slot = slot if slot >= _TIME_SLOT else 0
        handle = session.inputs(slot, prepared)
        if handle:
            try:
                self.oracle.fill(prepared, handle=handle)
            except BlockUnusable as error:
                raise CandidateFailed(Verdict.FORGED, Stage.CHECK, str(error)) from error
        return slot

    def _rest(self, session: Session, case: Case) -> None:
        if case.name in self.rooms:
            session.rest(slots=(0,))

    def _block(self, case: Case) -> AbstractContextManager[OutputBlock]:
        layout = output_layout(self.problem, case)
        return output_block(layout, lent=case.name in self.rooms)

    def _compare(
        self, case: Case, prepared: Prepared, block: OutputBlock, stage: Stage
    ) -> tuple[OutputError, ...]:
        try:
            found = self.oracle.compare(
                prepared, layout=block.layout, fd=block.fd, handle=block.handle
            )
        except BlockUnusable as error:
            raise CandidateFailed(Verdict.FORGED, stage, str(error)) from error
        if found.ok:
            return found.errors
        where = f"case {case.name}, {prepared.distribution} inputs"
        where += ", in a timed call" if stage is Stage.TIME else ""
        evidence: dict[str, JsonValue] = {
            "case": case.name,
            "inputs": prepared.distribution,
            **found.evidence,
        }
        if found.untouched:
            raise CandidateFailed(
                Verdict.FORGED,
                stage,
                f"{where}: the reply says that it ran, but no result was written",
                evidence=evidence,
            )
        raise CandidateFailed(Verdict.WRONG, stage, f"{where}: {found.message}", evidence=evidence)


def draw(count: int) -> int:
    """A number in [0, count) that no candidate can foresee."""
    return secrets.randbelow(count)
