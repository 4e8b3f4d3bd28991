"""Measuring candidates: one config, the race of several, and the duel for the record."""

from dataclasses import dataclass

from kerntree.plans.candidate import Config
from kerntree.plans.evaluation import Evaluation, Verdict
from kerntree.search.budget import spent
from kerntree.search.case_race import next_of_race, trial_of
from kerntree.search.events import Dueled, Evaluated, Record
from kerntree.search.session import Session
from kerntree.search.tree import (
    LOST_ATTEMPTS,
    Node,
    config_key,
    duel_key,
    evaluation_of,
)


@dataclass(frozen=True, kw_only=True)
class Racing:
    """How many configs a candidate is worth.

    Within `margin` (log2) of the best, `neighbours` are measured; a new leader's race goes on to
    `leader_neighbours` and, proposed by a model, to `leader_limit` in all. When the budget is
    spent, up to `last_duels` are still fought.
    """

    margin: float = 0.3
    neighbours: int = 4
    leader_neighbours: int = 6
    leader_limit: int = 12
    last_duels: int = 3


def evaluate(session: Session, node: Node, config: Config) -> Evaluation:
    """The journaled evaluation, or a new one; a lost one is tried once more, then believed."""
    key = config_key(config)
    if key in node.measured:
        return node.measured[key]
    while True:
        session.pause()
        evaluation = session.evaluator.evaluate(session.request(node, config))
        session.record(Evaluated(node=node.identity, config=config, evaluation=evaluation))
        again = evaluation.verdict is Verdict.LOST
        if not again or node.lost.get(key, 0) >= LOST_ATTEMPTS:
            return evaluation


def race(session: Session, node: Node, *, racing: Racing) -> None:
    """More configs for a node near the best, and more of them for a new leader."""
    if node.identity == session.tree.root:
        return
    while (mine := reward_of(node.best)) is not None:
        best = _best_reward(session, node)
        if best is not None and mine < best - racing.margin:
            return
        leads = best is None or mine > best
        config = next_of_race(
            node.candidate,
            [trial_of(evaluation) for evaluation in node.measured.values()],
            neighbours=racing.leader_neighbours if leads else racing.neighbours,
            limit=racing.leader_limit if leads else racing.neighbours + 1,
            seed=session.seed,
        )
        if config is None:
            return
        evaluate(session, node, config)


def _best_reward(session: Session, node: Node) -> float | None:
    """The reward to be near to, of any other state; None: the first of all."""
    others = [
        reward
        for other in session.tree.nodes.values()
        if other is not node and (reward := reward_of(other.best)) is not None
    ]
    return max(others, default=None)


def challenge(session: Session, node: Node) -> bool:
    """Lets a node's best config meet the incumbent where it looks better; whether they met."""
    incumbent, best = session.tree.incumbent, node.best
    if best is None or node.identity == session.tree.root:
        return False
    challenger = Record(node=node.identity, config=best.config)
    to_beat = reward_of(evaluation_of(session.tree, incumbent)) or 0.0
    if challenger == incumbent or (best.reward or 0.0) <= to_beat:
        return False
    if duel_key(node.identity, best.config, incumbent) in session.tree.refused:
        return False
    session.halt_if_stopped()
    against = None
    if incumbent is not None:
        against = session.request(session.tree.nodes[incumbent.node], incumbent.config)
    duel = session.evaluator.duel(session.request(node, best.config), against)
    session.record(
        Dueled(
            node=node.identity,
            config=best.config,
            incumbent=incumbent,
            duel=duel,
            accepted=duel.challenger.correct and duel.gain_low > 0,
        )
    )
    return True


def last_challenges(session: Session, *, duels: int) -> None:
    """A budget may end between a good measurement and its duel: this is the time for it."""
    for _ in range(duels):
        leader = max(
            (n for n in session.tree.nodes.values() if n.best and n.identity != session.tree.root),
            key=lambda node: reward_of(node.best) or 0.0,
            default=None,
        )
        spend = spent(session.journal.events, now=session.clock())
        late = session.budget.seconds is not None and spend.seconds >= session.budget.seconds
        if leader is None or late or not challenge(session, leader):
            return


def reward_of(evaluation: Evaluation | None) -> float | None:
    """The measured reward of a correct evaluation."""
    if evaluation is None or not evaluation.correct:
        return None
    return evaluation.reward
