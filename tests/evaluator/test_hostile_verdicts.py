"""Hostile candidates on the whole way to a verdict, and their honest twins."""

import importlib.util
import os
import textwrap
from pathlib import Path

import pytest

from kerntree.plans.evaluation import Verdict

_spec = importlib.util.spec_from_file_location(
    "hostile_bodies", Path(__file__).parent / "hostile" / "bodies.py"
)
bodies = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(bodies)

IMPORTS = "import ctypes, os, signal, socket, subprocess, sys, threading, time\n"
NETWORK = "socket.create_connection(('192.0.2.1', 80), timeout=2)\nreturn x * 2"
TIMER = "time.perf_counter_ns = time.monotonic_ns = lambda: 1\nreturn x * 2"

VERDICTS = {
    "infinite loop": {Verdict.TIMED_OUT},
    "grandchildren that ignore SIGTERM, then a loop": {Verdict.TIMED_OUT},
    "segmentation fault": {Verdict.CRASHED},
    "exit with a forged line": {Verdict.CRASHED, Verdict.FORGED},
    "a gigabyte of output": {Verdict.FLOODED},
    "writing to the home directory": {Verdict.FORBIDDEN},
    "writing into torch": {Verdict.FORBIDDEN},
    "remounting the root": {Verdict.FORBIDDEN},
    "too much memory": {Verdict.OUT_OF_MEMORY},
    "no tensor": {Verdict.RAISED},
    "exit by exception": {Verdict.RAISED},
}


def doubling(arena, body):
    """A candidate that is right if `body`, a function of `x`, returns twice its argument."""
    inner = textwrap.indent(body.strip("\n"), "        ")
    return arena.candidate(
        f"""
        residual.add_(x)
        return torch.softmax(self.double(residual) * 0.5 * self.weight, -1)

    def double(self, x):
{inner}
""",
        before=IMPORTS,
    )


@pytest.mark.parametrize("name", VERDICTS)
def test_a_hostile_candidate_gets_its_verdict_and_leaves_nothing(arena, name):
    before = below(os.getpid())
    evaluation = arena.evaluate(doubling(arena, bodies.HOSTILE[name][0]))
    assert evaluation.verdict in VERDICTS[name], evaluation.message
    assert evaluation.message
    assert (
        arena.evaluator.known(arena.request(doubling(arena, bodies.HOSTILE[name][0]))).verdict
        is evaluation.verdict
    )
    assert below(os.getpid()) <= before | baseline_of(arena)


def test_the_network_is_out_of_reach(arena):
    evaluation = arena.evaluate(doubling(arena, NETWORK))
    assert evaluation.verdict is Verdict.FORBIDDEN, evaluation.message


def test_a_clock_set_still_is_found_out(arena):
    evaluation = arena.evaluate(doubling(arena, TIMER))
    assert evaluation.verdict in (Verdict.FORGED, Verdict.CORRECT), evaluation.message
    if evaluation.verdict is Verdict.CORRECT:  # the child kept the clock it had before
        honest = arena.evaluate(doubling(arena, bodies.HONEST["plain"]))
        assert evaluation.reward < honest.reward + 1


def test_work_left_to_a_thread_is_found_out(arena):
    late = """
def later(y):
    time.sleep(0.02)
    y.copy_(x * 2)
y = torch.empty_like(x)
threading.Thread(target=later, args=(y,)).start()
return y
"""
    candidate = arena.candidate(
        f"""
        residual.add_(x)
        x = residual * self.weight * 0.5
{textwrap.indent(late.strip(), "        ")}
""",
        before=IMPORTS,
    )
    assert arena.evaluate(candidate).verdict is not Verdict.CORRECT


@pytest.mark.parametrize("name", bodies.HONEST)
def test_an_honest_twin_passes(arena, name):
    evaluation = arena.evaluate(doubling(arena, bodies.HONEST[name]))
    assert evaluation.verdict is Verdict.CORRECT, evaluation.message


def below(pid):
    """The processes below one."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int(
                    (entry / "stat").read_text().rpartition(")")[2].split()[1]
                )
            except OSError:
                continue
    found, more = {pid}, True
    while more:
        new = {child for child, parent in parents.items() if parent in found} - found
        found |= new
        more = bool(new)
    return found


def baseline_of(arena):
    """The baseline's own child, which may have been started meanwhile."""
    arena.evaluator.stopwatch.baselines.session()
    return below(os.getpid())
