"""What a search writes into its journal. The tree and the spend are the fold of these, alone."""

import json
from typing import Any, Literal

from pydantic import JsonValue, ValidationError

from kerntree.cache.errors import CacheError
from kerntree.cache.journal import Event
from kerntree.plans.candidate import Candidate, Config
from kerntree.plans.evaluation import Baseline, Duel, Evaluation, Replay
from kerntree.plans.finding import Finding
from kerntree.plans.frozen import Frozen
from kerntree.plans.strategy import Strategy


class RunStarted(Frozen):
    """The first event of a run."""

    kind: Literal["run_started"] = "run_started"
    problem: str
    seed: int
    explorer: str = ""
    settings: JsonValue = None


class BudgetSet(Frozen):
    """The limits that hold from here on; None: no limit of that sort."""

    kind: Literal["budget"] = "budget"
    evaluations: int | None = None
    seconds: float | None = None


class BaselinesMeasured(Frozen):
    kind: Literal["baselines"] = "baselines"
    baselines: tuple[Baseline, ...]


class NodeAdded(Frozen):
    """A new state, and the step that led to it (`strategy` is its place in the proposal).

    The root has neither parent nor strategy.
    """

    kind: Literal["node"] = "node"
    identity: str
    candidate: Candidate
    parent: str | None = None
    strategy: int | None = None


class Proposed(Frozen):
    """What may be tried at a node, with priors; `message` says why there is nothing."""

    kind: Literal["proposed"] = "proposed"
    node: str
    strategies: tuple[Strategy, ...]
    finding: Finding | None = None
    message: str = ""


class Linked(Frozen):
    """A step that leads to a state already in the tree."""

    kind: Literal["linked"] = "linked"
    parent: str
    strategy: int
    child: str


class RealizeFailed(Frozen):
    """The coder could not do this step."""

    kind: Literal["realize_failed"] = "realize_failed"
    parent: str
    strategy: int
    message: str


class Evaluated(Frozen):
    kind: Literal["evaluated"] = "evaluated"
    node: str
    config: Config
    evaluation: Evaluation


class Record(Frozen):
    """A node under a config that won its duel."""

    node: str
    config: Config


class Dueled(Frozen):
    """A fresh comparison; without an incumbent the baseline was the one to beat."""

    kind: Literal["duel"] = "duel"
    node: str
    config: Config
    incumbent: Record | None = None
    duel: Duel
    accepted: bool


class Reverified(Frozen):
    """The best against the baseline alone, at the end; unconfirmed, it is no longer a record."""

    kind: Literal["reverified"] = "reverified"
    node: str
    config: Config
    duel: Duel
    confirmed: bool


class Replayed(Frozen):
    """The best and the baseline as CUDA graphs, for the report."""

    kind: Literal["replayed"] = "replayed"
    node: str
    config: Config
    replay: Replay


class Stopped(Frozen):
    """Interrupted; the run can be resumed."""

    kind: Literal["stopped"] = "stopped"
    reason: str


class Resumed(Frozen):
    kind: Literal["resumed"] = "resumed"


class Finished(Frozen):
    """The search has ended for this reason; a larger budget may take it up again."""

    kind: Literal["finished"] = "finished"
    reason: str
    best: Record | None = None
    reverified: Duel | None = None


SearchEvent = (
    RunStarted
    | BudgetSet
    | BaselinesMeasured
    | NodeAdded
    | Proposed
    | Linked
    | RealizeFailed
    | Evaluated
    | Dueled
    | Reverified
    | Replayed
    | Stopped
    | Resumed
    | Finished
)

_TYPES: dict[str, type[SearchEvent]] = {
    "run_started": RunStarted,
    "budget": BudgetSet,
    "baselines": BaselinesMeasured,
    "node": NodeAdded,
    "proposed": Proposed,
    "linked": Linked,
    "realize_failed": RealizeFailed,
    "evaluated": Evaluated,
    "duel": Dueled,
    "reverified": Reverified,
    "replayed": Replayed,
    "stopped": Stopped,
    "resumed": Resumed,
    "finished": Finished,
}


def to_data(event: SearchEvent) -> dict[str, Any]:
    """The event's fields as plain JSON, without its kind; infinities are strings."""
    data: dict[str, Any] = json.loads(event.model_dump_json(exclude={"kind"}))
    return data


def decode(event: Event) -> SearchEvent | None:
    """The typed form of a journal's event, or None for a kind of another part.

    Raises `CacheError` if the fields are not those of its kind.
    """
    kind = _TYPES.get(event.kind)
    if kind is None:
        return None
    try:
        # Through JSON text, the only mode in which infinities written as strings are read back.
        return kind.model_validate_json(json.dumps(event.data))
    except ValidationError as error:
        raise CacheError(
            f"journal event {event.sequence} ({event.kind}) was written by another version: "
            f"{error.errors()[0]['msg']}; start a new run"
        ) from error
