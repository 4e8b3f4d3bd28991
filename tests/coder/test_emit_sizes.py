"""Kernels whose outermost extent is an argument: one module for sizes that no case has."""

import pytest
import torch
from printing import ALL, DEVICES, FEW, INTERPRETED, SCHEDULES, Lambda, fused, load, problem_of
from torch.nn import functional

from kerntree.coder.emit import emit_module
from kerntree.coder.sizes import Size, formula, most_rows, with_formulas

SEARCHED = (1, 6, 40)
UNSEEN = (1, 2, 5, 6, 17, 40, 67)


def rmsnorm_in_place(x, r):
    r.add_(x)
    return r * torch.rsqrt(r.pow(2).mean(-1, keepdim=True) + 1e-6)


def pair(n, width=48):
    return [torch.randn(n, width), torch.randn(n, width)]


OPERATORS = {
    "RMSNorm in place": (rmsnorm_in_place, pair, ("1",)),
    "softmax": (lambda x: torch.softmax(x, dim=-1), lambda n: [torch.randn(n, 70)], ()),
    "pointwise": (lambda x, y: functional.gelu(x) * y + 1, pair, ()),
    "halves": (
        lambda x: functional.silu(x[..., :24]) * x[..., 24:],
        lambda n: [torch.randn(n, 48)],
        (),
    ),
    "a row for all": (lambda x, y: x * y, lambda n: [torch.randn(n, 3, 16), torch.randn(16)], ()),
    "rows of rows": (lambda x: x.softmax(-1), lambda n: [torch.randn(n, 3, 33)], ()),
    "a matrix product": (
        lambda x, w: torch.softmax(x @ w, dim=-1),
        lambda n: [torch.randn(n, 8), torch.randn(8, 33)],
        (),
    ),
    "flattened": (
        lambda x: functional.layer_norm(x, (20,)).reshape(-1, 10) * 2,
        lambda n: [torch.randn(n, 4, 20)],
        (),
    ),
    "rows that are indices": (
        lambda x, i: torch.softmax(x, -1) * i[:, None],
        lambda n: [torch.randn(n, 20), torch.arange(n) % 7],
        (),
    ),
}


def cases_of(operator, make, sizes, mutated=()):
    found = []
    for n in sizes:
        given = make(*n) if isinstance(n, tuple) else make(n)
        problem = problem_of(Lambda(operator), given, mutated=mutated)
        name = f"n{n}".replace(" ", "")
        found.append(problem.cases[0].model_copy(update={"name": name}))
    return problem.model_copy(update={"cases": tuple(found)})


def printed(operator, make, sizes, printed_as, mutated=()):
    target, schedule = printed_as
    problem = cases_of(operator, make, sizes, mutated)
    candidate = emit_module(problem, fused(problem, SCHEDULES[target][schedule], target))
    return candidate, load(candidate)


