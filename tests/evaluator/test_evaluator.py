import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from kerntree.evaluator.opening import open_evaluator
from kerntree.plans.candidate import Candidate
from kerntree.plans.errors import ProblemError
from kerntree.plans.evaluation import Stage, Verdict

PLAIN = """
        residual.add_(x)
        return torch.softmax(residual * self.weight, dim=-1)
"""

CPP = '''
import ctypes, os, subprocess, tempfile

TUNABLES = {"SCALE": [1, 2]}
CONFIG = {"SCALE": 1}
SOURCE = r"""
#include <math.h>
extern "C" void run(float* r, const float* x, const float* w, float* y, long rows, long n) {
  for (long i = 0; i < rows; ++i) {
    float top = -INFINITY, sum = 0;
    for (long j = 0; j < n; ++j) {
      r[i * n + j] += x[i * n + j];
      float v = r[i * n + j] * w[j];
      y[i * n + j] = v;
      if (v > top) top = v;
    }
    for (long j = 0; j < n; ++j) { float e = expf(y[i * n + j] - top); y[i * n + j] = e; sum += e; }
    for (long j = 0; j < n; ++j) y[i * n + j] = y[i * n + j] / sum * SCALE;
  }
}
"""
_library = None

def build():
    global _library
    folder = tempfile.mkdtemp()
    path = os.path.join(folder, "k.cpp")
    with open(path, "w") as file:
        file.write(SOURCE)
    out = os.path.join(folder, "k.so")
    done = subprocess.run(
        ["g++", "-O2", "-shared", "-fPIC", f"-DSCALE={CONFIG['SCALE']}", path, "-o", out],
        capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError("the compiler said: " + done.stderr)
    _library = ctypes.CDLL(out)

class ModelNew(Model):
    def forward(self, x, residual):
        if _library is None:
            build()
        x, work = x.contiguous(), residual.contiguous()
        y = torch.empty_like(work)
        p = lambda t: ctypes.c_void_p(t.data_ptr())
        _library.run(p(work), p(x), p(self.weight), p(y), ctypes.c_long(work.shape[0]),
                     ctypes.c_long(work.shape[1]))
        if work is not residual:
            residual.copy_(work)
        return y
'''


def test_the_baseline_is_measured(arena):
    (eager,) = arena.evaluator.baselines()
    assert eager.name == "eager"
    assert eager.available
    assert all(value > 1000 for value in eager.median_ns.values())


def test_plain_torch_is_correct_and_about_as_fast_as_the_baseline(arena):
    evaluation = arena.evaluate(arena.candidate(PLAIN))
    assert evaluation.verdict is Verdict.CORRECT, evaluation.message
    assert evaluation.reward_low < 0.5
    assert evaluation.reward_high > -0.5
    assert evaluation.reward_low <= evaluation.reward <= evaluation.reward_high
    (timing,) = evaluation.timings
    assert timing.baseline == "eager"
    assert timing.floor_ns < timing.median_ns
    assert timing.median_low_ns <= timing.median_ns <= timing.median_high_ns
    assert {error.inputs for error in evaluation.errors} >= {"given", "outliers", "strided"}
    assert all(error.worst <= error.worst_limit for error in evaluation.errors)
    assert evaluation.environment["isolation"]
    assert evaluation.seconds["total"] > 0


def test_a_kernel_in_cpp_is_correct_and_its_config_is_set_before_it_is_built(arena):
    candidate = Candidate(
        source=arena.model + CPP, language="cpp", tunables={"SCALE": (1, 2)}, config={"SCALE": 1}
    )
    right = arena.evaluate(candidate)
    assert right.verdict is Verdict.CORRECT, right.message
    wrong = arena.evaluate(candidate, {"SCALE": 2})
    assert wrong.verdict is Verdict.WRONG
    assert wrong.config == {"SCALE": 2}


