"""One evaluator on a small problem, shared by all tests that want whole evaluations."""

from dataclasses import dataclass

import pytest

from kerntree.evaluator.evaluator import LocalEvaluator
from kerntree.evaluator.opening import open_evaluator
from kerntree.evaluator.oracle_process import OracleProcess
from kerntree.evaluator.settings import Deadlines, EvaluatorSettings, TimingRules
from kerntree.plans.candidate import Candidate, Config
from kerntree.plans.evaluation import Evaluation, EvaluationRequest
from kerntree.plans.problem import Problem

PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x, residual):
        residual.add_(x)
        return torch.softmax(residual * self.weight, dim=-1)

def get_inputs():
    return [torch.randn(256, 511), torch.randn(256, 511)]

def get_init_inputs():
    return [511]
"""
MODEL = PROBLEM.split("def get_inputs", maxsplit=1)[0]

# one thread: where other processes want the processors too, two threads wait for each other
SETTINGS = EvaluatorSettings(
    threads=1,
    baselines=("eager",),
    memory_bytes=1 << 30,
    deadlines=Deadlines(run=5.0),
    timing=TimingRules(pairs_low=6, pairs_high=12, duel_rounds=2, duel_pairs=6),
)


@dataclass(frozen=True)
class Arena:
    """An open evaluator, and short ways to make and evaluate candidates for its problem."""

    problem: Problem
    evaluator: LocalEvaluator
    settings: EvaluatorSettings
    model: str = MODEL

    def candidate(self, body: str, *, before: str = "") -> Candidate:
        """A candidate whose `forward(self, x, residual)` has that body, indented by eight."""
        head = "class ModelNew(Model):\n    def forward(self, x, residual):"
        return Candidate(source=f"{self.model}{before}\n{head}{body}", language="torch")

    def request(self, candidate: Candidate, config: Config | None = None) -> EvaluationRequest:
        return EvaluationRequest(problem=self.problem, candidate=candidate, config=config or {})

    def evaluate(self, candidate: Candidate, config: Config | None = None) -> Evaluation:
        return self.evaluator.evaluate(self.request(candidate, config))


@pytest.fixture(scope="session")
def arena(tmp_path_factory):
    """The problem adds `x` to `residual` in place and returns a weighted softmax of it."""
    folder = tmp_path_factory.mktemp("arena")
    path = folder / "problem.py"
    path.write_text(PROBLEM)
    problem, evaluator = open_evaluator(
        path, settings=SETTINGS, memo_directory=folder / "memo", work_directory=folder / "work"
    )
    yield Arena(problem, evaluator, SETTINGS)
    evaluator.close()
    evaluator.close()


HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
"""


@pytest.fixture(scope="module")
def shared():
    """One oracle for the tests that leave it alive; they describe their own problems."""
    with OracleProcess.start(seconds=60) as oracle:
        yield oracle


@pytest.fixture
def write(tmp_path):
    """Writes a problem's file, after the usual imports."""

    def write_problem(text, name="problem.py"):
        path = tmp_path / name
        path.write_text(HEAD + text)
        return path

    return write_problem
