"""Operators that slice what they compute and put parts together: one kernel, and what torch gives.

Each stands as users write it, in several ways, in place and not.
"""

import pytest
import torch
from printing import ALL, DEVICES, FEW, INTERPRETED, SCHEDULES, Lambda, fused, load, problem_of
from torch.nn import functional

from kerntree.coder.emit import emit_module
from kerntree.coder.errors import CannotLowerError
from kerntree.coder.kernel import Load, Store
from kerntree.coder.lowering import build_kernel, can_store_in_place
from kerntree.coder.rewrites.fuse import fused_all
from kerntree.coder.traffic import memory_traffic

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of infinities


def rotate_half(x):
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def rotary_by_chunks(q, cos, sin):
    q1, q2 = q.chunk(2, -1)
    q.copy_(torch.cat((q1 * cos - q2 * sin, q2 * cos + q1 * sin), -1))
    return q


def rotary_by_slices(q, cos, sin):
    half = q.shape[-1] // 2
    q1, q2 = q[..., :half], q[..., half:]
    o1, o2 = q1 * cos - q2 * sin, q2 * cos + q1 * sin
    q[..., :half] = o1
    q[..., half:] = o2
    return q


def rotary_interleaved(q, cos, sin):
    q1, q2 = q[..., ::2].float(), q[..., 1::2].float()
    o1, o2 = q1 * cos - q2 * sin, q2 * cos + q1 * sin
    q[..., ::2] = o1
    q[..., 1::2] = o2
    return q


def rotary_by_rotate_half(x, cos, sin):
    y = x.float()
    return (y * cos + rotate_half(y) * sin).to(x.dtype)


def rotary_by_rotate_half_in_place(x, cos, sin):
    y = x.float()
    x.copy_(y * cos + rotate_half(y) * sin)


def rotary_of_two(q, k, cos, sin):
    rotary_by_rotate_half_in_place(q, cos, sin)
    rotary_by_rotate_half_in_place(k, cos, sin)
    return q, k


def rotary_of_a_part(x, cos, sin):
    turned = x[..., : cos.shape[-1]].float()
    turned = (turned * cos + rotate_half(turned) * sin).to(x.dtype)
    return torch.cat((turned, x[..., cos.shape[-1] :]), -1)


def rotary_by_stack(x, cos, sin):
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2).to(x.dtype)


def rmsnorm_in_place(x, residual, weight):
    residual += x
    wide = residual.float()
    x.copy_(wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6) * weight)
    return x, residual


def swiglu(x):
    gate, up = x.chunk(2, -1)
    return functional.silu(gate) * up


def swiglu_in_float(x):
    gate, up = x.float().chunk(2, -1)
    return (functional.silu(gate) * up).to(x.dtype)


def swiglu_by_slices(x):
    half = x.shape[-1] // 2
    return functional.silu(x[..., :half]) * x[..., half:]


def masked_softmax(scores, mask):
    return torch.softmax(scores.masked_fill(~mask, float("-inf")).float(), -1).to(scores.dtype)


def added_softmax(scores, mask):
    return torch.softmax((scores + mask).float(), -1).to(scores.dtype)


def layernorm(x, weight, bias):
    return functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)


def selected_rows(x):
    y = x.clone()
    y[:, 0] = x[:, 1] * 2
    y[:, 1] = x[:, 0] + 1
    return y


def turned(heads, width, *, part=1.0):
    def make(dtype, rows):
        angles = torch.randn(rows, 1, int(width * part))
        return [torch.randn(rows, heads, width).to(dtype), angles.cos(), angles.sin()]

    return make


def halved(heads, width):
    """With cosines in the type of the tensor, one for both halves."""

    def make(dtype, rows):
        q, cos, sin = turned(heads, width, part=0.5)(dtype, rows)
        return [q, cos.to(dtype), sin.to(dtype)]

    return make


def two(dtype, rows):
    q, cos, sin = turned(4, 12)(dtype, rows)
    return [q, torch.randn(rows, 2, 12).to(dtype), cos, sin]


def rows_of(width, *more):
    def make(dtype, rows):
        rest = [torch.randn(width).to(dtype) if m == "row" else torch.randn(rows, width).to(dtype)
                for m in more]  # fmt: skip
        return [torch.randn(rows, width).to(dtype), *rest]

    return make


def scores(boolean):
    def make(dtype, rows):
        mask = torch.rand(rows, 1, 7, 19) > 0.4
        mask[..., 0] = True
        added = torch.where(mask, 0.0, float("-inf")).to(dtype)
        return [torch.randn(rows, 3, 7, 19).to(dtype), mask if boolean else added]

    return make


