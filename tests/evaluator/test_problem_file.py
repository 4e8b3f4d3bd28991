import sys

import pytest
import torch

from kerntree.evaluator.memory import Footprint, check_memory, footprints
from kerntree.evaluator.problem_file import load_problem_file
from kerntree.plans.errors import ProblemError

GOOD = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, n=3):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return x * self.weight

def get_inputs():
    return [torch.ones(2, 3)]
"""


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch):
    """What a problem file puts on `sys.path` and into `sys.modules` ends with the test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if not name.startswith(("torch", "kerntree")):
            del sys.modules[name]


@pytest.fixture
def problem(tmp_path):
    """Writes a problem file; returns its path."""

    def write(text, name="problem.py"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_a_kernelbench_file_is_read_unchanged(problem):
    file = load_problem_file(problem(GOOD + "\ndef get_init_inputs():\n    return [3]\n"))
    module = file.construct(file.init_inputs())
    (case,) = file.cases
    assert (case.name, case.weight, file.name) == ("default", 1.0, "problem")
    assert torch.equal(module(*file.inputs(case)), torch.ones(2, 3))


def test_constructor_arguments_are_optional(problem):
    assert load_problem_file(problem(GOOD)).init_inputs() == []


def test_a_main_guard_does_not_run(problem):
    load_problem_file(problem(GOOD + "\nif __name__ == '__main__':\n    raise SystemExit(1)\n"))


def test_siblings_with_names_of_our_own_parts(problem, tmp_path):
    for name in ("cache", "search", "evaluator", "plans", "coder"):
        (tmp_path / f"{name}.py").write_text(f"VALUE = {name!r}\n")
    text = "import cache, search, evaluator, plans, coder\n" + GOOD
    text += "NAMES = [m.VALUE for m in (cache, search, evaluator, plans, coder)]\n"
    file = load_problem_file(problem(text))
    assert file.module.NAMES == ["cache", "search", "evaluator", "plans", "coder"]
    import kerntree.cache.memo
    import kerntree.search

    assert hasattr(kerntree.cache.memo, "Memo")
    assert str(tmp_path) not in str(kerntree.search.__file__)


def test_two_folders_with_siblings_of_one_name(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder / "parts").mkdir(parents=True)
        (tmp_path / folder / "cache.py").write_text(f"VALUE = {folder!r}\n")
        (tmp_path / folder / "parts" / "__init__.py").write_text("")
        (tmp_path / folder / "parts" / "inner.py").write_text(f"VALUE = {folder!r}\n")
        text = "import cache, parts.inner\n" + GOOD
        (tmp_path / folder / "problem.py").write_text(text)
    for folder in ("one", "two", "one"):
        file = load_problem_file(tmp_path / folder / "problem.py")
        assert file.module.cache.VALUE == file.module.parts.inner.VALUE == folder


def test_a_sibling_imported_late(problem, tmp_path):
    (tmp_path / "late_sibling.py").write_text("SIZE = 5\n")
    text = GOOD.replace(
        "return [torch.ones(2, 3)]",
        "import late_sibling\n    return [torch.ones(late_sibling.SIZE)]",
    )
    file = load_problem_file(problem(text))
    assert file.inputs(file.cases[0])[0].shape == (5,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("  \n\n", "is empty"),
        ("import torch\nclass Model(\n", "problem.py:2: syntax error"),
        ("x = 1\nraise KeyError('lost')\n", "problem.py:2: importing it raises KeyError: 'lost'"),
        ("import sys\nsys.exit(3)\n", "ends the process (exit code 3)"),
        ("import kerntree_has_no_such\n", "pip install kerntree_has_no_such"),
        ("import torch.no_such_part\n", "there is no module 'torch.no_such_part'"),
        ("def get_inputs(): return []\n", "defines no class Model"),
        ("Model = 3\ndef get_inputs(): return []\n", "not a subclass of torch.nn.Module"),
        ("class Model: pass\ndef get_inputs(): return []\n", "not a subclass"),
        (GOOD.replace("get_inputs", "inputs"), "defines no get_inputs()"),
        (GOOD + "get_init_inputs = [3]\n", "get_init_inputs is a list"),
        ("x = '\0'\n", "problem.py"),
    ],
)
def test_bad_files_are_refused_with_the_place(problem, text, said):
    with pytest.raises(ProblemError) as caught:
        load_problem_file(problem(text))
    assert said in str(caught.value)


def test_no_file_a_directory_and_bytes_that_are_not_utf8(tmp_path):
    with pytest.raises(ProblemError, match="no such file"):
        load_problem_file(tmp_path / "absent.py")
    with pytest.raises(ProblemError, match="is a directory"):
        load_problem_file(tmp_path)
    (tmp_path / "latin.py").write_bytes(b"x = 1\ny = '\xe9'\n")
    with pytest.raises(ProblemError, match=r"latin\.py:2: not UTF-8"):
        load_problem_file(tmp_path / "latin.py")


