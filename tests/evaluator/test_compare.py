import math

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kerntree.evaluator.compare import compare, expect

ROWS, LENGTH = 64, 8192


def judged(actual, oracle, own, *, kernelbench=False, response=0.0):
    expected = expect("", oracle, own, response=response)
    return compare(actual, expected, case="c", inputs="given", kernelbench=kernelbench)


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def sequential_sum(values):
    """One float32 accumulator a row, as the plainest loop has it."""
    return torch.from_numpy(numpy.add.accumulate(values.numpy(), axis=1)[:, -1].copy())


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("length", [8192, 65536])
def test_honest_orders_of_long_sums_pass(positive, length):
    x = random(ROWS, length)
    x = x.abs() if positive else x
    oracle, own = x.double().sum(1), x.sum(1)
    assert judged(sequential_sum(x), oracle, own, kernelbench=positive).ok
    lanes = x.reshape(ROWS, -1, 16)
    by_lane = torch.stack([sequential_sum(lanes[:, :, k]) for k in range(16)], dim=1).sum(1)
    assert judged(by_lane, oracle, own).ok
    assert judged(x.flip(1).sum(1), oracle, own).ok


def tf32(x):
    """Rounded to the ten fraction bits of TF32, to nearest."""
    return ((x.view(torch.int32) + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32)


@pytest.mark.parametrize("depth", [64, 1024])
@pytest.mark.parametrize(
    "rounded", [tf32, lambda x: x.bfloat16().float(), lambda x: x.half().float()]
)
def test_products_of_rounded_operands_fail(rounded, depth):
    a, b = random(128, depth), random(depth, 128, seed=1)
    oracle, own = a.double() @ b.double(), a @ b
    assert judged(own, oracle, own, kernelbench=True).ok
    assert judged((a.double() @ b.double()).float(), oracle, own).ok
    finding = judged(rounded(a) @ rounded(b), oracle, own)
    assert not finding.ok
    assert "relative RMS error" in finding.message or "worst error" in finding.message


def test_a_pointwise_result_in_lower_precision_fails():
    x = random(256, 256)
    oracle, own = torch.tanh(x.double()), torch.tanh(x)
    assert judged(oracle.float(), oracle, own).ok
    for dtype in (torch.bfloat16, torch.float16):
        assert not judged(torch.tanh(x.to(dtype)).float(), oracle, own).ok


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_allow_their_own_rounding_only(dtype):
    x = random(512, 512, dtype=dtype)
    oracle, own = torch.softmax(x.double(), 1), torch.softmax(x, 1)
    assert judged(torch.softmax(x.float(), 1).to(dtype), oracle, own, kernelbench=True).ok
    one_ulp = torch.nextafter(own, torch.full_like(own, math.inf))
    assert judged(one_ulp, oracle, own).ok
    assert not judged((own.float() * 1.03).to(dtype), oracle, own).ok


@pytest.mark.parametrize("at", [0, 4097, 64 * 4096 - 1])
def test_one_wrong_element_among_many_fails_and_is_named(at):
    x = random(64, 4096)
    wrong = x.clone()
    wrong.view(-1)[at] += 0.01
    finding = judged(wrong, x.double(), x)
    assert not finding.ok
    assert finding.evidence["index"] == [at // 4096, at % 4096]
    assert finding.evidence["got"] == wrong.view(-1)[at].item()
    assert finding.evidence["expected"] == finding.evidence["torch"] == x.view(-1)[at].item()
    assert str(finding.evidence["index"]) in finding.message


def test_a_small_slice_cannot_hide_behind_a_large_one():
    x = random(64, 256)
    x[0] *= 1e-2  # two orders below the rest
    wrong = x.clone()
    wrong[0] *= 1.001
    whole = float((wrong - x).square().mean().sqrt() / x.square().mean().sqrt())
    assert whole < 7.6e-6  # small beside the whole output
    finding = judged(wrong, x.double(), x)
    assert not finding.ok
    assert "slice 1 of 64" in finding.message


def test_nan_and_infinities_stand_where_torch_has_them():
    x = random(8, 64)
    x[0, 0], x[1, 1], x[2, 2] = math.nan, math.inf, -math.inf
    oracle = x.double()
    assert judged(x.clone(), oracle, x, kernelbench=True).ok
    for position, value in (
        ((0, 0), 0.0), ((1, 1), math.nan), ((2, 2), math.inf), ((3, 3), math.nan),
        ((4, 4), math.inf), ((1, 1), 3.4e38),
    ):  # fmt: skip
        wrong = x.clone()
        wrong[position] = value
        finding = judged(wrong, oracle, x)
        assert not finding.ok
        assert finding.evidence["index"] == list(position)
        assert "NaN and infinities" in finding.message


def test_errors_are_still_measured_beside_nan():
    x = random(8, 64)
    x[0, 0] = math.nan
    wrong = x.clone()
    wrong[7, 63] += 1.0
    finding = judged(wrong, x.double(), x)
    assert not finding.ok
    assert finding.evidence["index"] == [7, 63]


def test_an_overflow_of_torchs_alone_may_be_avoided_or_shared():
    oracle = torch.full((128,), 1.0, dtype=torch.float64)
    own = torch.ones(128)
    own[5] = math.inf
    assert judged(own.clone(), oracle, own).ok
    assert judged(torch.ones(128), oracle, own).ok
    wrong = torch.ones(128)
    wrong[5] = 2.0
    assert not judged(wrong, oracle, own).ok


def test_integers_equal_the_oracle_or_torch_at_each_position():
    oracle, own = torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 3, 5])
    assert judged(own, oracle, own).ok
    assert judged(oracle, oracle, own).ok
    finding = judged(torch.tensor([1, 2, 4, 5]), oracle, own)
    assert not finding.ok
    assert finding.evidence["index"] == [2]
    flags = torch.tensor([True, False])
    assert judged(flags, flags, flags).ok
    assert not judged(~flags, flags, flags).ok


