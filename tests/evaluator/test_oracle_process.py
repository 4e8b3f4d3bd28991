"""The oracle's process: what a problem's file may do to it, and how it ends."""

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from kerntree.evaluator.oracle_process import OracleFailed, OracleProcess
from kerntree.plans.errors import ProblemError

SOFTMAX = """
class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)

def get_inputs():
    return [torch.randn(16, 40)]
"""


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A process started where `import torch` would find another."""
    here, folder = Path.cwd(), tmp_path_factory.mktemp("start")
    (folder / "torch.py").write_text("raise ImportError('the wrong torch')\n")
    os.chdir(folder)
    try:
        oracle = OracleProcess.start(seconds=60)
    finally:
        os.chdir(here)
    with oracle:
        yield oracle


def test_prints_do_not_disturb(shared, write):
    noise = (
        "import os, sys\nprint('x' * 200000)\nprint('y' * 200000, file=sys.stderr)\n"
        "os.write(1, b'z' * 70000)\n"
    )
    path = write(noise + SOFTMAX)
    shared.describe(path)
    assert shared.problem.name == "problem"
    assert shared.prepare("default", seed=1).skipped == ""


def test_a_file_that_changed_is_another_problem(shared, write):
    path = write(SOFTMAX)
    found = shared.describe(path)
    shared.problem = found.replaced(source=found.source + "\n")  # as if it had been before
    with pytest.raises(ProblemError, match="has changed"):
        shared.prepare("default", seed=1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import os\nos._exit(0)\n", "in importing the file: exit code 0"),
        (SOFTMAX.replace("return torch", "import ctypes; ctypes.string_at(0); return torch"),
         "SIGSEGV"),
        (SOFTMAX.replace("return torch", "import os, signal; os.kill(os.getpid(), 9); torch"),
         "want of memory"),
    ],
    ids=["exit", "crash", "kill"],
)  # fmt: skip
def test_a_file_that_ends_the_process(shared, write, text, said):
    with pytest.raises(ProblemError) as caught:
        shared.describe(write(text))
    assert said in str(caught.value)


def test_a_file_that_hangs_says_where(shared, write):
    hang = "import re; re.match(r'(a+)+$', 'a' * 64 + 'b')"  # holds the interpreter's lock
    text = SOFTMAX.replace("return [", f"{hang}\n    return [")
    with pytest.raises(ProblemError, match="not done after 2 s, in estimating the memory"):
        shared.describe(write(text), deadline_seconds=2)


def test_a_request_that_hangs_is_ours_to_report(shared, write, monkeypatch):
    flag = "import pathlib\nGO = pathlib.Path(__file__).with_suffix('.go')\n"
    text = flag + SOFTMAX.replace(
        "return torch", "\n        while GO.exists():\n            pass\n        return torch"
    )
    path = write(text)
    shared.describe(path)
    path.with_suffix(".go").touch()
    monkeypatch.setattr(shared, "seconds", 1)
    with pytest.raises(OracleFailed, match="more than 1 s"):
        shared.prepare("default", seed=1)


def test_it_dies_with_its_supervisor_even_while_it_is_busy(write, tmp_path):
    fifo = tmp_path / "busy"
    os.mkfifo(fifo)
    busy = f"open({str(fifo)!r}, 'w').close()\nimport re\nre.match(r'(a+)+$', 'a' * 64 + 'b')\n"
    script = (
        "from kerntree.evaluator.oracle_process import OracleProcess\n"
        "oracle = OracleProcess.start()\nprint(oracle.pid, flush=True)\n"
        f"oracle.describe({str(write(busy))!r})\n"
    )
    supervisor = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    handle = os.pidfd_open(int(supervisor.stdout.readline()))
    try:
        fifo.read_bytes()  # returns when the file has got that far
        poller = select.poll()
        poller.register(handle, select.POLLIN)
        assert not poller.poll(0)
        supervisor.kill()
        assert poller.poll(10_000), "the oracle outlived its supervisor"
    finally:
        supervisor.kill()
        supervisor.communicate()
        os.close(handle)


def test_the_working_directory_is_not_searched_for_modules(other, write, tmp_path, monkeypatch):
    write(SOFTMAX)
    monkeypatch.chdir(tmp_path)
    assert other.describe("problem.py").folder == str(tmp_path)


def test_closing_ends_the_process(other):
    handle = os.pidfd_open(other.pid)
    other.close()
    other.close()
    assert other.pid is None
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    assert poller.poll(0)
    os.close(handle)


def test_the_supervisors_side_imports_no_torch():
    code = (
        "import sys, kerntree.evaluator.oracle_process; "
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
