"""The command line as a user meets it: help, mistakes, a whole search, its memory, a kill."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

PROBLEM = """\
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x * 2 + 1, dim=-1)


def get_inputs():
    return [torch.randn(256, 512)]


def get_init_inputs():
    return []
"""


def kerntree(*args, cwd, timeout=170, **more):
    return subprocess.run(
        [sys.executable, "-P", "-m", "kerntree", *map(str, args)],
        cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False, **more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("cli")
    (place / "op.py").write_text(PROBLEM)
    return place


def search(place, out, *more):
    return kerntree(
        "search", "op.py", "--evaluations", 4, "--seed", 3, "--out", out,
        "--cache", place / "memo", "--json", *more, cwd=place,
    )  # fmt: skip


@pytest.fixture(scope="module")
def first(place):
    done = search(place, "first")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_help_is_instant_and_lists_the_commands(place):
    def seconds():
        start = time.monotonic()
        done = kerntree("--help", cwd=place)
        assert done.returncode == 0
        for command in ("search", "resume", "show", "export", "evaluate", "doctor", "demo"):
            assert command in done.stdout
        return time.monotonic() - start

    assert min(seconds() for _ in range(3)) < 0.5


@pytest.mark.parametrize("command", ["search", "resume", "show", "export", "evaluate", "doctor"])
def test_every_command_shows_an_example(place, command):
    done = kerntree(command, "--help", cwd=place)
    assert done.returncode == 0
    assert f"Example: kerntree {command}" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["search", "absent.py"], "no such file"),
        (["search", "op.py", "--time", "soon"], "no duration"),
        (["search", "op.py", "--explorer", "guess"], "choose from"),
        (["search", "op.py", "--isolation", "none"], "isolation"),
        (["resume", "nowhere"], "is no run"),
        (["show", "nowhere"], "is no run"),
        (["export", "nowhere"], "is no run"),
        (["evaluate", "absent.py", "--problem", "op.py"], "cannot be read"),
        (["search", "broken.py"], "broken.py:3: syntax error"),
        (["search", "op.py", "--start", "absent.py"], "cannot be read"),
        (["search", "op.py", "--start", "op.py"], "no class ModelNew"),
        (["search", "op.py", "--baseline", "broken.py"], "broken.py:3: syntax error"),
        (["search", "op.py", "--device", "tpu"], "device"),
    ],
)
def test_mistakes_are_said_in_a_line_or_two(place, args, said):
    (place / "broken.py").write_text("import torch\n\ndef (\n")
    done = (
        kerntree(*args, "--cache", "memo", cwd=place)
        if args[0] == "search"
        else kerntree(*args, cwd=place)
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 3


def test_a_search_ends_with_verified_figures(place, first):
    assert first["finished"] and first["evaluations"] == 4
    assert {b["name"] for b in first["baselines"]} == {"eager", "torch.compile"}
    done = kerntree("show", "first", cwd=place)
    assert done.returncode == 0
    assert "the plain operator" in done.stdout and "lower" in done.stdout


def test_a_second_search_runs_from_the_memo_and_says_so(place, first):
    done = search(place, "second")
    assert done.returncode == 0, done.stderr
    again = json.loads(done.stdout)
    assert again["memo_hits"] >= first["evaluations"] - 1
    shown = kerntree("show", "second", cwd=place).stdout
    assert f"{again['memo_hits']} of them from the memo" in shown


def test_a_kernel_of_ones_own_is_judged_and_another_is_to_be_beaten(place):
    body = "\n\nclass ModelNew(Model):\n    def forward(self, x):\n        return {}\n"
    (place / "mine.py").write_text(PROBLEM + body.format("torch.softmax(x * 2 + 1, -1)"))
    (place / "wrong_rival.py").write_text(PROBLEM + body.format("torch.softmax(x * 3, -1)"))
    (place / "rival.py").write_text(PROBLEM + body.format("(x * 2 + 1).softmax(-1)"))
    done = search(
        place, "own", "--evaluations", 2, "--start", "mine.py",
        "--baseline", "rival.py", "--baseline", "wrong_rival.py",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = {b["name"]: b for b in json.loads(done.stdout)["baselines"]}
    assert found["rival.py"]["available"]
    assert not found["wrong_rival.py"]["available"]
    assert "wrong result" in found["wrong_rival.py"]["message"]
    shown = kerntree("show", "own", cwd=place).stdout
    assert "start mine.py" in shown


def test_a_run_directory_is_not_searched_twice(place, first):
    done = search(place, "first")
    assert done.returncode == 2 and "resume it" in done.stderr


def test_a_changed_problem_is_not_resumed(place, first):
    changed = place / "changed"
    changed.mkdir()
    for name in ("run.toml", "problem.py", "journal.jsonl"):
        (changed / name).write_bytes((place / "first" / name).read_bytes())
    (changed / "problem.py").write_text(PROBLEM + "\n# other\n")
    done = kerntree("resume", "changed", "--evaluations", 5, cwd=place)
    assert done.returncode == 2 and "changed since" in done.stderr


def test_an_interrupt_leaves_a_run_that_can_be_resumed(place, first):
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "kerntree", "search", "op.py", "--time", "10m",
         "--out", "stopped", "--cache", str(place / "memo")],
        cwd=place, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    journal = place / "stopped" / "journal.jsonl"
    deadline = time.monotonic() + 120
    while not (journal.exists() and b'"kind":"evaluated"' in journal.read_bytes()):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGTERM)
    said, _ = process.communicate(timeout=90)
    assert process.returncode == 130
    assert "kerntree resume" in said


def test_a_run_is_exported_as_an_operator_of_torch(place, first):
    done = kerntree(
        "export", "first", "--leader", "--as", "torch-op", "-o", "fast_op.py", cwd=place
    )
    assert done.returncode == 0, done.stderr
    code = (
        "import torch, fast_op\n"
        "x = torch.randn(256, 512)\n"
        "y = torch.ops.kerntree.op(x)\n"
        "torch.testing.assert_close(y, torch.softmax(x * 2 + 1, -1))\n"
    )
    used = subprocess.run(
        [sys.executable, "-c", code], cwd=place, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert used.returncode == 0, used.stderr
    assert kerntree("export", "first", "--as", "wheel", cwd=place).returncode == 2


def test_an_exported_kernel_checks_itself(place):
    from kerntree.plans.candidate import Candidate
    from kerntree.plans.evaluation import Evaluation, Stage, Verdict
    from kerntree.search.export import stand_alone

    source = PROBLEM + (
        "\nCONFIG = {'A': 1}\n\n\nclass ModelNew(Model):\n    def forward(self, x):\n"
        "        return torch.softmax(x * 2 + CONFIG['A'], dim=-1)\n"
    )
    candidate = Candidate(source=source, language="python", config={"A": 1})
    evaluation = Evaluation(key="k", verdict=Verdict.CORRECT, stage=Stage.TIME, config={})
    for offset, code in ((7, 0), (None, 1)):
        text = stand_alone(candidate, {"A": 7}, evaluation, problem="op", plan=["lower all"])
        if offset is None:
            text = text.replace("x * 2 + CONFIG", "x * 3 + CONFIG")
        path = place / "exported.py"
        path.write_text(text)
        done = subprocess.run(
            [sys.executable, "-P", str(path)], capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert "times as fast" in done.stdout
        assert "lower all" in text and "'A': 7" in text


def test_evaluate_tells_right_from_wrong_by_its_exit_code(place):
    body = "\n\nclass ModelNew(Model):\n    def forward(self, x):\n        return {}\n"
    (place / "right.py").write_text(PROBLEM + body.format("torch.softmax(x * 2 + 1, -1)"))
    (place / "wrong.py").write_text(PROBLEM + body.format("torch.softmax(x * 2.001 + 1, -1)"))
    for name, code, word in (("right.py", 0, "correct"), ("wrong.py", 1, "wrong result")):
        done = kerntree("evaluate", name, "--problem", "op.py", "--cache", "memo", cwd=place)
        assert (done.returncode, done.stdout.split("\n")[0].split("  ")[0]) == (code, word)


def test_the_doctor_says_what_this_machine_can_do(place):
    done = kerntree("doctor", "--json", "--cache", "memo", cwd=place)
    names = {entry["name"] for entry in json.loads(done.stdout)}
    assert {"Python", "torch", "C++ compiler", "OpenMP", "isolation", "memo"} <= names
    assert done.returncode == 0
