"""What a printed module does beside computing: inputs changed, torch calls, names, its own file."""

import subprocess
import sys

import pytest
import torch
from printing import DEVICES, FAST, SCHEDULES, SOME, Lambda, check, fused, load, problem_of

from kerntree.coder.emit import emit_module
from kerntree.coder.errors import CannotLowerError
from kerntree.coder.groups import root_program
from kerntree.coder.lowering import build_kernel
from kerntree.coder.program import Group, Program
from kerntree.coder.rewrites import REWRITES
from kerntree.evaluator.export import export_graph

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of infinities


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


class ScaledInPlace(torch.nn.Module):
    def forward(self, x, target):
        x.mul_(0.5)
        return torch.log_softmax(x, -1).gather(1, target)


@pytest.mark.parametrize("printed_as", SOME, ids="-".join)
def test_what_is_gathered_from_is_not_overwritten(printed_as):
    """A gathered element is read after others of its row were written, by whichever thread."""
    target, name = printed_as
    torch.manual_seed(12)
    x, places = torch.randn(5, 66), torch.randint(66, (5, 1))
    problem = problem_of(ScaledInPlace(), [x, places], mutated=("0",))
    program = fused(problem, SCHEDULES[target][name], target)
    assert len(program.groups) == 1
    candidate = emit_module(problem, program)
    assert "in place of" not in candidate.source
    changed, got_changed = x.clone(), x.to(DEVICES[target], copy=True)
    expected = ScaledInPlace()(changed, places)
    got = load(candidate).ModelNew()(got_changed, places.to(DEVICES[target]))
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got_changed.cpu(), changed, rtol=0, atol=0)


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


class OverwrittenUnderAView(torch.nn.Module):
    def forward(self, x, w):
        view = x.t()
        grown = torch.relu(x)
        product = torch.mm(view, w)
        x.copy_(grown * 2)
        return product


@pytest.mark.parametrize("printed_as", BOTH, ids="-".join)
def test_an_input_is_not_overwritten_while_a_view_of_it_is_to_be_read(printed_as):
    torch.manual_seed(17)
    target, how = printed_as
    x, w = torch.randn(5, 5), torch.randn(5, 5)
    problem = problem_of(OverwrittenUnderAView(), [x.clone(), w], mutated=("0",))
    program = fused(problem, SCHEDULES[target][how], target)
    printed = load(emit_module(problem, program)).ModelNew()
    got = x.clone().to(DEVICES[target])
    product = printed(got, w.to(DEVICES[target])).cpu()
    torch.testing.assert_close(product, torch.mm(x.t(), w))
    torch.testing.assert_close(got.cpu(), torch.relu(x) * 2)


def test_a_power_of_zero_is_no_kernel_and_no_crash():
    graph = export_graph(Lambda(lambda x: x.pow(0)), (torch.randn(4, 5),))
    with pytest.raises(CannotLowerError):
        build_kernel(graph, [node.name for node in graph.nodes], name="k")
