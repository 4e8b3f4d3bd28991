"""A kernel as an operator: what torch checks of one, torch.compile, mutation, the fall-back."""

import importlib.util
import sys

import pytest
import torch

from kerntree.coder.sketch import SketchCoder
from kerntree.evaluator.describe import describe
from kerntree.plans.candidate import Candidate
from kerntree.plans.evaluation import Evaluation, Stage, Verdict
from kerntree.search.errors import RunError
from kerntree.search.export import stand_alone
from kerntree.search.export_op import as_torch_op

NORM = """
import torch

class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(width))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x, residual, scale):
        residual.add_(x)
        self.seen.add_(1)
        y = residual * torch.rsqrt(residual.pow(2).mean(-1, keepdim=True) + 1e-6)
        return y * self.weight * scale, residual

def get_inputs():
    return [torch.randn(6, 40), torch.randn(6, 40), 2.0]

def get_init_inputs():
    return [40]
"""
PLAIN = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)

def get_inputs():
    return [torch.randn(5, 33)]
"""
ROWS = NORM.replace(
    "return [torch.randn(6, 40), torch.randn(6, 40), 2.0]",
    """return given(6)

def given(n):
    return [torch.randn(n, 40), torch.randn(n, 40), 2.0]

def get_cases():
    return {f"rows_{n}": lambda n=n: given(n) for n in (1, 6, 50)}
""",
)


@pytest.fixture
def exported(tmp_path):
    def export(text, name):
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        problem = describe(path, progress=lambda stage: None)
        coder = SketchCoder()
        candidate = coder.root(problem)
        for kind in ("lower", "fuse"):
            listed = [s for s in coder.strategies(problem, candidate) if s.kind == kind]
            if listed:
                candidate = coder.realize(problem, candidate, listed[0])
        assert candidate.kernels
        return as_torch_op(module_of(candidate, name), problem)

    return export


def module_of(candidate: Candidate, name):
    evaluation = Evaluation(key="k", verdict=Verdict.CORRECT, stage=Stage.TIME, config={})
    return stand_alone(candidate, {}, evaluation, problem=name, plan=[])


def load(text, path):
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def test_torch_accepts_the_operator_and_the_module_gives_what_the_reference_gives(
    exported, tmp_path
):
    module = load(exported(NORM, "norm_in_place"), tmp_path / "fast_norm.py")
    operator = torch.ops.kerntree.norm_in_place
    arguments = (torch.randn(6, 40), torch.randn(6, 40), 2.0, torch.rand(40), torch.zeros(()))
    torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))
    reference, fast = module.Model(40), module.ModelFast(40)
    fast.load_state_dict(reference.state_dict())
    x, r = torch.randn(6, 40), torch.randn(6, 40)
    with torch.no_grad():
        expected, got_r = reference(x, r.clone(), 2.0), r.clone()
        got = fast(x, got_r, 2.0)
    assert got[1] is got_r
    for a, b in zip(expected, got, strict=True):
        torch.testing.assert_close(a, b)
    assert fast.seen == 1


def test_it_runs_under_torch_compile(exported, tmp_path):
    module = load(exported(PLAIN, "plain_softmax"), tmp_path / "fast_softmax.py")
    fast = torch.compile(module.ModelFast(), fullgraph=True, backend="aot_eager")
    x = torch.randn(5, 33)
    torch.testing.assert_close(fast(x), torch.softmax(x, -1))


def test_one_operator_for_sizes_that_were_not_searched_for(exported, tmp_path):
    module = load(exported(ROWS, "norm_of_rows"), tmp_path / "fast_rows.py")
    module.Model.forward = None  # not even for a size of its own the reference
    weight, seen = torch.rand(40), torch.zeros(())
    for rows in (1, 3, 6, 77):
        x, r = torch.randn(rows, 40), torch.randn(rows, 40)
        expected = r + x
        normed = expected * torch.rsqrt(expected.pow(2).mean(-1, keepdim=True) + 1e-6)
        got = torch.ops.kerntree.norm_of_rows(x, r, 2.0, weight, seen)
        torch.testing.assert_close(r, expected)
        torch.testing.assert_close(got, normed * weight * 2.0)


def test_it_runs_under_torch_compile_at_any_size(exported, tmp_path):
    module = load(exported(ROWS, "norm_of_any_rows"), tmp_path / "fast_any_rows.py")
    operator = torch.ops.kerntree.norm_of_any_rows
    arguments = (torch.randn(9, 40), torch.randn(9, 40), 2.0, torch.rand(40), torch.zeros(()))
    torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))
    reference, fast = module.Model(40), module.ModelFast(40)
    fast.load_state_dict(reference.state_dict())
    compiled = torch.compile(fast, fullgraph=True, backend="aot_eager", dynamic=True)
    with torch.no_grad():
        for rows in (6, 9, 30):
            x, r = torch.randn(rows, 40), torch.randn(rows, 40)
            torch.testing.assert_close(compiled(x, r.clone(), 2.0), reference(x, r, 2.0))


def test_another_form_goes_to_the_reference_and_so_does_a_gradient(exported, tmp_path):
    module = load(exported(PLAIN, "any_softmax"), tmp_path / "fast_any.py")
    fast = module.ModelFast()
    other = torch.randn(2, 7, 9)
    torch.testing.assert_close(fast(other), torch.softmax(other, -1))
    x = torch.randn(5, 33, requires_grad=True)
    fast(x)[0, 0].backward()
    assert x.grad is not None


def test_what_no_signature_can_say_is_refused(exported):
    nested = PLAIN.replace("def forward(self, x)", "def forward(self, pair)").replace(
        "torch.softmax(x, -1)", "torch.softmax(pair[0] + pair[1], -1)"
    )
    nested = nested.replace("[torch.randn(5, 33)]", "[(torch.randn(5, 33), torch.randn(5, 33))]")
    with pytest.raises(RunError, match="nested"):
        exported(nested, "nested_pair")
