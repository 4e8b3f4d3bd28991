"""What the oracle prepares, and which results it takes for right."""

import os
import signal
import sys
from hashlib import sha256

import pytest
import torch

from kerntree.evaluator.blocks import output_layout
from kerntree.evaluator.distributions import DISTRIBUTIONS
from kerntree.evaluator.oracle import Oracle
from kerntree.evaluator.oracle_process import OracleProcess
from kerntree.evaluator.recipe import Recipe, Subject
from kerntree.evaluator.tensor_block import (
    create_block,
    decode,
    layout_of,
    map_block,
    private_copy,
    tensor_paths,
)
from kerntree.plans.errors import ProblemError
from kerntree.plans.graph import contiguous

SOFTMAX = """
class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)

def get_inputs():
    return [torch.randn(16, 40)]
"""
NORM = """
class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm = nn.LayerNorm(n)
        self.batch = nn.BatchNorm1d(n)

    def forward(self, x, residual, index):
        residual.add_(x)
        y = self.norm(residual)
        return {"y": self.batch(y), "at": (y.argmax(1), y[index] > 0)}

def get_inputs():
    return [torch.randn(16, 40), torch.randn(16, 40), torch.randint(0, 16, (8,))]

def get_init_inputs():
    return [40]
"""


@pytest.fixture(scope="module")
def outputs_only():
    """A process that leaves all but outputs uncompared."""
    with OracleProcess.start(outputs_only=True, seconds=60) as oracle:
        yield oracle


class Candidate:
    """What a child does, in this process: runs a `Model` on a prepared set, fills a block."""

    def __init__(self, oracle, path, *, seed=1, source=None):
        self.oracle = oracle
        self.problem = oracle.problem or oracle.describe(path)
        self.state = oracle.state(seed)
        names = {}
        exec(source or path.read_text(), names)
        init = map_block(self.state.fds[0], self.state.init_layout, writable=False)
        self.module = names["Model"](*decode(self.state.init, init))
        own = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        given = map_block(self.state.fds[1], self.state.state_layout, writable=False)
        self.given = dict(zip(self.state.names, given, strict=True))
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(self.given[name])
        self.own = own

    def run(self, prepared):
        """The results in the order of a block."""
        tensors = map_block(prepared.fd, prepared.layout, writable=False)
        strides = [placed.spec.strides for placed in prepared.layout.tensors]
        copies = [private_copy(t, s) for t, s in zip(tensors, strides, strict=True)]
        with torch.no_grad():
            for name, tensor in self.own.items():
                tensor.copy_(self.given[name])
            result = self.module(*decode(prepared.args, copies))
        case = next(c for c in self.problem.cases if c.name == prepared.case)
        results = [_at(result, output.path) for output in case.outputs]
        paths = tensor_paths(prepared.args)
        results += [copies[paths.index(path)] for path in case.mutated_inputs]
        return results + [self.own[name] for name in case.mutated_buffers]

    def judge(self, prepared, results):
        case = next(c for c in self.problem.cases if c.name == prepared.case)
        layout = output_layout(self.problem, case)
        fd = create_block(layout)
        try:
            with torch.no_grad():
                targets = map_block(fd, layout, writable=True)
                for target, source in zip(targets, results, strict=True):
                    target.copy_(source)
            return self.oracle.compare(prepared, layout=layout, fd=fd)
        finally:
            os.close(fd)


def _at(result, path):
    for key in path.split(".") if path else []:
        result = result[int(key) if isinstance(result, list | tuple) else key]
    return result


def described(oracle, path):
    oracle.describe(path)
    return oracle


@pytest.mark.parametrize("text", [SOFTMAX, NORM], ids=["softmax", "norms"])
def test_the_reference_itself_passes_on_every_distribution(shared, write, text):
    path = write(text)
    candidate = Candidate(described(shared, path), path)
    for distribution in DISTRIBUTIONS:
        prepared = shared.prepare("default", seed=2**61 + 3, distribution=distribution)
        assert prepared.skipped == ""
        found = candidate.judge(prepared, candidate.run(prepared))
        assert (found.ok, found.message) == (True, "")
        assert all(error.inputs == distribution for error in found.errors)
        shared.forget(prepared)
    candidate.state.close()


