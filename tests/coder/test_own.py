"""Kernels of the user's: what their text declares, and their place under the root."""

import pytest

from kerntree.coder.own import OwnKernel, WithOwnKernels, candidate_of
from kerntree.coder.sketch import SketchCoder
from kerntree.plans.errors import SettingsError
from kerntree.plans.problem import Case, Problem
from kerntree.plans.strategy import Strategy

KERNEL = """
import torch

TUNABLES = {"BLOCK": [64, 128, 256]}
CONFIG = {"BLOCK": 128}

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)
"""


@pytest.fixture
def problem():
    source = "import torch\n\nclass Model(torch.nn.Module):\n    pass\n"
    case = Case(name="default", inputs=(), outputs=(), output_tree=0, graph_error="no graph")
    return Problem(name="p", path="p.py", folder="", source=source, cases=(case,))


def test_what_a_module_declares_is_read_and_nothing_runs():
    candidate = candidate_of(OwnKernel("mine.py", KERNEL + "\nraise SystemExit\n"))
    assert candidate.tunables == {"BLOCK": (64, 128, 256)}
    assert candidate.config == {"BLOCK": 128}
    assert candidate.program is None


@pytest.mark.parametrize(
    ("declared", "tunables", "config"),
    [
        ("", {}, {}),
        ("TUNABLES = make()\n", {}, {}),
        ("TUNABLES = {'A': [1, 2], 'B': []}\n", {"A": (1, 2)}, {"A": 1}),
        ("TUNABLES: dict = {'A': (1, 2)}\nCONFIG = {'A': True}\n", {"A": (1, 2)}, {"A": 1}),
        ("TUNABLES = [1]\n", {}, {}),
    ],
)
def test_odd_declarations_leave_nothing_to_tune(declared, tunables, config):
    text = declared + "class ModelNew:\n    pass\n"
    candidate = candidate_of(OwnKernel("mine.py", text))
    assert (candidate.tunables, candidate.config) == (tunables, config)


@pytest.mark.parametrize(
    ("text", "said"),
    [("def (", "mine.py:1: syntax error"), ("x = 1", "no class ModelNew"), ("", "no class")],
)
def test_what_cannot_be_a_kernel_is_refused(text, said):
    with pytest.raises(SettingsError, match=said):
        candidate_of(OwnKernel("mine.py", text))


def test_a_kernel_is_a_step_from_the_root_alone(problem):
    coder = WithOwnKernels(SketchCoder(), [OwnKernel("mine.py", KERNEL)])
    root = coder.root(problem)
    (step, *_) = coder.strategies(problem, root)
    assert (step.kind, step.target) == ("start", "mine.py")
    candidate = coder.realize(problem, root, step)
    assert candidate.source == KERNEL
    assert coder.preview(problem, root, step) == candidate.identity
    assert coder.strategies(problem, candidate) == []


def test_two_of_a_name_or_an_unknown_one_are_refused(problem):
    with pytest.raises(SettingsError, match="same name"):
        WithOwnKernels(SketchCoder(), [OwnKernel("a.py", KERNEL), OwnKernel("a.py", KERNEL)])
    coder = WithOwnKernels(SketchCoder(), [OwnKernel("a.py", KERNEL)])
    other = Strategy(kind="start", target="b.py", instruction="")
    assert coder.preview(problem, coder.root(problem), other) is None
