"""A toy operator whose best kernel is known, and parts that search it without running anything."""

import random
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from kerntree.cache.digest import digest
from kerntree.cache.journal import Journal
from kerntree.plans.candidate import Candidate
from kerntree.plans.errors import CannotRealizeError
from kerntree.plans.evaluation import Baseline, Duel, Evaluation, Stage, Verdict
from kerntree.plans.finding import Finding
from kerntree.plans.problem import Problem
from kerntree.plans.strategy import Strategy
from kerntree.search.budget import Budget
from kerntree.search.explorers import explorer_named
from kerntree.search.loop import run_search
from kerntree.search.tree import config_key

PROBLEM = Problem(name="toy", path="toy.py", folder=".", source="", cases=())


@dataclass(frozen=True)
class ToyCoder:
    """States are sets of steps taken, so that orders commute."""

    kinds: tuple[str, ...]
    enabling: frozenset[str] = frozenset()
    needs: dict[str, str] = field(default_factory=dict)
    unrealizable: frozenset[str] = frozenset()
    tunables: dict = field(default_factory=dict)
    expected: dict[str, float] = field(default_factory=dict)

    def candidate(self, taken):
        return Candidate(
            source="+".join(sorted(taken)),
            language="python",
            tunables=self.tunables,
            config={name: values[0] for name, values in self.tunables.items()},
            program=sorted(taken),
        )

    def root(self, problem):
        return self.candidate(())

    def strategies(self, problem, candidate):
        if candidate.program is None:
            return []
        taken = set(candidate.program)
        return [
            Strategy(
                kind=kind,
                target="k",
                instruction="",
                enabling=kind in self.enabling,
                expected_gain=self.expected.get(kind, 0.0),
            )
            for kind in self.kinds
            if kind not in taken and self.needs.get(kind, kind) in {*taken, kind}
        ]

    def preview(self, problem, candidate, strategy):
        return digest(sorted({*candidate.program, strategy.kind}))

    def realize(self, problem, candidate, strategy):
        if strategy.kind in self.unrealizable:
            raise CannotRealizeError(f"no {strategy.kind}: not here")
        return self.candidate({*candidate.program, strategy.kind})


class ToyPlanner:
    """Every step is as likely as any other."""

    def propose(self, problem, candidate, *, plan, applicable, evaluation, finding, history):
        return [s.replaced(prior=1 / len(applicable)) for s in applicable]


class ToyAnalyst:
    def find(self, problem, candidate, evaluation):
        return Finding(limit="unknown", statement="nothing known")


class ToyEvaluator:
    """`gain(taken, config)` is the true reward; one measurement of it errs by `noise`.

    A `lucky` state looks far better than it is, each time it is evaluated, but not in a duel.
    """

    def __init__(self, gain, *, noise=0.0, lucky=frozenset(), broken=frozenset(), lost=()):
        self.gain, self.noise, self.lucky, self.broken = gain, noise, lucky, broken
        self.lost = list(lost)
        self.ran, self.duels, self.replayed = [], [], []
        self.as_graph = None

    def baselines(self):
        return (Baseline(name="eager", median_ns={"case": 1000.0}),)

    def known(self, request):
        return None

    def evaluate(self, request):
        taken = frozenset(request.candidate.program or ())
        self.ran.append((request.candidate.identity, config_key(request.config)))
        if self.lost:
            self.lost.pop()
            return self._evaluation(request, Verdict.LOST, None)
        if taken & self.broken:
            return self._evaluation(request, Verdict.WRONG, None)
        reward = self.gain(taken, request.config)
        source = random.Random(repr(self.ran[-1]))
        reward += source.gauss(0.0, self.noise) + (3.0 if taken & self.lucky else 0.0)
        return self._evaluation(request, Verdict.CORRECT, reward)

    def duel(self, challenger, incumbent):
        self.duels.append((challenger, incumbent))
        mine = self.gain(frozenset(challenger.candidate.program or ()), challenger.config)
        theirs = 0.0
        if incumbent is not None:
            theirs = self.gain(frozenset(incumbent.candidate.program), incumbent.config)
        gain = mine - theirs
        return Duel(
            challenger=self._evaluation(challenger, Verdict.CORRECT, mine),
            gain=gain,
            gain_low=gain - 0.02,
            gain_high=gain + 0.02,
        )

    def replay(self, request):
        self.replayed.append(request)
        return self.as_graph

    def close(self):
        pass

    def _evaluation(self, request, verdict, reward):
        return Evaluation(
            key="k",
            verdict=verdict,
            stage=Stage.TIME,
            config=request.config,
            reward=reward,
            reward_low=None if reward is None else reward - 0.05,
            reward_high=None if reward is None else reward + 0.05,
        )


class Clock:
    """A second passes with each look."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now


@pytest.fixture(scope="session")
def toy():
    """The parts by name."""
    return SimpleNamespace(
        PROBLEM=PROBLEM,
        Coder=ToyCoder,
        Planner=ToyPlanner,
        Evaluator=ToyEvaluator,
    )


@pytest.fixture
def search(tmp_path):
    """Runs one search in a journal of that name; the same name goes on with it."""

    def run(coder, evaluator, *, name="journal", explorer="mcts", seed=0, **options):
        clock = Clock()
        journal = Journal.open(tmp_path / f"{name}.jsonl", clock=clock)
        options.setdefault("budget", Budget(evaluations=40))
        try:
            return run_search(
                problem=PROBLEM,
                coder=coder,
                planner=ToyPlanner(),
                analyst=ToyAnalyst(),
                evaluator=evaluator,
                explorer=explorer_named(explorer, seed=seed),
                journal=journal,
                seed=seed,
                clock=clock,
                **options,
            )
        finally:
            journal.close()

    run.path = tmp_path / "journal.jsonl"
    return run