SEEN = "\n_seen = {}\n_calls = [0]\n"
WAYS = {
    "wrong": (
        "\n        residual.add_(x)\n        return torch.softmax(residual, dim=-1) * 1.01\n",
        Verdict.WRONG,
        Stage.CHECK,
    ),
    "right once": (
        """
        _calls[0] += 1
        residual.add_(x)
        y = torch.softmax(residual * self.weight, dim=-1)
        return y if _calls[0] == 1 else y.flip(0)
""",
        Verdict.WRONG,
        Stage.CHECK,
    ),
    "right until timed": (
        """
        _calls[0] += 1
        residual.add_(x)
        y = torch.softmax(residual * self.weight, dim=-1)
        return y if _calls[0] <= 9 else _seen.setdefault("y", y)
""",
        Verdict.WRONG,
        Stage.TIME,
    ),
    "caches by address": (
        """
        key = 0
        residual.add_(x)
        if key not in _seen:
            _seen[key] = torch.softmax(residual * self.weight, dim=-1)
        return _seen[key]
""",
        Verdict.WRONG,
        Stage.CHECK,
    ),
    "raises": ("\n        raise ValueError('no')\n", Verdict.RAISED, Stage.CHECK),
    "shape": (
        "\n        residual.add_(x)\n        return residual[:-1].clone()\n",
        Verdict.WRONG_FORM,
        Stage.CHECK,
    ),
    "dtype": (
        "\n        residual.add_(x)\n        return torch.softmax(residual, -1).double()\n",
        Verdict.WRONG_FORM,
        Stage.CHECK,
    ),
    "mutates x": (
        "\n        x.mul_(2)\n" + PLAIN.replace("add_(x)", "add_(x / 2)"),
        Verdict.WRONG_MUTATION,
        Stage.CHECK,
    ),
    "exits": (
        "\n        import os\n        os._exit(0)\n",
        Verdict.CRASHED,
        Stage.CHECK,
    ),
    "segfault": (
        "\n        import ctypes\n        ctypes.string_at(0)\n",
        Verdict.CRASHED,
        Stage.CHECK,
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_failing_has_its_verdict(arena, way):
    body, verdict, stage = WAYS[way]
    evaluation = arena.evaluate(arena.candidate(body, before=SEEN))
    assert (evaluation.verdict, evaluation.stage) == (verdict, stage), evaluation.message
    assert evaluation.message
    assert evaluation.reward is None
    assert evaluation.timings == ()


def test_a_forgotten_mutation_is_wrong(arena):
    evaluation = arena.evaluate(
        arena.candidate("\n        return torch.softmax((residual + x) * self.weight, -1)\n")
    )
    assert evaluation.verdict in (Verdict.WRONG, Verdict.WRONG_MUTATION), evaluation.message


@pytest.mark.parametrize(
    ("source", "verdict", "stage"),
    [
        ("def broken(:", Verdict.LOAD_FAILED, Stage.LOAD),
        ("", Verdict.LOAD_FAILED, Stage.LOAD),
        ("import nothing_of_that_name", Verdict.LOAD_FAILED, Stage.LOAD),
        (CPP.replace("float top", "flaot top"), Verdict.BUILD_FAILED, Stage.BUILD),
    ],
    ids=["syntax", "no ModelNew", "import", "compiler"],
)
def test_what_cannot_be_loaded_or_built_says_why(arena, source, verdict, stage):
    evaluation = arena.evaluate(Candidate(source=arena.model + source, language="python"))
    assert (evaluation.verdict, evaluation.stage) == (verdict, stage), evaluation.message
    assert evaluation.message


def test_a_slow_candidate_is_correct_and_measured_briefly(arena):
    slow = PLAIN.replace(
        "residual.add_(x)", "residual.add_(x)\n        import time\n        time.sleep(0.02)"
    )
    evaluation = arena.evaluate(arena.candidate(slow))
    assert evaluation.verdict is Verdict.CORRECT, evaluation.message
    assert evaluation.reward < -2
    assert len(evaluation.timings[0].candidate_ns) < 12


def test_a_second_request_is_answered_from_the_memo(arena):
    evaluator = arena.evaluator
    candidate = arena.candidate(PLAIN + "        # again\n")
    request = arena.request(candidate)
    assert evaluator.known(request) is None
    first = arena.evaluate(candidate)
    started = children_of(os.getpid())
    second = arena.evaluate(candidate)
    assert children_of(os.getpid()) == started
    assert second.from_memo and not first.from_memo
    assert second.replaced(from_memo=False) == first
    assert evaluator.known(request) == second


def test_a_duel_of_a_candidate_with_itself_is_even_and_with_a_slow_one_is_won(arena):
    evaluator = arena.evaluator
    plain = arena.request(arena.candidate(PLAIN))
    slow = plain.replaced(
        candidate=arena.candidate(
            PLAIN.replace("x)\n", "x)\n        for _ in range(20): torch.sin(x)\n")
        )
    )
    even = evaluator.duel(plain, plain)
    assert even.gain_low <= even.gain <= even.gain_high
    assert even.gain_low < 0.25
    won = evaluator.duel(plain, slow)
    assert won.gain_low > 0
    assert won.challenger.verdict is Verdict.CORRECT
    assert not won.challenger.from_memo
    alone = evaluator.duel(plain, None)
    assert alone.gain_low < 0.25


def test_a_wrong_challenger_loses_and_an_absent_incumbent_says_nothing(arena):
    evaluator = arena.evaluator
    plain = arena.request(arena.candidate(PLAIN))
    broken = plain.replaced(candidate=arena.candidate(WAYS["raises"][0]))
    lost = evaluator.duel(broken, plain)
    assert lost.challenger.verdict is Verdict.RAISED
    assert lost.gain == lost.gain_low == lost.gain_high == float("-inf")
    void = evaluator.duel(plain, broken)
    assert void.challenger.verdict is Verdict.LOST
    assert (void.gain_low, void.gain_high) == (float("-inf"), float("inf"))


def test_processes_of_ours_that_die_are_replaced(arena):
    zygotes = {pid for pid in pids_below(os.getpid()) if "evaluator.zygote" in command(pid)}
    roots = {pid for pid in zygotes if parent(pid) == os.getpid()}
    (zygote,) = roots
    os.kill(zygote, signal.SIGKILL)
    os.waitid(os.P_PID, zygote, os.WEXITED | os.WNOWAIT)
    evaluation = arena.evaluate(arena.candidate(PLAIN + "        # after a fall\n"))
    assert evaluation.verdict is Verdict.CORRECT, evaluation.message
    (oracle,) = [pid for pid in pids_below(os.getpid()) if "evaluator.oracle" in command(pid)]
    os.kill(oracle, signal.SIGKILL)
    os.waitid(os.P_PID, oracle, os.WEXITED | os.WNOWAIT)
    evaluation = arena.evaluate(arena.candidate(PLAIN + "        # after another\n"))
    assert evaluation.verdict is Verdict.CORRECT, evaluation.message


def test_the_supervisor_never_imports_torch(arena, tmp_path):
    problem = arena.problem
    code = textwrap.dedent(
        f"""
        import sys
        from pathlib import Path
        from kerntree.evaluator.opening import open_evaluator
        from kerntree.evaluator.settings import EvaluatorSettings
        from kerntree.plans.candidate import Candidate
        from kerntree.plans.evaluation import EvaluationRequest
        folder = Path({str(tmp_path)!r})
        problem, evaluator = open_evaluator(
            Path({problem.path!r}), settings=EvaluatorSettings(threads=1, baselines=("eager",)),
            memo_directory=folder / "memo", work_directory=folder / "work")
        candidate = Candidate(source={arena.candidate(PLAIN).source!r}, language="torch")
        request = EvaluationRequest(problem=problem, candidate=candidate, config={{}})
        print(evaluator.evaluate(request).verdict)
        evaluator.close()
        print("torch" in sys.modules)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.split("\n")[:2] == ["correct", "False"], done.stderr


def test_a_bad_problem_is_refused_before_any_search(arena, tmp_path):
    path = tmp_path / "bad.py"
    path.write_text("def get_inputs(): return []\n")
    with pytest.raises(ProblemError, match="Model"):
        open_evaluator(
            path,
            settings=arena.settings,
            memo_directory=tmp_path / "memo",
            work_directory=tmp_path / "work",
        )


def stat(pid):
    """Fields of a process's status from its state on, or None if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def parent(pid):
    fields = stat(pid)
    return int(fields[1]) if fields else 0


def command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def pids_below(root):
    parents = {int(p.name): parent(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()}
    below, new = set(), {root}
    while new:
        new = {pid for pid, above in parents.items() if above in new} - below
        below |= new
    return below


def children_of(root):
    """Processes below one as (pid, start time): what was started can be counted from outside."""
    return {(pid, fields[19]) for pid in pids_below(root) if (fields := stat(pid))}