def test_a_byte_order_mark_is_no_error(tmp_path):
    (tmp_path / "marked.py").write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert load_problem_file(tmp_path / "marked.py").cases


def test_a_syntax_error_in_a_sibling_names_the_sibling(problem, tmp_path):
    (tmp_path / "broken_sibling.py").write_text("ok = 1\ndef f(:\n")
    with pytest.raises(ProblemError, match=r"broken_sibling\.py:2: syntax error"):
        load_problem_file(problem("import broken_sibling\n" + GOOD))


def test_exceptions_name_the_last_frame_in_the_users_file(problem):
    text = GOOD.replace("return [torch.ones(2, 3)]", "return [torch.ones(2, -3)]")
    file = load_problem_file(problem(text))
    line = text.splitlines().index("    return [torch.ones(2, -3)]") + 1
    with pytest.raises(ProblemError, match=rf"problem\.py:{line}: get_inputs\(\) raises Runtime"):
        file.inputs(file.cases[0])
    with pytest.raises(ProblemError, match=r"Model\(\*get_init_inputs\(\)\) raises TypeError"):
        file.construct([1, 2, 3])


@pytest.mark.parametrize("value", ["torch.ones(2)", "{'x': torch.ones(2)}", "None"])
def test_inputs_must_be_a_list(problem, value):
    file = load_problem_file(problem(GOOD.replace("[torch.ones(2, 3)]", value)))
    with pytest.raises(ProblemError, match="must return a list"):
        file.inputs(file.cases[0])


def test_cases_by_name_with_weights(problem):
    text = GOOD + (
        "def get_cases():\n"
        "    return {'one': lambda: [torch.ones(1, 3)],\n"
        "            'many': {'inputs': [torch.ones(9, 3)], 'weight': 3}}\n"
    )
    file = load_problem_file(problem(text))
    assert [(case.name, case.weight) for case in file.cases] == [("one", 1.0), ("many", 3.0)]
    assert file.inputs(file.case("one"))[0].shape == (1, 3)
    first, second = (file.inputs(file.case("many"))[0] for _ in range(2))
    first.zero_()
    assert bool((second == 1).all())  # a list is copied: a call may write to its inputs
    with pytest.raises(ProblemError, match="only 'one', 'many'"):
        file.case("few")


def test_cases_as_a_list(problem):
    text = GOOD.replace("def get_inputs", "def unused")
    text += "def get_cases():\n    return [{'name': 'a', 'inputs': unused, 'weight': 0.5}]\n"
    (case,) = load_problem_file(problem(text)).cases
    assert (case.name, case.weight) == ("a", 0.5)


@pytest.mark.parametrize(
    ("cases", "said"),
    [
        ("{}", "is empty"),
        ("3", "it must return a dict"),
        ("{'a': {'inputs': list, 'weight': -1}}", "weight -1 is no number that is finite"),
        ("{'a': {'inputs': list, 'weight': float('nan')}}", "nan is no number that is finite"),
        ("{'a': {'inputs': list, 'weight': 0}}", "one at least must be timed"),
        ("{'a': {'input': list}}", "unknown key 'input'"),
        ("{'a': 3}", "a function that makes a list"),
        ("{3: list}", "3 is no name"),
        ("[{'name': 'a', 'inputs': list}] * 2", "uses a name twice"),
        ("1 / 0", "get_cases() raises ZeroDivisionError"),
    ],
)
def test_bad_cases(problem, cases, said):
    with pytest.raises(ProblemError) as caught:
        load_problem_file(problem(GOOD + f"def get_cases():\n    return {cases}\n"))
    assert said in str(caught.value)


def test_memory_is_estimated_without_allocating(problem):
    text = GOOD.replace("torch.ones(2, 3)", "torch.ones(1 << 40, 3)")
    file = load_problem_file(problem(text))
    footprint = footprints(file)["default"]
    assert footprint.inputs == footprint.outputs == 12 << 40
    assert footprint.inputs_double == 24 << 40
    assert footprint.state == 12
    with pytest.raises(ProblemError, match=r"needs about .* GiB.*reduce the shapes"):
        check_memory(file, available=1 << 40)
    small = load_problem_file(problem(GOOD))
    check_memory(small, available=1 << 20)


def test_memory_counts_inputs_where_forward_cannot_run_on_meta(problem):
    text = GOOD.replace("return x * self.weight", "return x * float(x.sum())")
    text = text.replace("torch.ones(2, 3)", "torch.ones(1 << 40, 3)")
    footprint = footprints(load_problem_file(problem(text)))["default"]
    assert (footprint.inputs, footprint.outputs) == (12 << 40, 0)


def test_more_copies_need_more_memory():
    small = Footprint(1, 2, 0, 0, 0, 0)
    large = Footprint(1, 2, 1, 2, 1, 2)
    assert small.needed < large.needed
