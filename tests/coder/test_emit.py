"""Printed kernels give what torch gives, over shapes, types, schedules, NaN and infinities."""

import itertools

import pytest
import torch
from printing import (
    ALL,
    DEVICES,
    FEW,
    INTERPRETED,
    SCHEDULES,
    SOME,
    Lambda,
    check,
    fused,
    load,
    problem_of,
)
from torch.nn import functional

from kerntree.coder.emit import emit_module

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of infinities
HARD_DIMS = [(0,), (0, 2)]
TOGETHER = pytest.param(
    ("triton", "split"),
    marks=pytest.mark.skipif(INTERPRETED, reason="programs that wait for each other need a GPU"),
)


def special(shape, dtype=torch.float32):
    """Random values with NaN, infinities, zeros of both signs and a large one among them."""
    x = torch.randn(shape).to(dtype).flatten()
    for place, value in enumerate((float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 80.0)):
        if len(x) > 7 * (place + 1):
            x[7 * (place + 1)] = value
    return x.reshape(shape)


ROWS = {
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "layer norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "argmax and max": lambda x: (x.argmax(-1), x.amax(-1), x.argmin(-1)),
    "norm": lambda x: x / (x.norm(dim=-1, keepdim=True) + 1e-3),
    "variance": lambda x: (x.var(-1), x.mean(-1)),
    "product and any": lambda x: ((x * 0.5).prod(-1), (x > 1).any(-1), (x > -9).all(-1)),
}


def together(names):
    """One function with the results of all: many kernels for one run of the compiler."""

    def function(x):
        results = [ROWS[name](x) for name in names]
        return tuple(t for r in results for t in (r if isinstance(r, tuple) else (r,)))

    return function


@pytest.mark.parametrize("printed_as", ALL, ids="-".join)
@pytest.mark.parametrize("shape", [(5, 67), (2, 3, 1)])
def test_row_reductions(printed_as, shape):
    torch.manual_seed(0)
    names = [name for name in ROWS if shape[-1] > 1 or name != "variance"]
    check(Lambda(together(names)), [torch.randn(shape)], printed_as, scale=3e-5)


@pytest.mark.parametrize("printed_as", ALL, ids="-".join)
def test_special_values_stay_where_torch_has_them(printed_as):
    torch.manual_seed(1)
    x = special((6, 70))
    names = ["softmax", "log_softmax", "argmax and max", "layer norm"]
    check(Lambda(together(names)), [x], printed_as)
    pointwise = Lambda(lambda x: torch.relu(x) + torch.clamp(x, -1, 1) + torch.sigmoid(x))
    check(pointwise, [x], printed_as)


@pytest.mark.parametrize(
    ("dims", "printed_as"),
    [
        (d, printed_as)
        for n in (1, 2, 3)
        for d in itertools.combinations(range(3), n)
        for printed_as in SOME
        # a C++ compiler takes seconds: all dimensions under two schedules, some under all
        if printed_as[0] == "triton" or printed_as[1] in ("plain", "kept") or d in HARD_DIMS
    ],
)
def test_reductions_over_any_dimensions(printed_as, dims):
    torch.manual_seed(2)
    x = torch.randn(5, 7, 33)

    def centred(x):
        return x - x.mean(dims, keepdim=True), (x * x).sum(dims), x.amax(dims)

    check(Lambda(centred), [x], printed_as, scale=3e-5)


@pytest.mark.parametrize("printed_as", FEW, ids="-".join)
@pytest.mark.parametrize(
    ("first", "second"),
    [((4, 67), (67,)), ((4, 67), (4, 1)), ((3, 1, 5), (1, 4, 5)), ((1,), (130,)), ((), (9, 3)),
     ((2, 3, 4, 5), (3, 1, 5))],
)  # fmt: skip
def test_broadcasting(printed_as, first, second):
    torch.manual_seed(3)
    x, y = torch.randn(first), torch.randn(second)
    check(Lambda(lambda x, y: functional.gelu(x + y) * y), [x, y], printed_as)


@pytest.mark.parametrize("printed_as", FEW, ids="-".join)
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8]
)
def test_types(dtype, printed_as):
    torch.manual_seed(4)
    x = (torch.randn(4, 130) * 3).to(dtype)
    function = (
        (lambda x: torch.softmax(x * 2 + 1, -1)) if dtype.is_floating_point
        else (lambda x: (x * 3 + 1, x.sum(-1), x > 2, x.to(torch.float32) / 3, x.amax(0)))
    )  # fmt: skip
    check(Lambda(function), [x], printed_as)


@pytest.mark.parametrize("printed_as", [a for a in FEW if a[1] != "kept"], ids="-".join)
def test_point_functions(printed_as):
    torch.manual_seed(5)
    x = special((3, 70))
    y = torch.randn(3, 70) + 2.5
    functions = [
        lambda x, y: (torch.exp(x), torch.log(y.abs()), torch.tanh(x), torch.erf(x), x.abs()),
        lambda x, y: (x.sin(), y.cos(), y.rsqrt(), y.abs().sqrt(), x.floor(), x.round(), x.trunc()),
        lambda x, y: (x.sign(), x.isnan(), x.isinf(), x == x, x < y, torch.where(x > y, x, y)),
        lambda x, y: (torch.maximum(x, y), torch.minimum(x, y), y.pow(2), y.abs().pow(1.7), y**3),
        lambda x, y: (functional.silu(x), functional.gelu(y, approximate="tanh"), functional.elu(y),
                      functional.leaky_relu(x), functional.softplus(y), functional.hardswish(y)),
        lambda x, y: (torch.remainder(y, 0.7), torch.fmod(y, 0.7), torch.expm1(y),
                      torch.log1p(y.abs()), torch.div(y, 0.3, rounding_mode="floor"),
                      torch.div(y, 0.3, rounding_mode="trunc")),
        lambda x, y: (x.neg(), y.reciprocal(), 2 - x, torch.rsub(x, y, alpha=2),
                      x.masked_fill(y > 2, 7.0)),
    ]  # fmt: skip
    all_of_them = Lambda(lambda x, y: tuple(t for f in functions for t in f(x, y)))
    check(all_of_them, [x, y], printed_as, scale=2e-5)


