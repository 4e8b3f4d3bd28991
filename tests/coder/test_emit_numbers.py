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
