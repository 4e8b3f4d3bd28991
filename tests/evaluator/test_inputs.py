import random
import sys

import numpy
import pytest
import torch

from kerntree.evaluator.distributions import DISTRIBUTIONS
from kerntree.evaluator.double import CannotDoubleError, double_module, double_precision, doubled
from kerntree.evaluator.inputs import has_float_tensor, make_inputs, nudged, seeded
from kerntree.evaluator.problem_file import load_problem_file

SOURCE = """
import random
import numpy
import torch

class Model(torch.nn.Module):
    def forward(self, x, nest, index, n):
        return x

def get_inputs():
    return [
        torch.randn(6, 5) + random.random() + numpy.random.rand(),
        {"v": torch.rand(7), "flag": True},
        torch.randint(0, 9, (4, 3)),
        0.5,
    ]
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "problem.py"
    path.write_text(SOURCE)
    return load_problem_file(path)


def made(file, seed=3, distribution="given"):
    return make_inputs(file, file.cases[0], seed=seed, distribution=distribution)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_seed_decides_every_value(file, distribution):
    one, two = (made(file, distribution=distribution) for _ in range(2))
    other = made(file, seed=4, distribution=distribution)
    assert torch.equal(one[0], two[0])
    assert torch.equal(one[1]["v"], two[1]["v"])
    assert not torch.equal(one[0], other[0])


@pytest.mark.parametrize("distribution", DISTRIBUTIONS[1:])
def test_distributions_change_float_tensors_only(file, distribution):
    given, changed = made(file), made(file, distribution=distribution)
    assert torch.equal(given[2], changed[2])
    assert (given[3], given[1]["flag"]) == (changed[3], changed[1]["flag"])
    for one, other in ((given[0], changed[0]), (given[1]["v"], changed[1]["v"])):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        if distribution == "strided":
            assert torch.equal(one, other)
            assert not other.is_contiguous()
        else:
            assert not torch.equal(one, other)
            assert bool(other.isfinite().all())


def test_outliers_reach_the_last_row_and_column(file):
    x = made(file, distribution="outliers")[0]
    usual = made(file)[0].abs().max()
    for row, column in ((0, 0), (0, 4), (5, 0), (5, 4)):
        assert x[row, column].abs() > 8 * usual


def test_zeros_clear_the_last_row(file):
    x = made(file, distribution="zeros")[0]
    assert not bool(x[-1].any())
    assert bool(x[:-1].any())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_distributions_keep_the_type_and_stay_finite(tmp_path, monkeypatch, dtype):
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "halves.py"
    text = SOURCE.replace("torch.rand(7)", f"torch.randn(7, 300).to({dtype})")
    path.write_text(text)
    file = load_problem_file(path)
    for distribution in DISTRIBUTIONS:
        v = made(file, distribution=distribution)[1]["v"]
        assert v.dtype == dtype
        assert bool(v.isfinite().all())


def test_expanded_inputs_get_memory_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "expanded.py"
    path.write_text(SOURCE.replace("torch.rand(7)", "torch.rand(7, 1).expand(7, 4)"))
    assert 0 not in made(load_problem_file(path))[1]["v"].stride()


def test_seeding_leaves_no_trace():
    states = torch.random.get_rng_state(), random.getstate(), numpy.random.get_state()[1].copy()
    with seeded(2**61 + 5):
        first = torch.rand(2), random.random(), numpy.random.rand()
    with seeded(2**61 + 5):
        second = torch.rand(2), random.random(), numpy.random.rand()
    assert torch.equal(first[0], second[0])
    assert first[1:] == second[1:]
    assert torch.equal(states[0], torch.random.get_rng_state())
    assert states[1] == random.getstate()
    assert (states[2] == numpy.random.get_state()[1]).all()


def test_what_has_no_float_tensor():
    assert not has_float_tensor([torch.ones(2, dtype=torch.int64), 1.0])
    assert has_float_tensor([[{"a": torch.ones(1)}]])


def test_nudges_are_one_eps():
    (x,) = nudged([torch.full((100,), 2.0)], seed=0)
    relative = (x / 2.0 - 1.0).abs() / torch.finfo(torch.float32).eps
    assert torch.allclose(relative, torch.ones_like(relative))


class Casts(torch.nn.Module):
    """Goes through lower precision in every way that a file may."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)
        self.plain = [torch.full((16,), 1.0)]
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.count += 1
        y = self.linear(x).half().float().to(torch.bfloat16).type(torch.float32)
        y = torch.softmax(y, -1, dtype=torch.float32) + self.plain[0]
        y = y + torch.zeros(16, dtype=torch.float16) + torch.arange(16, dtype=torch.float32) / 3
        return y.sum(0, dtype=torch.bfloat16), y.argmax(1), x.new_full((2,), 1 / 3)


def test_casts_to_lower_precision_stay_in_double():
    torch.manual_seed(0)
    module, x = Casts(), torch.randn(8, 16)
    weight, bias = module.linear.weight.double(), module.linear.bias.double()
    y = torch.softmax(x.double() @ weight.T + bias, -1) + 1
    y = y + torch.arange(16, dtype=torch.float64) / 3
    double_module(module)
    with double_precision(), torch.no_grad():
        total, position, third = module(doubled(x))
    assert total.dtype == third.dtype == torch.float64
    assert torch.allclose(total, y.sum(0).detach(), rtol=1e-14)
    assert torch.equal(position, y.argmax(1))
    assert third[0] == 1 / 3
    assert torch.get_default_dtype() == torch.float32
    assert module.count == 1


def test_doubling_copies():
    x, n = torch.ones(3, dtype=torch.float64), torch.ones(3, dtype=torch.int32)
    y, m = doubled([x, n])
    y.zero_()
    m.zero_()
    assert bool(x.all()) and bool(n.all())


def test_bits_have_no_double():
    with pytest.raises(CannotDoubleError, match="bits"), double_precision():
        torch.ones(2, dtype=torch.float64).view(torch.int64)