@pytest.mark.parametrize(
    "printed_as", [*SOME, *((t, "kept columns") for t in SCHEDULES)], ids="-".join
)
def test_norms_of_images(printed_as):
    target, how = printed_as
    torch.manual_seed(6)
    x = torch.randn(2, 6, 5, 7)
    modules = [
        torch.nn.GroupNorm(3, 6), torch.nn.InstanceNorm2d(6), torch.nn.BatchNorm2d(6).eval(),
        torch.nn.LayerNorm([6, 5, 7]),
        Lambda(lambda x: x / torch.sqrt((x * x).mean(1, keepdim=True) + 1e-5)),
    ]  # fmt: skip
    for module in modules:
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter)
        source = "import torch\nclass Model(torch.nn.Module):\n    pass\n"
        problem = problem_of(module, [x], source=source)
        candidate = emit_module(problem, fused(problem, SCHEDULES[target][how], target))
        assert candidate.kernels
        printed = load(candidate).ModelNew()
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            printed.register_buffer(name, tensor.detach().to(DEVICES[target]))
        printed.get_parameter = printed.get_buffer
        got = printed(x.to(DEVICES[target])).cpu()
        torch.testing.assert_close(got, module(x).detach(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    "printed_as", [a for a in SOME if a[1] in ("plain", "one pass", "columns")], ids="-".join
)
def test_losses(printed_as):
    torch.manual_seed(7)
    x, y, t = torch.randn(33, 50), torch.randn(33, 50), torch.randint(0, 50, (33,))
    t[3] = -100
    for function, inputs in [
        (functional.cross_entropy, [x, t]),
        (functional.mse_loss, [x, y]),
        (functional.smooth_l1_loss, [x, y]),
        (lambda x, y: functional.kl_div(x, y.abs(), reduction="sum"), [x, y]),
    ]:
        check(Lambda(function), inputs, printed_as)


@pytest.mark.parametrize(
    "printed_as",
    [("cpp", "fast"), ("cpp", "one pass"), ("cpp", "kept"), TOGETHER],
    ids="-".join,
)
def test_long_sums_are_split_and_stay_accurate(printed_as):
    torch.manual_seed(8)
    x = torch.randn(3, 100_003)
    for function in (lambda x: x.double().sum(-1).float(), lambda x: x.std(-1)):
        check(Lambda(function), [x], printed_as, expect_kernel=False)
    candidate = check(Lambda(lambda x: torch.softmax(x, -1)), [x], printed_as)
    assert "parts" in candidate.source


@pytest.mark.parametrize("printed_as", [("cpp", "fast"), ("triton", "fast")], ids="-".join)
def test_inputs_that_are_not_contiguous(printed_as):
    torch.manual_seed(9)
    x = torch.randn(67, 12).t()
    y = torch.randn(12, 134)[:, ::2]
    check(Lambda(lambda x, y: torch.softmax(x + y, -1)), [x, y], printed_as)


@pytest.mark.parametrize("printed_as", [("cpp", "fast"), ("triton", "fast")], ids="-".join)
def test_views_are_read_where_they_lie(printed_as):
    torch.manual_seed(10)
    x = torch.randn(6, 8, 10)
    for function in (
        lambda x: torch.relu(x.permute(2, 0, 1)) + 1,
        lambda x: torch.relu(x[:, 2:7, ::3]) * 2,
        lambda x: torch.relu(x.reshape(12, 40)) + x.reshape(12, 40),
        lambda x: torch.relu(x[1] + x[2].unsqueeze(0)),
        lambda x: torch.relu(x[:, 0].unsqueeze(-1).expand(6, 10, 4)) - 1,
        lambda x: torch.relu(x[:, :6, :6] + x[:, :6, :6].transpose(1, 2)),
    ):
        check(Lambda(function), [x], printed_as, expect_kernel=False)


@pytest.mark.parametrize("printed_as", [("cpp", "fast"), ("triton", "fast")], ids="-".join)
def test_a_value_added_to_its_own_transpose(printed_as):
    x = torch.randn(16, 16)
    check(Lambda(lambda x: torch.relu(x + x.t())), [x], printed_as)


@pytest.mark.parametrize("printed_as", [("cpp", "fast"), ("triton", "fast")], ids="-".join)
def test_results_keep_the_width_of_their_type(printed_as):
    torch.manual_seed(16)
    exact = torch.rand(4, 70, dtype=torch.float64)
    check(Lambda(lambda x: x.clamp(0.1, 0.9)), [exact], printed_as, scale=1e-14)
    small = torch.randint(0, 256, (4, 70), dtype=torch.uint8)
    check(Lambda(lambda x: (x.amax(-1, keepdim=True) * 3).float()), [small], printed_as)
    truth = torch.rand(4, 70) > 0.97
    check(Lambda(lambda x: (x.amax(-1), x.amin(-1))), [truth], printed_as)