def agrees(operator, module, given, target):
    given = [x.to(DEVICES[target]) for x in given]
    copies = [x.clone() for x in given]
    expected, got = operator(*copies), module.ModelNew()(*given)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(given, copies, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


ALWAYS = ("RMSNorm in place", "halves")


@pytest.mark.parametrize(
    ("name", "printed_as"),
    [(name, how) for name in OPERATORS for how in (ALL if name in ALWAYS else FEW)],
    ids=str,
)
def test_sizes_that_no_case_has(name, printed_as):
    if INTERPRETED and printed_as[0] == "triton" and SCHEDULES["triton"][printed_as[1]].split:
        pytest.skip("programs that wait for each other need a GPU")
    operator, make, mutated = OPERATORS[name]
    candidate, module = printed(operator, make, SEARCHED, printed_as, mutated)
    assert candidate.kernels
    assert module.FORMS == [] and module.FORM
    for n in UNSEEN:
        agrees(operator, module, make(n), printed_as[0])


@pytest.mark.parametrize("printed_as", [("cpp", "fast"), ("triton", "fast")], ids=str)
def test_two_sizes(printed_as):
    def make(batch, length):
        return [torch.randn(batch, length, 24), torch.randn(batch, length, 24)]

    sizes = ((1, 5), (2, 8), (4, 3))
    operator = OPERATORS["RMSNorm in place"][0]
    _, module = printed(operator, make, sizes, printed_as, ("1",))
    assert "rows" not in module.FORM and "size_0" in module.FORM and "size_1" in module.FORM
    for batch, length in (*sizes, (1, 1), (3, 7), (5, 9)):
        agrees(operator, module, make(batch, length), printed_as[0])


@pytest.mark.parametrize("printed_as", [("cpp", "fast"), ("triton", "fast")], ids=str)
def test_what_was_not_inferred_is_refused(printed_as):
    operator, make, mutated = OPERATORS["RMSNorm in place"]
    _, module = printed(operator, make, SEARCHED, printed_as, mutated)
    x, y = make(4)
    for given in ([x, make(5)[1]], pair(4, width=49), [x.double(), y], [x[0], y], [x[:0], y[:0]]):
        with pytest.raises(ValueError, match=r"made for inputs .*rows.*, not for"):
            module.ModelNew()(*given)


@pytest.mark.parametrize("printed_as", [("cpp", "fast"), ("triton", "fast")], ids=str)
def test_a_reduced_size_keeps_a_kernel_for_each_case(printed_as):
    """What is summed is part of the kernel: it is made for each case, and for no other size."""
    operator = OPERATORS["softmax"][0]
    _, module = printed(operator, lambda n: [torch.randn(4, n)], (16, 33), printed_as)
    assert len(module.FORMS) == 2
    for n in (16, 33):
        agrees(operator, module, [torch.randn(4, n)], printed_as[0])
    with pytest.raises(ValueError, match="not for"):
        module.ModelNew()(torch.randn(4, 20))


def test_each_case_has_its_own_config():
    operator, make, mutated = OPERATORS["RMSNorm in place"]
    candidate, module = printed(operator, make, (8, 600), ("triton", "fast"), mutated)
    assert set(candidate.case_tunables) == {"n8", "n600"}
    mine = {name for names in candidate.case_tunables.values() for name in names}
    assert mine == set(candidate.tunables) == set(candidate.config)
    assert max(candidate.tunables["ROWS_n8"]) < max(candidate.tunables["ROWS_n600"])
    launched = []
    kernel = next(value for name, value in vars(module).items() if name.startswith("kernel_"))

    class Recorded:
        def __getitem__(self, grid):
            launched.append(grid)
            return kernel[grid]

    setattr(module, kernel.__name__, Recorded())
    module.CONFIG |= {"ROWS_n8": 2, "ROWS_n600": 16}
    for n in (6, 8, 9, 600, 700):
        agrees(operator, module, make(n), "triton")
    assert launched == [(3,), (4,), (1,), (38,), (44,)]


def test_inputs_may_have_any_name():
    def operator(rows, size_of, case, CONFIG, parts):  # noqa: N803
        return torch.softmax(rows + size_of, -1) * case * CONFIG + parts

    for printed_as in (("cpp", "fast"), ("triton", "fast"), ("triton", "kept")):
        target, schedule = printed_as
        problem = cases_of(operator, lambda n: [torch.randn(n, 20) for _ in range(5)], (3, 50))
        names = ("rows", "size_of", "case", "CONFIG", "parts")
        cases = [
            case.model_copy(
                update={
                    "inputs": tuple(
                        spec.model_copy(update={"name": name})
                        for spec, name in zip(case.inputs, names, strict=True)
                    )
                }
            )
            for case in problem.cases
        ]
        problem = problem.model_copy(update={"cases": tuple(cases)})
        module = load(emit_module(problem, fused(problem, SCHEDULES[target][schedule], target)))
        agrees(operator, module, [torch.randn(7, 20) for _ in range(5)], target)


def test_formulas():
    rows = Size("rows", 0, 0, (1, 16, 512))
    length = Size("length", 0, 1, (7, 7, 9))
    assert formula([rows], (1, 16, 512)) == "rows"
    assert formula([rows], (4, 64, 2048)) == "rows * 4"
    assert formula([rows, length], (14, 224, 9216)) == "rows * length * 2"
    assert formula([rows], (5, 5, 5)) == "5"
    assert formula([rows], (0, 15, 511)) is None
    texts = ["a(1, -7, 7).b((1, 7))", "a(16, -112, 7).b((16, 7))", "a(512, -4608, 9).b((512, 9))"]
    assert (
        with_formulas(texts, [rows, length])
        == "a(rows, -(rows * length), length).b((rows, length))"
    )
    assert with_formulas(["x[1:]", "x[15:]", "x[511:]"], [rows]) is None
    assert with_formulas(["f(1)", "f(16)", "g(512)"], [rows]) is None


@pytest.mark.parametrize("width", [1, 48, 4096])
def test_no_address_passes_what_32_bits_hold(width):
    from kerntree.coder.lowering import build_kernel

    problem = cases_of(rmsnorm_in_place, lambda n: pair(n, width), (2, 3), ("1",))
    graph = problem.cases[0].graph
    program = fused(problem, SCHEDULES["triton"]["plain"], "triton")
    kernel = build_kernel(graph, program.groups[-1].nodes, name="k")
    most = most_rows(kernel)
    assert (most + 1) * width - 1 <= 2**31 <= (most + 2) * width + width


def test_a_kernel_that_is_too_narrow_refuses_more_rows():
    operator, make, mutated = OPERATORS["RMSNorm in place"]
    candidate, module = printed(operator, make, (8, 600), ("triton", "fast"), mutated)
    most = (2**31 - 1) // 48
    assert (
        f"and rows <= {most - 1}" in candidate.source or f"and rows <= {most}" in candidate.source
    )
    many = torch.empty(1, 48).expand(most + 1, 48)
    with pytest.raises(ValueError, match="not for"):
        module.ModelNew()(many, many)


@pytest.mark.parametrize("printed_as", [("cpp", "fast"), ("triton", "fast")], ids=str)
def test_a_case_without_weight_says_what_varies_and_is_not_searched_for(printed_as):
    operator, make, mutated = OPERATORS["RMSNorm in place"]
    target, schedule = printed_as
    problem = cases_of(operator, make, (50, 7), mutated)
    cases = (problem.cases[0], problem.cases[1].model_copy(update={"weight": 0.0}))
    problem = problem.model_copy(update={"cases": cases})
    candidate = emit_module(problem, fused(problem, SCHEDULES[target][schedule], target))
    module = load(candidate)
    assert module.SEARCHED == {"n50": 50}
    assert set(candidate.case_tunables) <= {"n50"}
    assert not [name for name in candidate.tunables if "n7" in name]
    for n in (1, 7, 50, 99):
        agrees(operator, module, make(n), target)


def test_a_case_without_weight_has_a_kernel_of_its_own_where_sizes_are_fixed():
    operator = OPERATORS["softmax"][0]
    problem = cases_of(operator, lambda n: [torch.randn(40, n)], (16, 33))
    cases = (problem.cases[0], problem.cases[1].model_copy(update={"weight": 0.0}))
    problem = problem.model_copy(update={"cases": cases})
    candidate = emit_module(problem, fused(problem, SCHEDULES["triton"]["fast"], "triton"))
    assert {len(v) > 1 for k, v in candidate.tunables.items() if k.endswith("n16")} == {True}
    assert {len(v) for k, v in candidate.tunables.items() if k.endswith("n33")} == {1}
    for n in (16, 33):
        agrees(operator, load(candidate), [torch.randn(40, n)], "triton")
