"""Children on a GPU: faults and fraud get their verdicts, and the next candidate is unharmed."""

import importlib.util
import os
from itertools import count
from pathlib import Path

import pytest
import torch

from kerntree.evaluator.opening import open_evaluator
from kerntree.evaluator.settings import Deadlines, EvaluatorSettings, TimingRules
from kerntree.plans.candidate import Candidate
from kerntree.plans.evaluation import EvaluationRequest, Verdict

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]

_spec = importlib.util.spec_from_file_location(
    "gpu_bodies", Path(__file__).parent / "hostile" / "gpu_bodies.py"
)
bodies = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(bodies)

SETTINGS = EvaluatorSettings(
    baselines=("eager",),
    deadlines=Deadlines(run=6.0),
    timing=TimingRules(pairs_low=6, pairs_high=12),
)
SLOW_NS = 10e6  # the least that a candidate under SLOW takes
_unique = count()


class GpuArena:
    """An open evaluator on the GPU and its problem."""

    def __init__(self, problem, evaluator):
        self.problem, self.evaluator = problem, evaluator

    def evaluate(self, source):
        text = f"{bodies.MODEL}{bodies.IMPORTS}{source}# {os.getpid()} {next(_unique)}\n"
        candidate = Candidate(source=text, language="triton")
        return self.evaluator.evaluate(
            EvaluationRequest(problem=self.problem, candidate=candidate, config={})
        )

    def still_right(self):
        """Whether a plain candidate and a wrong one get their verdicts."""
        plain = self.evaluate(bodies.HONEST["plain"])
        assert plain.verdict is Verdict.CORRECT, plain.message
        assert plain.timings[0].ratio_low < 1.3 and plain.timings[0].ratio_high > 0.7
        half = self.evaluate(bodies.HOSTILE["half operands"][1])
        assert half.verdict is Verdict.WRONG, half.message


@pytest.fixture(scope="module")
def gpu_arena(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpu")
    path = folder / "problem.py"
    path.write_text(bodies.PROBLEM)
    torch.zeros(1, device="cuda")  # this process's own context
    free = torch.cuda.mem_get_info()[0]
    problem, evaluator = open_evaluator(
        path,
        settings=SETTINGS,
        memo_directory=folder / "memo",
        work_directory=folder / "work",
        device="cuda",
    )
    yield GpuArena(problem, evaluator)
    evaluator.close()
    assert free - torch.cuda.mem_get_info()[0] < 64 << 20, "memory of the device was left taken"


@pytest.mark.parametrize("name", bodies.HOSTILE)
def test_a_fault_gets_its_verdict_and_harms_nobody_else(gpu_arena, name):
    verdicts, source = bodies.HOSTILE[name]
    evaluation = gpu_arena.evaluate(source)
    assert evaluation.verdict in verdicts, evaluation.message
    assert evaluation.message
    gpu_arena.still_right()


@pytest.mark.parametrize("name", bodies.SLOW)
def test_time_cannot_be_hidden(gpu_arena, name):
    evaluation = gpu_arena.evaluate(bodies.SLOW[name])
    if evaluation.verdict is Verdict.CORRECT:
        assert evaluation.timings[0].median_ns > SLOW_NS
    else:
        assert evaluation.verdict in (Verdict.FORGED, Verdict.WRONG), evaluation.message
    gpu_arena.still_right()


@pytest.mark.parametrize("name", bodies.HONEST)
def test_an_honest_twin_passes(gpu_arena, name):
    evaluation = gpu_arena.evaluate(bodies.HONEST[name])
    assert evaluation.verdict is Verdict.CORRECT, evaluation.message


def test_a_child_gives_its_memory_back(gpu_arena):
    gpu_arena.evaluate(bodies.HONEST["plain"])
    before = torch.cuda.mem_get_info()[0]
    hog = bodies.forward(before="kept = torch.empty(8 << 30, dtype=torch.uint8, device='cuda')\n")
    assert gpu_arena.evaluate(hog).verdict is Verdict.CORRECT
    assert before - torch.cuda.mem_get_info()[0] < 64 << 20
