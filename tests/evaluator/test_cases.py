"""A problem of several cases, of which one is only checked."""

import pytest

from kerntree.evaluator.opening import open_evaluator
from kerntree.plans.evaluation import Verdict

PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)

def get_cases():
    return {
        "one": lambda: [torch.randn(1, 515)],
        "many": {"inputs": lambda: [torch.randn(300, 515)], "weight": 3},
        "odd": {"inputs": lambda: [torch.randn(7, 515)], "weight": 0},
    }
"""
TIMED = {"one", "many"}


@pytest.fixture(scope="module")
def cases(arena, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cases")
    path = folder / "problem.py"
    path.write_text(PROBLEM)
    settings = arena.settings.replaced(baselines=("eager", "torch.compile"))
    problem, evaluator = open_evaluator(
        path, settings=settings, memo_directory=folder / "memo", work_directory=folder / "work"
    )
    model = PROBLEM.split("def get_cases", maxsplit=1)[0]
    yield type(arena)(problem, evaluator, settings, model)
    evaluator.close()


def candidate(cases, expression):
    body = f"class ModelNew(Model):\n    def forward(self, x):\n        return {expression}\n"
    return cases.candidate("").replaced(source=f"{cases.model}\n{body}")


def test_baselines_are_timed_where_there_is_weight(cases):
    assert [set(b.median_ns) for b in cases.evaluator.baselines()] == [TIMED, TIMED]


def test_a_case_without_weight_is_checked(cases):
    wrong = cases.evaluate(candidate(cases, "torch.softmax(x, -1) * (2 if len(x) == 7 else 1)"))
    assert wrong.verdict is Verdict.WRONG
    assert wrong.evidence["case"] == "odd"


def test_a_case_without_weight_is_not_timed(cases):
    right = cases.evaluate(candidate(cases, "torch.softmax(x, -1)"))
    assert right.verdict is Verdict.CORRECT
    assert {timing.case for timing in right.timings} == TIMED
    assert {error.case for error in right.errors} == {*TIMED, "odd"}
    assert right.reward is not None
