"""Printed kernels keep to torch's numbers where they are hard: infinities, NaN, type ranges."""

import math

import pytest
import torch
from printing import ALL, INTERPRETED, SOME, Lambda, check
from torch.nn import functional

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of infinities
INF, NAN = math.inf, math.nan
SPLIT = ("split", "kept split")
ALONE = [a for a in ALL if a[1] not in SPLIT or a[0] == "cpp"]
TOGETHER = [
    pytest.param(
        ("triton", name),
        marks=pytest.mark.skipif(
            INTERPRETED, reason="programs that wait for each other need a GPU"
        ),
    )
    for name in SPLIT
]


def hard_rows(columns, dtype=torch.float32):
    """A row for each way in which infinities and NaN meet, first, last and far from each other."""
    x = torch.randn(16, columns).to(dtype)
    last, middle = columns - 1, columns // 2
    x[1, 3] = INF
    x[2, last] = INF
    x[3, 0] = -INF
    x[4, middle] = -INF
    x[5, :] = -INF
    x[6, :] = INF
    x[7, middle] = NAN
    x[8, 0], x[8, last] = INF, -INF
    x[9, 2], x[9, middle] = INF, NAN
    x[10, 2], x[10, middle] = NAN, -INF
    x[11, :last] = -INF
    x[12, 1:] = -INF
    x[13, : middle + 1] = -INF
    x[14, 3], x[14, middle] = INF, INF
    x[15, : columns // 3] = -1e30
    return x


def shifted_sums(x):
    peak = x.amax(-1, keepdim=True)
    return torch.exp(x - peak).sum(-1), peak


def spread(x):
    mean = x.mean(-1, keepdim=True)
    return (x - mean).square().mean(-1), mean


HARD_REDUCTIONS = {
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "shifted sums": shifted_sums,
    "layer norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "variance": lambda x: x.var(-1),
    "spread": spread,
}


def all_reductions(x):
    results = [function(x) for function in HARD_REDUCTIONS.values()]
    return tuple(t for r in results for t in (r if isinstance(r, tuple) else (r,)))


@pytest.mark.parametrize("printed_as", [*ALONE, *TOGETHER], ids=str)
def test_infinities_and_nan_in_reductions(printed_as):
    torch.manual_seed(0)
    check(Lambda(all_reductions), [hard_rows(70)], printed_as, scale=3e-5)


@pytest.mark.parametrize("printed_as", [("cpp", "one pass"), ("cpp", "fast"), *TOGETHER], ids=str)
def test_infinities_and_nan_in_rows_that_threads_share(printed_as):
    torch.manual_seed(1)
    x = hard_rows(40_001)
    for rows in (x[:6], x[6:12], x[10:]):
        check(Lambda(all_reductions), [rows.contiguous()], printed_as, scale=3e-4)


@pytest.mark.parametrize("printed_as", [a for a in SOME if "one" in a[1]], ids=str)
@pytest.mark.parametrize("dim", [(1, 2), (0, 2)])
def test_infinities_and_nan_over_several_dimensions(printed_as, dim):
    torch.manual_seed(2)
    x = hard_rows(33)[:, None].repeat(1, 3, 1)
    x[5, 1, 2] = 1.0
    check(Lambda(lambda x: (x.var(dim), x.mean(dim))), [x], printed_as, scale=3e-5)


@pytest.mark.parametrize("printed_as", [("triton", "one pass"), ("cpp", "one pass")], ids=str)
def test_moments_are_as_exact_as_their_type(printed_as):
    torch.manual_seed(3)
    x = torch.randn(3, 9000, dtype=torch.float64) * 100 + 1e4
    check(Lambda(spread), [x], printed_as, scale=1e-12)


WHOLE = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
PLAIN_AND_FAST = [a for a in ALL if a[1] in ("plain", "fast")]


def hard_whole_numbers(dtype, shape, seed):
    """Numbers over a type's whole range, its ends among them."""
    given = torch.Generator().manual_seed(seed)
    ends = torch.iinfo(dtype)
    x = torch.randint(ends.min, ends.max, shape, dtype=dtype, generator=given).flatten()
    hard = [ends.min, ends.max, ends.min + 1, ends.max // 2 + 1, 0, 1, 3]
    hard += [-1, -3, ends.min // 2] if ends.min else []
    x[: len(hard)] = torch.tensor(hard, dtype=dtype)
    return x.reshape(shape)


def arithmetic(x, y):
    return (
        x * y + x, x - y, x * -1, x + 300, 2 - x, -x, x.abs() if x.dtype != torch.uint8 else x,
        x.sign(), torch.add(x, y, alpha=-3), torch.addcmul(x, y, x, value=2), x**2, torch.relu(x),
        torch.clamp(x, 2, 100), torch.rsub(x, y, alpha=5),
    )  # fmt: skip


def quotients(x, y):
    # torch divides by zero with an error, and dies of the least number over -1
    x = torch.clamp(x, torch.iinfo(x.dtype).min + 1)
    y = torch.where(y == 0, 7, y)
    return (
        torch.div(x, y, rounding_mode="floor"), torch.div(x, y, rounding_mode="trunc"),
        torch.remainder(x, y), torch.fmod(x, y), x / y, x // 3, x % 3, x // -3, x % -3,
        torch.div(x, -3, rounding_mode="trunc"), torch.fmod(x, -3),
        torch.div(x, -1, rounding_mode="floor"), torch.div(x, -1, rounding_mode="trunc"),
        torch.remainder(x, -1), torch.fmod(x, -1),
    )  # fmt: skip


def bits_and_tests(x, y):
    return (
        x & y, x | y, x ^ y, ~x, x ^ -1, x & 12, x > y, x >= -1, x < 300, x == 300, x != y,
        torch.maximum(x, y), torch.minimum(x, y), torch.where(x > y, x, -1),
        x.masked_fill(x > 3, -1), torch.full_like(x, -1) + x, torch.logical_xor(x, y),
        torch.maximum(x, torch.tensor(-1, dtype=x.dtype) if x.dtype.is_signed else y),
    )  # fmt: skip


def sums(x, y):
    return (
        (x * y).sum(-1), x.sum(-1), x.sum(-1, dtype=x.dtype), x.sum(-1, dtype=torch.int32),
        x.prod(-1), x.prod(-1, dtype=x.dtype), x.amax(-1), x.amin(-1), x.argmax(-1),
        x.argmin(-1), x.any(-1), x.all(-1), x.sum(), (x.to(torch.float32) / 3).sum(-1),
    )  # fmt: skip


def casts(x, y):
    types = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool]
    floats = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
    return tuple((x + y).to(t) for t in (*types, *floats))


WHOLE_NUMBERS = (arithmetic, quotients, bits_and_tests, sums, casts)


@pytest.mark.parametrize("printed_as", PLAIN_AND_FAST, ids=str)
@pytest.mark.parametrize("dtype", WHOLE, ids=str)
def test_whole_numbers_wrap_as_in_torch(dtype, printed_as):
    x, y = (hard_whole_numbers(dtype, (4, 70), seed) for seed in (4, 5))
    y = y.flip(-1).contiguous()

    def function(x, y):
        return tuple(t for f in WHOLE_NUMBERS for t in f(x, y))

    check(Lambda(function), [x, y], printed_as)


@pytest.mark.parametrize("printed_as", PLAIN_AND_FAST, ids=str)
def test_truth_in_arithmetic(printed_as):
    torch.manual_seed(6)
    p, q = torch.rand(4, 70) > 0.5, torch.rand(4, 70) > 0.5
    x = torch.randn(4, 70)

    def function(p, q, x):
        return (
            p + q, p * q, p & q, p | q, p ^ q, ~p, torch.maximum(p, q), torch.minimum(p, q),
            p * -1, p + 2, p * x, p.sum(-1), p.sum(-1, dtype=torch.int8), p.prod(-1), p > q, p == 2,
            p < 0.5, torch.add(p, q, alpha=True), torch.where(p, q, x > 0), p.to(torch.float16),
            torch.clamp(p, 0, 1), p.sign(), p**2, p.any(-1), p.all(-1), p.amax(-1),
            x.to(torch.bool), p.masked_fill(q, True), p <= q, p.float().mean(-1),
        )  # fmt: skip

    check(Lambda(function), [p, q, x], printed_as)


@pytest.mark.parametrize("printed_as", PLAIN_AND_FAST, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_real_numbers_become_whole_ones(dtype, printed_as):
    torch.manual_seed(7)
    x = torch.randn(4, 70).to(dtype) * 40
    x[0, :4] = torch.tensor([-0.9, 0.9, -1.0, 127.0]).to(dtype)
    wide = x * 2.0**50

    def function(x, wide):
        small = [x.clamp(-127, 127).to(t) for t in (torch.int8, torch.int16, torch.int32)]
        return (*small, x.abs().clamp(0, 255).to(torch.uint8), wide.to(torch.int64), x.long())

    check(Lambda(function), [x, wide], printed_as)