OPERATORS = {
    "rotary by chunks": (rotary_by_chunks, halved(3, 16), ("0",), 1),
    "rotary by chunks, odd": (rotary_by_chunks, halved(5, 22), ("0",), 1),
    "rotary by slices": (rotary_by_slices, halved(3, 10), ("0",), 1),
    "rotary interleaved": (rotary_interleaved, turned(3, 14, part=0.5), ("0",), 1),
    "rotary by rotate_half": (rotary_by_rotate_half, turned(3, 16), (), 1),
    "rotary by rotate_half, in place": (
        rotary_by_rotate_half_in_place, turned(3, 18), ("0",), 1,
    ),
    "rotary of queries and keys": (rotary_of_two, two, ("0", "1"), 2),
    "rotary of a part": (rotary_of_a_part, turned(3, 24, part=0.5), (), 1),
    "rotary by stack": (rotary_by_stack, turned(3, 16, part=0.5), (), 1),
    "residual and RMSNorm": (rmsnorm_in_place, rows_of(37, "rows", "row"), ("0", "1"), 1),
    "SwiGLU": (swiglu, rows_of(34), (), 1),
    "SwiGLU in float32": (swiglu_in_float, rows_of(38), (), 1),
    "SwiGLU by slices": (swiglu_by_slices, rows_of(32), (), 1),
    "SwiGLU, rows longer than there are rows": (swiglu, rows_of(260), (), 1),
    "softmax with a mask": (masked_softmax, scores(True), (), 1),
    "softmax with a sum": (added_softmax, scores(False), (), 1),
    "LayerNorm": (layernorm, rows_of(37, "row", "row"), (), 1),
    "selected rows": (selected_rows, lambda dtype, n: [torch.randn(n, 2, 9).to(dtype)], (), 1),
    "three parts": (
        lambda x: x.float().unbind(1)[0] + x.float().unbind(1)[2],
        lambda dtype, n: [torch.randn(n, 3, 9).to(dtype)], (), 1,
    ),
}  # fmt: skip
EVERYWHERE = ("rotary by chunks", "rotary by rotate_half, in place", "residual and RMSNorm")


def results(operator, given):
    result = operator(*given)
    found = [] if result is None else list(result) if isinstance(result, tuple) else [result]
    return [*found, *given]


class Copied(Lambda):
    """What changes its inputs and returns nothing returns the first of them."""

    def forward(self, *args):
        result = self.function(*args)
        return args[0] if result is None else result


def agrees(operator, module, given, target):
    given = [x.to(DEVICES[target]) for x in given]
    expected = results(Copied(operator), [x.clone() for x in given])
    got = results(module.ModelNew(), [x.clone() for x in given])
    for mine, theirs in zip(got, expected, strict=True):
        loose = 2e-2 if mine.dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(mine, theirs, rtol=loose, atol=loose)


def lowered(operator, given, mutated, printed_as):
    target, schedule = printed_as
    problem = problem_of(Copied(operator), given, mutated=mutated)
    program = fused(problem, SCHEDULES[target][schedule], target)
    program = fused_all(problem.cases[0].graph, program)
    return program, emit_module(problem, program)


def runs_here(printed_as):
    target, schedule = printed_as
    return not (INTERPRETED and target == "triton" and SCHEDULES["triton"][schedule].split)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("name", "printed_as"),
    [
        (name, how)
        for name in OPERATORS
        for how in (ALL if name in EVERYWHERE else FEW)
        if runs_here(how)
    ],
    ids=str,
)
def test_one_kernel(name, printed_as, dtype):
    torch.manual_seed(20)
    operator, make, mutated, kernels = OPERATORS[name]
    given = make(dtype, 5)
    program, candidate = lowered(operator, given, mutated, printed_as)
    assert [g.lowered for g in program.groups] == [True] * kernels, program
    agrees(operator, load(candidate), given, printed_as[0])


@pytest.mark.parametrize("name", [n for n, o in OPERATORS.items() if o[2]])
def test_written_in_place(name):
    operator, make, mutated, _ = OPERATORS[name]
    for printed_as in (("cpp", "fast"), ("triton", "fast")):
        source = lowered(operator, make(torch.bfloat16, 4), mutated, printed_as)[1].source
        assert source.count(" in place of ") == len(mutated)
        assert "torch.empty" not in source


@pytest.mark.parametrize("printed_as", [("cpp", "fast"), ("triton", "fast")], ids=str)
@pytest.mark.parametrize("name", ["rotary by chunks", "SwiGLU in float32", "softmax with a mask"])
def test_inputs_with_other_strides(name, printed_as):
    torch.manual_seed(21)
    operator, make, mutated, _ = OPERATORS[name]
    given = make(torch.bfloat16, 5)
    _, candidate = lowered(operator, given, mutated, printed_as)
    module = load(candidate)
    wide = torch.cat((given[0], given[0]), -1)[..., : given[0].shape[-1]]
    for strided in (wide, given[0].transpose(0, 1).contiguous().transpose(0, 1)):
        theirs, mine = strided.clone(), strided
        expected = operator(theirs, *given[1:])
        torch.testing.assert_close(
            module.ModelNew()(mine.to(DEVICES[printed_as[0]]), *given[1:]).cpu(),
            expected, rtol=2e-2, atol=2e-2,
        )  # fmt: skip


