"""Printed kernels give what torch gives, over shapes, types, schedules, NaN and infinities."""

import atexit
import importlib.util
import itertools
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from kerntree.coder.emit import emit_module
from kerntree.coder.errors import CannotLowerError
from kerntree.coder.groups import root_program
from kerntree.coder.lowering import build_kernel
from kerntree.coder.program import PLAIN, Group, Program, Schedule
from kerntree.coder.rewrites import REWRITES
from kerntree.evaluator.export import export_graph, spec_of
from kerntree.plans.problem import Case, InputSpec, OutputSpec, Problem

FAST = Schedule(vectorize=True, parallel=True, tile=True)
TILED = Schedule(tile=True)
SCHEDULES = {
    "cpp": {
        "plain": PLAIN,
        "vector": Schedule(vectorize=True),
        "fast": FAST,
        "one pass": replace(FAST, one_pass=True),
        "kept": replace(FAST, keep_row=True, stream=True, huge_pages=True),
        "columns": replace(FAST, order="reduce_outer"),
        "kept columns": replace(FAST, order="reduce_outer", keep_row=True, one_pass=True),
        "plain columns": Schedule(order="reduce_outer"),
    },
    "triton": {
        "plain": PLAIN,
        "fast": replace(TILED, keep_row=True),
        "one pass": replace(TILED, one_pass=True),
        "kept": replace(TILED, keep_row=True, stream=True, persist=True),
        "columns": replace(TILED, order="reduce_outer", one_pass=True),
        "kept columns": replace(TILED, order="reduce_outer", keep_row=True),
        "pipelined": replace(TILED, pipeline=True, persist=True, stream=True),
        "split": replace(TILED, split=True),
        "kept split": replace(TILED, split=True, keep_row=True, one_pass=True),
    },
}
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of infinities
ALL = [(target, name) for target, named in SCHEDULES.items() for name in named]
SOME = [(t, n) for t, n in ALL if n in ("plain", "fast", "kept", "columns", "one pass")]
HARD_DIMS = [(0,), (0, 2)]
FEW = [(t, n) for t, n in ALL if n in ("plain", "fast", "kept")]
DEVICES = {"cpp": "cpu", "triton": "cuda" if torch.cuda.is_available() else "cpu"}
INTERPRETED = DEVICES["triton"] == "cpu"
TOGETHER = pytest.param(
    ("triton", "split"),
    marks=pytest.mark.skipif(INTERPRETED, reason="programs that wait for each other need a GPU"),
)
PLACE = tempfile.mkdtemp()
atexit.register(shutil.rmtree, PLACE, ignore_errors=True)


