"""A stand-alone module: its frozen config, and the reference for forms not searched for."""

import types

import torch

from kerntree.coder.sketch import SketchCoder
from kerntree.evaluator.describe import describe
from kerntree.plans.candidate import Candidate
from kerntree.plans.evaluation import Evaluation, Stage, Verdict
from kerntree.search.export import stand_alone

PLAIN = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)

def get_inputs():
    return [torch.randn(5, 33)]
"""
EVALUATION = Evaluation(key="k", verdict=Verdict.CORRECT, stage=Stage.TIME, config={})


def loaded(text):
    module = types.ModuleType("exported")
    exec(compile(text, "exported.py", "exec"), vars(module))  # our own text
    return module


def test_a_form_that_was_not_searched_for_goes_to_the_reference(tmp_path):
    path = tmp_path / "op.py"
    path.write_text(PLAIN)
    problem = describe(path, progress=lambda stage: None)
    candidate = SketchCoder().root(problem)
    text = stand_alone(candidate, {}, EVALUATION, problem="op", plan=[])
    kernel = loaded(text).ModelNew()
    for shape in ((5, 33), (2, 3, 7)):
        x = torch.randn(shape)
        torch.testing.assert_close(kernel(x), torch.softmax(x, -1))


def test_a_kernel_of_the_users_stays_as_it_is():
    source = PLAIN.replace("def get_inputs", "def other") + (
        "\nCONFIG = {'A': 1}\n\nclass ModelNew(Model):\n    def forward(self, x):\n"
        "        if x.shape[0] == 5:\n            return super().forward(x)\n"
        "        return x * CONFIG['A']\n"
    )
    candidate = Candidate(source=source, language="python", config={"A": 1})
    text = stand_alone(candidate, {"A": 3}, EVALUATION, problem="op", plan=["start mine.py"])
    assert "_self_check" not in text
    assert float(loaded(text).ModelNew()(torch.ones(1))) == 3.0