def test_what_is_compared_and_in_which_order(shared, write):
    path = write(NORM)
    candidate = Candidate(described(shared, path), path)
    prepared = shared.prepare("default", seed=7)
    results = candidate.run(prepared)
    found = candidate.judge(prepared, results)
    assert [error.output for error in found.errors] == [
        "y", "at.0", "at.1", "changed input 1", "changed buffer batch.running_mean",
        "changed buffer batch.running_var", "changed buffer batch.num_batches_tracked",
    ]  # fmt: skip
    for position, error in enumerate(found.errors):  # each one alone is enough to fail
        wrong = [result.clone() for result in results]
        wrong[position] = ~wrong[position] if position == 2 else wrong[position] + 1
        judged = candidate.judge(prepared, wrong)
        assert not judged.ok
        assert judged.evidence["output"] == error.output


def test_outputs_only_leaves_the_rest_uncompared(outputs_only, write):
    candidate = Candidate(described(outputs_only, path := write(NORM)), path)
    prepared = outputs_only.prepare("default", seed=7)
    results = candidate.run(prepared)
    results[3:] = [torch.zeros_like(result) for result in results[3:]]
    assert candidate.judge(prepared, results).ok
    results[0] = torch.zeros_like(results[0])
    assert not candidate.judge(prepared, results).ok


def test_a_wrong_element_is_shown_with_what_was_expected(shared, write):
    path = write(SOFTMAX)
    candidate = Candidate(described(shared, path), path)
    prepared = shared.prepare("default", seed=5)
    (result,) = candidate.run(prepared)
    right = float(result[15, 39])
    result[15, 39] = 0.75
    found = candidate.judge(prepared, [result])
    assert not found.ok
    assert found.evidence["index"] == [15, 39]
    assert found.evidence["got"] == 0.75
    assert found.evidence["torch"] == pytest.approx(right, rel=1e-6)
    assert "[15, 39]" in found.message


def test_a_result_for_other_inputs_fails(shared, write):
    path = write(SOFTMAX)
    candidate = Candidate(described(shared, path), path)
    one, other = (shared.prepare("default", seed=seed) for seed in (1, 2))
    assert not candidate.judge(other, candidate.run(one)).ok


def test_leaving_out_a_weight_of_ones_fails(shared, write):
    path = write(NORM)
    source = path.read_text().replace("self.norm(residual)", "F.layer_norm(residual, [40])")
    candidate = Candidate(described(shared, path), path, source=source)
    assert not bool((candidate.given["norm.weight"] == 1).all())
    prepared = shared.prepare("default", seed=3)
    assert not candidate.judge(prepared, candidate.run(prepared)).ok


def test_parameters_are_left_as_they_are_where_others_do_not_work(shared, write):
    text = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.zeros(40))

    def forward(self, x):
        return x + torch.log1p(-self.rate.abs().max().sign())

def get_inputs():
    return [torch.randn(4, 40)]