ANY_SIZE = (
    "rotary by slices",
    "rotary by rotate_half, in place",
    "SwiGLU, rows longer than there are rows",
    "residual and RMSNorm",
)


@pytest.mark.parametrize("name", ANY_SIZE)
@pytest.mark.parametrize(
    "printed_as", [("cpp", "fast"), ("cpp", "kept"), ("triton", "fast")], ids=str
)
def test_sizes_that_no_case_has(name, printed_as):
    torch.manual_seed(22)
    operator, make, mutated, kernels = OPERATORS[name]
    cases = []
    for rows in (1, 6, 40):
        given = make(torch.bfloat16, rows)
        problem = problem_of(Copied(operator), given, mutated=mutated)
        cases.append(problem.cases[0].model_copy(update={"name": f"n{rows}"}))
    problem = problem.model_copy(update={"cases": tuple(cases)})
    target, schedule = printed_as
    candidate = emit_module(problem, fused(problem, SCHEDULES[target][schedule], target))
    module = load(candidate)
    assert len(candidate.kernels) == kernels and module.FORMS == [] and module.FORM
    for rows in (1, 2, 5, 6, 17, 67):
        agrees(operator, module, make(torch.bfloat16, rows), target)


STAYS = {
    "very unequal parts": (
        lambda x, y: torch.cat((x * 2, y + 1), -1), [torch.randn(4, 3), torch.randn(4, 97)]
    ),
    "a sum over what was put together": (
        lambda x, y: torch.cat((x * 2, y), -1).sum(-1), [torch.randn(4, 5), torch.randn(4, 5)]
    ),
    "parts of several types": (
        lambda x, y: torch.cat((x * 2, y), -1), [torch.randn(4, 5), torch.randn(4, 5).bfloat16()]
    ),
    "a part of a sorted tensor": (lambda x: x.sort(-1)[0][:, :4] * 2, [torch.randn(4, 9)]),
    "cut along two dimensions": (
        lambda x: torch.cat((torch.cat((x, -x), 0), torch.cat((x * 2, x * 3), 0)), 1),
        [torch.randn(4, 6)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("printed_as", [("cpp", "fast"), ("triton", "fast")], ids=str)
@pytest.mark.parametrize("name", STAYS)
def test_what_has_no_equal_pieces_is_right_all_the_same(name, printed_as):
    operator, given = STAYS[name]
    program, candidate = lowered(operator, given, (), printed_as)
    assert not all(group.lowered for group in program.groups) or len(program.groups) > 1
    agrees(operator, load(candidate), given, printed_as[0])


def kernel_of(operator, given, mutated=()):
    problem = problem_of(Copied(operator), given, mutated=mutated)
    graph = problem.cases[0].graph
    return build_kernel(graph, [node.name for node in graph.nodes], name="k"), graph


def test_the_reason_is_told():
    operator, given = STAYS["very unequal parts"]
    with pytest.raises(CannotLowerError, match="8 equal pieces or fewer"):
        kernel_of(operator, given)


@pytest.mark.parametrize(
    "name", [n for n in OPERATORS if n.startswith("rotary by") and "stack" not in n]
)
def test_a_point_reads_each_half_once_and_writes_both(name):
    operator, make, mutated, _ = OPERATORS[name]
    given = make(torch.bfloat16, 4)
    kernel, _ = kernel_of(operator, given, mutated)
    x = [i for i in kernel.body if isinstance(i, Load) and i.access.tensor == "args_0"]
    stores = [i for i in kernel.body if isinstance(i, Store)]
    assert len(x) == len(stores) == 2 and len(kernel.writes) == 1
    read, written = memory_traffic(kernel, "reduce_inner")
    assert written == given[0].numel() * 2
    assert read == sum(t.numel() * t.element_size() for t in given)
    assert can_store_in_place(kernel, kernel.writes[0], "args_0")


def test_a_shift_is_not_written_in_place():
    def shifted(x):
        x.copy_(torch.cat((x[:, 4:], x[:, 4:] + x[:, :4]), -1).flip(0) * 1)
        return x

    def moved(x):
        x.copy_(torch.cat((x[:1] * 2, x[:1] + x[1:]), 0))
        return x

    def crossed(x):
        half = x.shape[-1] // 2
        x.copy_(x[..., half:].repeat(1, 2) + x.t().reshape(x.shape))
        return x

    for operator in (shifted, moved, crossed):
        for printed_as in (("cpp", "fast"), ("triton", "fast")):
            given = [torch.randn(2, 8)]
            candidate = lowered(operator, given, ("0",), printed_as)[1]
            agrees(operator, load(candidate), given, printed_as[0])


@pytest.mark.parametrize("printed_as", FEW, ids="-".join)
def test_two_tensors_that_change_places(printed_as):
    def swapped(x, y):
        first = x.clone()
        x.copy_(y)
        y.copy_(first)
        return x, y

    given = [torch.randn(4, 9), torch.randn(4, 9)]
    candidate = lowered(swapped, given, ("0", "1"), printed_as)[1]
    agrees(swapped, load(candidate), given, printed_as[0])