def test_expected_zeros():
    zeros = torch.zeros(64, 64)
    assert judged(zeros, zeros.double(), zeros, kernelbench=True).ok
    assert judged(-zeros, zeros.double(), zeros).ok
    assert not judged(zeros + 1e-6, zeros.double(), zeros).ok
    mixed = random(64, 64).relu()
    mixed[3] = 0.0
    assert judged(mixed, mixed.double(), mixed).ok
    wrong = mixed.clone()
    wrong[3] = 1e-3
    assert not judged(wrong, mixed.double(), mixed).ok


def test_zeros_do_not_pass_for_a_small_output():
    x = random(64, 64) * 1e-6  # within KernelBench's absolute tolerance
    assert not judged(torch.zeros(64, 64), x.double(), x, kernelbench=True).ok


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 5)])
def test_empty_outputs_pass(shape):
    empty = torch.empty(shape)
    assert judged(empty, empty.double(), empty, kernelbench=True).ok


def test_form_is_checked():
    x = random(4, 4)
    for other in (random(4, 5), x.double(), x[0]):
        finding = judged(other, x.double(), x)
        assert not finding.ok
        assert "float" in finding.message
    with pytest.raises(ValueError, match="shape"):
        expect("", x.double()[0], x)


def test_kernelbench_tolerance_holds_as_well():
    own = random(64, 64) * 1e-1
    oracle = own.double() + 1e-3  # torch's own error is large, so ours may be, but not that way
    actual = (oracle + 5e-4).float()
    assert judged(actual, oracle, own).ok
    finding = judged(actual, oracle, own, kernelbench=True)
    assert not finding.ok
    assert "KernelBench" in finding.message


def test_a_value_far_below_the_scale_of_its_sum_needs_the_response():
    x = torch.full((1,), 1e-7)  # left over from terms of the order of one
    actual = x + 3e-8
    assert not judged(actual, x.double(), x).ok
    assert judged(actual, x.double(), x, response=1e-9).ok
    assert not judged(x + 1e-6, x.double(), x, response=1e-9).ok


def test_complex_outputs():
    x = torch.complex(random(8, 8), random(8, 8, seed=1))
    assert judged(x.clone(), x.to(torch.complex128), x).ok
    wrong = x.clone()
    wrong[2, 3] += 1j
    finding = judged(wrong, x.to(torch.complex128), x)
    assert not finding.ok
    assert finding.evidence["index"] == [2, 3]


def test_errors_report_limits_and_torchs_own():
    x = random(64, 64)
    oracle, own = torch.exp(x.double()), torch.exp(x)
    error = judged(own, oracle, own).error
    assert error.relative_rms == pytest.approx(error.relative_rms_torch)
    assert 0 < error.worst == pytest.approx(error.worst_torch)
    assert error.relative_rms_limit >= 64 * torch.finfo(torch.float32).eps
    assert error.worst_limit > error.relative_rms_limit


@settings(max_examples=40, deadline=None)
@given(
    shape=st.lists(st.integers(0, 33), min_size=0, max_size=3),
    seed=st.integers(0, 1000),
    scale=st.sampled_from([1e-20, 1.0, 1e20]),
)
def test_the_oracles_own_rounding_always_passes_and_noise_never_does(shape, seed, scale):
    oracle = random(*shape, seed=seed).double() * scale * math.pi
    own = oracle.float()
    assert judged(own, oracle, own, kernelbench=True).ok
    if own.numel():
        wrong = own.clone()
        wrong.view(-1)[seed % own.numel()] = 2 * float(own.abs().max()) + scale
        assert not judged(wrong, oracle, own).ok
