import sys
from pathlib import Path

import pytest
import torch

from kerntree.evaluator.describe import describe
from kerntree.plans.errors import ProblemError
from kerntree.plans.problem import Problem

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
"""
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def problem(tmp_path, monkeypatch):
    """Describes a problem given as the parts of its file."""
    monkeypatch.setattr(sys, "path", [*sys.path])

    def make(forward, *, inputs, init="pass", rest="", arguments="x"):
        path = tmp_path / "problem.py"
        body = "\n".join(f"        {line}" for line in forward.splitlines())
        start = "\n".join(f"        {line}" for line in init.splitlines())
        path.write_text(
            f"{HEAD}\nclass Model(nn.Module):\n    def __init__(self):\n"
            f"        super().__init__()\n{start}\n"
            f"    def forward(self, {arguments}):\n{body}\n"
            f"def get_inputs():\n    return {inputs}\n{rest}"
        )
        return describe(path)

    yield make
    torch.set_float32_matmul_precision("highest")


def only(problem):
    (case,) = problem.cases
    return case


def test_a_plain_operator_round_trips_as_json(problem):
    found = problem("return torch.softmax(x, -1)", inputs="[torch.randn(4, 8)]")
    assert Problem.model_validate_json(found.model_dump_json()) == found
    case = only(found)
    assert (found.mode, found.warnings, case.graph_error) == ("as_is", (), "")
    assert [(i.path, i.name, i.tensor.shape) for i in case.inputs] == [("0", "x", (4, 8))]
    assert [(o.path, o.tensor.dtype) for o in case.outputs] == [("", "float32")]
    assert [node.target for node in case.graph.nodes] == ["aten._softmax.default"]
    assert case.output_tree == 0
    assert "class Model" in found.source


def test_nested_inputs_and_outputs(problem):
    found = problem(
        "a, b = pair\n"
        "return {'sum': a + b['m'] * k, 'rest': [(x.argmax(1), None), 7], 'flag': x > 0}",
        arguments="x, pair, k",
        inputs="[torch.randn(3, 5), (torch.randn(5), {'m': torch.rand(5)}), 2.5]",
    )
    case = only(found)
    assert [(i.path, i.name) for i in case.inputs] == [
        ("0", "x"), ("1.0", "pair.0"), ("1.1.m", "pair.1.m"), ("2", "k"),
    ]  # fmt: skip
    assert case.inputs[3].tensor is None
    assert case.inputs[3].value == 2.5
    assert [(o.path, o.tensor.dtype) for o in case.outputs] == [
        ("sum", "float32"), ("rest.0.0", "int64"), ("flag", "bool"),
    ]  # fmt: skip
    assert case.output_tree == {
        "dict": {"sum": 0, "rest": {"list": [{"tuple": [1, {"value": None}]}, {"value": 7}]},
                 "flag": 2}
    }  # fmt: skip
    # the graph counts tensors, not leaves
    assert [o.target for o in case.graph.outputs] == ["0", "1", "2"]
    assert {i.target for i in case.graph.inputs} == {"0", "1.0", "1.1.m"}


def test_a_named_tuple_is_a_tuple(problem):
    case = only(problem("return x.max(dim=1)", inputs="[torch.randn(3, 5)]"))
    assert case.output_tree == {"tuple": [0, 1]}
    assert "getitem" in [node.target for node in case.graph.nodes]


def test_state_and_what_batch_norm_writes(problem):
    found = problem(
        "return self.norm(x)", init="self.norm = nn.BatchNorm1d(5)", inputs="[torch.randn(6, 5)]"
    )
    assert [(s.name, s.kind) for s in found.state] == [
        ("norm.weight", "parameter"), ("norm.bias", "parameter"),
        ("norm.running_mean", "buffer"), ("norm.running_var", "buffer"),
        ("norm.num_batches_tracked", "buffer"),
    ]  # fmt: skip
    written = ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked")
    assert only(found).mutated_buffers == written
    kinds = [o.kind for o in only(found).graph.outputs]
    assert kinds.count("buffer_mutation") == 3


def test_batch_norm_in_eval_mode_writes_nothing(problem):
    found = problem(
        "return self.norm(x)",
        init="self.norm = nn.BatchNorm1d(5)\nself.eval()",
        inputs="[torch.randn(6, 5)]",
    )
    assert (found.mode, only(found).mutated_buffers) == ("as_is", ())


def test_an_input_written_in_place_is_found_and_may_be_returned(problem):
    found = problem(
        "y.add_(x)\nreturn y, y * 2, x.view(-1)",
        arguments="x, y",
        inputs="[torch.randn(4), torch.randn(4)]",
    )
    case = only(found)
    assert case.mutated_inputs == ("1",)
    assert case.aliased_outputs == ("0", "2")
    assert [(o.kind, o.target) for o in case.graph.outputs if o.kind != "output"] == [
        ("input_mutation", "1")
    ]


def test_a_write_that_changes_nothing_on_these_inputs_is_found_by_the_export(problem):
    case = only(problem("x.clamp_(min=0)\nreturn x + 1", inputs="[torch.rand(4)]"))
    assert case.mutated_inputs == ("0",)


def test_in_place_only(problem):
    case = only(problem("x.mul_(2)", inputs="[torch.rand(4)]"))
    assert (case.outputs, case.output_tree) == ((), {"value": None})
    assert case.mutated_inputs == ("0",)


def test_dropout_is_judged_in_eval_mode(problem):
    found = problem(
        "return self.drop(x)", init="self.drop = nn.Dropout(0.5)", inputs="[torch.randn(64)]"
    )
    assert found.mode == "eval"
    assert "eval mode" in found.warnings[0]


def test_cases_with_weights_have_graphs_of_their_own(problem):
    rest = (
        "def get_cases():\n"
        "    return {'a': lambda: [torch.randn(2, 3)],"
        " 'b': {'inputs': lambda: [torch.randn(5, 7)], 'weight': 2}}\n"
    )
    found = problem("return torch.relu(x)", inputs="[]", rest=rest)
    assert [(c.name, c.weight, c.inputs[0].tensor.shape) for c in found.cases] == [
        ("a", 1.0, (2, 3)), ("b", 2.0, (5, 7)),
    ]  # fmt: skip
    assert [c.graph.nodes[0].outputs[0].shape for c in found.cases] == [(2, 3), (5, 7)]


def test_no_inputs_at_all(problem):
    found = problem(
        "return self.table.exp()",
        arguments="",
        init="self.table = nn.Parameter(torch.randn(4))",
        inputs="[]",
    )
    assert only(found).inputs == ()
    assert any("does not depend" in warning for warning in found.warnings)


def test_small_constants_travel_and_random_ones_forbid_the_graph(problem):
    case = only(
        problem(
            "return x * self.scale",
            init="self.scale = torch.tensor([1.0, 2.0, 3.0])",
            inputs="[torch.randn(2, 3)]",
        )
    )
    (constant,) = (entry for entry in case.graph.inputs if entry.kind == "constant")
    assert constant.values == (1.0, 2.0, 3.0)
    case = only(
        problem(
            "return x * self.scale", init="self.scale = torch.randn(3)",
            inputs="[torch.randn(2, 3)]",
        )
    )  # fmt: skip
    assert case.graph is None
    assert "random" in case.graph_error


def test_what_cannot_be_exported_is_still_a_problem(problem):
    case = only(
        problem(
            "if bool((x > 100).any()):\n    return x * 3\nreturn x * 2",
            inputs="[torch.randn(2, 3)]",
        )
    )
    assert case.graph is None
    assert case.graph_error.startswith("torch.export:")


def test_findings_that_weaken_a_verdict_are_reported(problem):
    found = problem("return x * 0", inputs="[torch.randn(2, 3)]")
    assert any("does not depend" in warning for warning in found.warnings)
    assert any("zeros would pass" in warning for warning in found.warnings)
    found = problem(
        "return x.view(torch.int32).bitwise_and(-8192).view(torch.float32)",
        inputs="[torch.randn(2, 3)]",
    )
    assert any("no float64 evaluation" in warning for warning in found.warnings)


def test_a_lower_matmul_precision_is_taken_back(problem):
    found = problem(
        "return x @ x",
        inputs="[torch.randn(4, 4)]",
        rest="torch.set_float32_matmul_precision('medium')\n",
    )
    assert torch.get_float32_matmul_precision() == "highest"
    assert any("'medium'" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("forward", "inputs", "said"),
    [
        ("return x @ x", "[torch.randn(2, 3)]", "problem.py:13: Model.forward raises RuntimeError"),
        ("return x.tolist()", "[torch.randn(2)]", "no tensor"),
        ("return None", "[torch.randn(2)]", "returns no tensor and changes nothing"),
        ("return x, object()", "[torch.randn(2)]", "returns a builtins.object at '1'"),
        ("return x.numpy()", "[torch.randn(2)]", "returns a numpy.ndarray"),
        ("return {1: x}", "[torch.randn(2)]", "keys that are not text"),
        ("return x.to_sparse()", "[torch.randn(2)]", "not dense"),
        ("return x + torch.rand(2)", "[torch.randn(2)]", "changes from call to call"),
        ("self.n += 1\nreturn x * self.n", "[torch.randn(2)]", "changes from call to call"),
        ("self.p.add_(1)\nreturn x", "[torch.randn(2)]", "writes to its parameter 'p'"),
        ("self.b = self.b[1:]\nreturn x", "[torch.randn(2)]", "shape or type of its state 'b'"),
        ("return x[x > 0]", "[torch.randn(99)]", "depend on the values"),
        ("return x, x.sum().item()", "[torch.randn(2)]", "depend on the values"),
        ("return x", "[torch.randn(torch.randint(1, 999, ()).item())]", "change from call to call"),
        ("return x", "[object()]", "is a builtins.object"),
        ("return x", "[torch.randn(2).to_sparse()]", "is not a dense tensor"),
        ("return x", "[torch.randn(1 << 45)]", "GiB are available"),
        ("return x", "[]", "TypeError"),
    ],
)
def test_bad_problems_are_refused(problem, forward, inputs, said):
    init = "self.n = 0\nself.p = nn.Parameter(torch.ones(1))\n"
    init += "self.register_buffer('b', torch.ones(5))"
    with pytest.raises(ProblemError) as caught:
        problem(forward, inputs=inputs, init=init)
    assert said in str(caught.value)
    assert "problem.py" in str(caught.value)


def test_a_constructor_that_no_seed_decides_is_refused(problem):
    with pytest.raises(ProblemError, match="two constructions"):
        problem(
            "return x * self.p",
            init="import os\nself.p = nn.Parameter(torch.tensor(float(os.urandom(4)[0]) + "
            "os.urandom(1)[0] / 256))",
            inputs="[torch.randn(2)]",
        )


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_the_examples_are_described(example, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    text = example.read_text()
    for size in ("8192", "4096", "2048", "1024"):  # at reduced shapes
        text = text.replace(size, str(int(size) // 64))
    path = tmp_path / example.name
    path.write_text(text)
    found = describe(path)
    assert found.name == example.stem
    assert found.warnings == ()
    assert only(found).graph is not None