class Lambda(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def problem_of(module, inputs, *, source=None, mutated=()):
    graph = export_graph(module, tuple(inputs))
    result = module(*[x.clone() if isinstance(x, torch.Tensor) else x for x in inputs])
    outputs = list(result) if isinstance(result, tuple) else [result]
    tree = {"tuple": list(range(len(outputs)))} if isinstance(result, tuple) else 0
    case = Case(
        name="given",
        inputs=tuple(
            InputSpec(path=str(k), name=f"x{k}", tensor=spec_of(x))
            if isinstance(x, torch.Tensor)
            else InputSpec(path=str(k), name=f"x{k}", value=x)
            for k, x in enumerate(inputs)
        ),
        outputs=tuple(OutputSpec(path=str(k), tensor=spec_of(o)) for k, o in enumerate(outputs)),
        output_tree=tree,
        mutated_inputs=mutated,
        graph=graph,
    )
    source = source or "import torch\n\nclass Model(torch.nn.Module):\n    pass\n"
    return Problem(name="p", path="p.py", folder="", source=source, cases=(case,))


def fused(problem, schedule, target="cpp"):
    """Everything lowered and fused as far as it goes, under one schedule."""
    graph = problem.cases[0].graph
    program = root_program(graph, target=target)
    for kind in ("lower", "fuse"):
        for strategy in REWRITES[kind].applicable(graph, program):
            if strategy.target == "all":
                program = REWRITES[kind].apply(graph, program, strategy)
                break
        else:
            singles = REWRITES[kind].applicable(graph, program)
            if singles and kind == "lower":
                program = REWRITES[kind].apply(graph, program, singles[0])
    return Program(
        target=target,
        groups=tuple(replace(g, schedule=schedule) if g.lowered else g for g in program.groups),
    )


def load(candidate):
    """The printed module, from a real file as Triton needs it, with many rows a program."""
    folder = Path(tempfile.mkdtemp(prefix="printed-", dir=PLACE))
    path = folder / "printed.py"
    path.write_text(candidate.source)
    spec = importlib.util.spec_from_file_location(f"printed_{folder.name[-8:]}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)  # our own text
    for name, values in candidate.tunables.items():
        if name.startswith("ROWS") and INTERPRETED:  # a program takes as long as a tile
            module.CONFIG[name] = max(values)
    return module


def check(module, inputs, printed_as, *, expect_kernel=True, exact=False, scale=1e-5):
    target, name = printed_as
    problem = problem_of(module, inputs)
    program = fused(problem, SCHEDULES[target][name], target)
    inputs = [x.to(DEVICES[target]) if isinstance(x, torch.Tensor) else x for x in inputs]
    if expect_kernel:
        assert any(group.lowered for group in program.groups)
    candidate = emit_module(problem, program)
    printed = load(candidate).ModelNew()
    results = []
    for run in (module, printed):
        result = run(*[x.clone() if isinstance(x, torch.Tensor) else x for x in inputs])
        results.append(result if isinstance(result, tuple) else (result,))
    for expected, got in zip(*results, strict=True):
        assert expected.shape == got.shape and expected.dtype == got.dtype
        if exact or not expected.is_floating_point():
            torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
        else:
            loose = {torch.bfloat16: 2e-2, torch.float16: 2e-3}.get(expected.dtype, scale)
            torch.testing.assert_close(got, expected, rtol=loose, atol=loose, equal_nan=True)
    return candidate


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


class InPlace(torch.nn.Module):
    def forward(self, x, r):
        r.add_(x)
        return r * torch.rsqrt((r * r).mean(-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize("printed_as", SOME, ids="-".join)
@pytest.mark.parametrize("contiguous", [True, False])
def test_what_the_reference_changes_is_changed(printed_as, contiguous):
    target, name = printed_as
    torch.manual_seed(11)
    x, r = torch.randn(5, 66), torch.randn(66, 5).t() if not contiguous else torch.randn(5, 66)
    problem = problem_of(InPlace(), [x, r], mutated=("1",))
    program = fused(problem, SCHEDULES[target][name], target)
    printed = load(emit_module(problem, program)).ModelNew()
    expected_r, got_r = r.clone(), r.clone(memory_format=torch.preserve_format)
    got_r = got_r.to(DEVICES[target])
    expected, got = InPlace()(x, expected_r), printed(x.to(DEVICES[target]), got_r)
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got_r.cpu(), expected_r, rtol=0, atol=0)


def test_other_inputs_than_those_searched_for_are_refused():
    problem = problem_of(Lambda(torch.relu), [torch.randn(4, 4)])
    printed = load(emit_module(problem, fused(problem, FAST))).ModelNew()
    with pytest.raises(ValueError, match="made for inputs"):
        printed(torch.randn(4, 5))


def test_a_printed_module_stands_alone(tmp_path):
    problem = problem_of(Lambda(lambda x: torch.softmax(x, -1)), [torch.randn(4, 70)])
    path = tmp_path / "kernel.py"
    path.write_text(emit_module(problem, fused(problem, FAST)).source)
    code = (
        f"import sys, runpy; module = runpy.run_path({str(path)!r})\n"
        "import torch; module['ModelNew']()(torch.randn(4, 70))\n"
        "assert not any(name.startswith('kerntree') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=60)


def test_loading_a_kernel_leaves_the_floating_point_mode_alone():
    tiny = torch.tensor([1e-40])
    problem = problem_of(Lambda(lambda x: torch.exp(x) * 2), [torch.randn(99)])
    load(emit_module(problem, fused(problem, FAST))).ModelNew()(torch.randn(99))
    assert (tiny * 0.5).item() > 0


def test_a_missing_or_broken_compiler_is_named(monkeypatch):
    problem = problem_of(Lambda(torch.relu), [torch.randn(4, 4)])
    module = load(emit_module(problem, fused(problem, FAST)))
    module.CPP += "\nthis is not C++;"
    with pytest.raises(RuntimeError, match="build failed"):
        module.build()
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(RuntimeError, match="no C\\+\\+ compiler"):
        module.build()


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x.sum(0).amax() + x.sum(1), "different dimensions"),
        (lambda x: torch.mm(x, x), "no loop nest"),
        (lambda x: x.cumsum(0), "no loop nest"),
    ],
)
def test_what_does_not_fit_one_kernel_says_why(function, reason):
    graph = export_graph(Lambda(function), (torch.randn(8, 8),))
    with pytest.raises(CannotLowerError, match=reason):
        build_kernel(graph, [node.name for node in graph.nodes], name="k")


@pytest.mark.parametrize("printed_as", [("cpp", "fast"), ("triton", "fast")], ids="-".join)
def test_groups_that_stay_with_torch_run_beside_kernels(printed_as):
    torch.manual_seed(12)
    x = torch.randn(16, 16)
    candidate = check(Lambda(lambda x: torch.relu(torch.mm(x, x) + 1)), [x], printed_as)
    assert candidate.torch_calls == ("mm",)
    root = problem_of(Lambda(torch.relu), [x])
    plain = Program(target="cpp", groups=(Group(nodes=("relu",)),))
    assert emit_module(root, plain).language == "torch"


def test_a_tensor_read_for_a_reduction_and_for_each_element_is_walked_once():
    def by_channel(x):
        return x / torch.sqrt((x**2).mean(1, keepdim=True) + 1e-5)

    graph = export_graph(Lambda(by_channel), (torch.randn(2, 6, 5, 7),))
    kernel = build_kernel(graph, [node.name for node in graph.nodes], name="k")
    assert sorted(dim.extent for dim in kernel.dims) == [2, 6, 35]


def test_what_differs_along_both_readings_is_not_walked_as_one():
    torch.manual_seed(13)
    x = torch.randn(9, 9)

    def distances(x):
        return (x.unsqueeze(0) - x.unsqueeze(1)).abs().sum(-1)

    def products(x):
        return (x.unsqueeze(2) * x.unsqueeze(1)).sum(1)

    check(Lambda(distances), [x], ("cpp", "fast"))
    check(Lambda(products), [x], ("cpp", "fast"))
    check(Lambda(lambda x: x.t() / x.sum(1, keepdim=True)), [x], ("cpp", "fast"))
    check(Lambda(lambda x: x / x.t().sum(1, keepdim=True)), [x], ("triton", "fast"))


BOTH = [("cpp", "fast"), ("triton", "fast")]


@pytest.mark.parametrize("printed_as", BOTH, ids="-".join)
def test_what_torch_calls_leave_with_other_strides_is_read_right(printed_as):
    torch.manual_seed(14)
    target, _ = printed_as
    x = torch.randn(5, 6)
    problem = problem_of(Lambda(lambda x: torch.relu(x.t())), [x])
    graph = problem.cases[0].graph
    program = root_program(graph, target=target)
    (step,) = REWRITES["lower"].applicable(graph, program)
    program = REWRITES["lower"].apply(graph, program, step)
    assert {group.lowered for group in program.groups} == {True, False}
    printed = load(emit_module(problem, program)).ModelNew()
    got = printed(x.to(DEVICES[target])).cpu()
    torch.testing.assert_close(got, torch.relu(x.t()))


def test_a_reduction_over_one_element_is_no_kernel_with_one_over_several():
    inputs = (torch.randn(3, 1), torch.randn(3, 7))
    graph = export_graph(Lambda(lambda m, x: m.sum(-1) - x.sum(-1)), inputs)
    with pytest.raises(CannotLowerError, match="one element"):
        build_kernel(graph, [node.name for node in graph.nodes], name="k")


class Overwritten(torch.nn.Module):
    def forward(self, x, out):
        out.copy_(torch.relu(x))
        return x * 2


@pytest.mark.parametrize("printed_as", BOTH, ids="-".join)
def test_an_input_that_is_only_written_is_written(printed_as):
    target, how = printed_as
    x, out = torch.randn(4, 70), torch.zeros(4, 70)
    problem = problem_of(Overwritten(), [x, out.clone()], mutated=("1",))
    program = fused(problem, SCHEDULES[target][how], target)
    printed = load(emit_module(problem, program)).ModelNew()
    got = out.to(DEVICES[target])
    printed(x.to(DEVICES[target]), got)
    torch.testing.assert_close(got.cpu(), torch.relu(x))


class RunningMean(torch.nn.Module):
    def forward(self, x, r):
        mean = x.mean(-1, keepdim=True)
        r.mul_(0.9).add_(mean * 0.1)
        return x - r


def test_a_row_value_is_not_written_where_others_still_read_it():
    inputs = [torch.randn(2, 40000), torch.randn(2, 1)]
    problem = problem_of(RunningMean(), inputs, mutated=("1",))
    candidate = emit_module(problem, fused(problem, SCHEDULES["triton"]["kept split"], "triton"))
    assert "in place of" not in candidate.source


def powers_too(x):
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers, powers / powers.sum(-1, keepdim=True)


@pytest.mark.parametrize(
    ("function", "quiet"),
    [
        (lambda x: torch.softmax(x, -1), True),
        (lambda x: torch.log_softmax(x, -1), True),
        (powers_too, False),
    ],
)
def test_a_maximum_tells_of_nan_unless_a_sum_does(function, quiet):
    problem = problem_of(Lambda(function), [torch.randn(4, 70)])
    nodes = tuple(node.name for node in problem.cases[0].graph.nodes)
    group = Group(nodes=nodes, lowered=True, schedule=SCHEDULES["triton"]["fast"])
    source = emit_module(problem, Program(target="triton", groups=(group,))).source
    assert ("lost" not in source) == quiet


def test_a_parameter_may_have_a_name_that_kernels_use():
    class Model(torch.nn.Module):
        def forward(self, i0, part_of_row, tile):
            return torch.softmax(i0.transpose(0, 1) + part_of_row + tile, -1)

    inputs = [torch.randn(6, 4, 5), torch.randn(4, 6, 5), torch.randn(5)]
    check(Model(), inputs, ("triton", "plain"))