"""
    candidate = Candidate(described(shared, path := write(text)), path)
    assert not bool(candidate.given["rate"].any())


def test_a_seed_decides_inputs_and_state(shared, write):
    path = described(shared, write(NORM)).problem.path
    assert path.endswith("problem.py")

    def values(seed):
        prepared = shared.prepare("default", seed=seed)
        return map_block(prepared.fd, prepared.layout, writable=False)[0].clone()

    assert torch.equal(values(11), values(11))
    assert not torch.equal(values(11), values(12))
    one, same, other = (shared.state(seed) for seed in (1, 1, 2))
    blocks = [map_block(s.fds[1], s.state_layout, writable=False)[0] for s in (one, same, other)]
    assert torch.equal(blocks[0], blocks[1])
    assert not torch.equal(blocks[0], blocks[2])
    assert one.names[0] == "norm.weight"


def test_nobody_can_write_to_the_blocks(shared, write):
    described(shared, write(NORM))
    state, prepared = shared.state(1), shared.prepare("default", seed=1)
    for fd in (*state.fds, prepared.fd):
        if os.fstat(fd).st_size == 0:
            continue
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.pwrite(fd, b"x", 0)
        again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)  # root may; the seal holds
        with pytest.raises(OSError, match="Operation not permitted"):
            os.pwrite(again, b"x", 0)
        os.close(again)


def test_distributions_that_the_reference_does_not_take_are_skipped(shared, write):
    text = SOFTMAX.replace("torch.softmax(x, -1)", "x.sqrt()").replace("randn", "rand")
    described(shared, write(text))
    skipped = shared.prepare("default", seed=1, distribution="sign_flipped")
    assert "not finite" in skipped.skipped
    assert shared.prepare("default", seed=1, distribution="scaled").skipped == ""
    text = SOFTMAX.replace("torch.softmax(x, -1)", "F.binary_cross_entropy(x, x)")
    described(shared, write(text.replace("randn", "rand")))
    assert "does not take" in shared.prepare("default", seed=1, distribution="scaled").skipped
    text = SOFTMAX.replace("torch.softmax(x, -1)", "x + 1").replace("randn(", "randint(9, (")
    described(shared, write(text.replace("16, 40)", "16, 40))")))
    assert "float tensor" in shared.prepare("default", seed=1, distribution="shifted").skipped
    text = SOFTMAX.replace("torch.softmax(x, -1)", "x.view(-1)")
    described(shared, write(text))
    assert "view" in shared.prepare("default", seed=1, distribution="strided").skipped
    lost = "x + 1e9 * (x > 10) - 1e9 * (x > 10)"  # cancels, where there are outliers
    described(shared, write(SOFTMAX.replace("torch.softmax(x, -1)", lost)))
    skipped = shared.prepare("default", seed=1, distribution="outliers")
    assert "PyTorch's own error" in skipped.skipped
    assert shared.prepare("default", seed=1).skipped == ""


def test_a_reference_that_is_imprecise_everywhere_is_judged_everywhere(shared, write):
    rounding = "(x * 1.5).bfloat16().float() + 1"
    text = SOFTMAX.replace("torch.softmax(x, -1)", rounding)
    found = shared.describe(write(text))
    assert any("imprecise" in warning for warning in found.warnings)
    assert shared.prepare("default", seed=1, distribution="sign_flipped").skipped == ""


def test_a_result_that_is_not_finite_on_the_given_inputs_is_still_compared(shared, write):
    text = SOFTMAX.replace("torch.softmax(x, -1)", "x.sqrt()")
    candidate = Candidate(described(shared, path := write(text)), path)
    for distribution in ("given", "sign_flipped"):
        prepared = shared.prepare("default", seed=1, distribution=distribution)
        (result,) = candidate.run(prepared)
        assert candidate.judge(prepared, [result]).ok
        assert not candidate.judge(prepared, [result.nan_to_num(0.0)]).ok


def test_a_sum_that_cancels_is_judged_by_its_terms(shared, write):
    text = SOFTMAX.replace("torch.softmax(x, -1)", "x.sum() * 1e-3")
    text = text.replace("[torch.randn(16, 40)]", "[balanced()]") + (
        "\ndef balanced():\n    x = torch.randn(16, 40000)\n"
        "    x[-1, -1] -= x.double().sum().float()\n    return x\n"
    )
    candidate = Candidate(described(shared, path := write(text)), path)
    prepared = shared.prepare("default", seed=4)
    x = map_block(prepared.fd, prepared.layout, writable=False)[0]
    honest = x.reshape(16, -1, 16).sum(1).sum(0).sum() * 1e-3  # another order
    assert candidate.judge(prepared, [honest]).ok
    assert not candidate.judge(prepared, [honest + 1e-3]).ok


def test_a_forgotten_set_is_not_compared(shared, write):
    path = write(SOFTMAX)
    candidate = Candidate(described(shared, path), path)
    prepared = shared.prepare("default", seed=1)
    results = candidate.run(prepared)
    shared.forget(prepared)
    shared.forget(prepared)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(prepared.fd)
    with pytest.raises(ValueError, match="forgotten"):
        candidate.judge(prepared, results)
    with pytest.raises(ProblemError, match="no case 'other'"):
        shared.prepare("other", seed=1)


def test_a_process_that_died_is_replaced_and_knows_what_it_knew(shared, write):
    path = write(NORM)
    candidate = Candidate(described(shared, path), path)
    prepared = shared.prepare("default", seed=9, distribution="outliers")
    results = candidate.run(prepared)
    before = shared.pid
    os.kill(before, signal.SIGKILL)
    assert candidate.judge(prepared, results).ok
    assert shared.pid != before
    results[0] = results[0] + 1
    assert not candidate.judge(prepared, results).ok


def test_expectations_are_kept_within_a_budget(write, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = write(SOFTMAX)
    spec = contiguous((16, 40), "float32")
    text = path.read_text()
    subject = Subject(path=str(path), digest=sha256(text.encode()).hexdigest(), mode="as_is")
    recipe = Recipe(
        subject=subject,
        state=0,
        case="default",
        seed=0,
        distribution="given",
        inputs=(),
        buffers=(),
        layout=layout_of([spec]),
        tree=0,
    )
    oracle = Oracle(budget=2 * (8 + 4) * 16 * 40)
    for seed in range(4):
        _, fds = oracle.prepare(recipe.replaced(seed=seed))
        for fd in fds:
            os.close(fd)
    assert list(oracle.sets) == [recipe.replaced(seed=seed).key for seed in (2, 3)]
    oracle.forget(recipe.replaced(seed=3))
    assert list(oracle.sets) == [recipe.replaced(seed=2).key]
