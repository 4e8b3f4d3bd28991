"""Blocks that children lend: the whole way of a candidate on a GPU, with the GPU left out.

Supervisor, oracle and child run in this process; handles are names in a table instead of the
driver's, and the device is the CPU. What remains is all of ours.
"""

import itertools
import json
from contextlib import contextmanager

import pytest
import torch

from kerntree.evaluator import oracle as oracle_module
from kerntree.evaluator.bench import Bench
from kerntree.evaluator.child import Runner
from kerntree.evaluator.child_ground import CpuGround, CudaGround
from kerntree.evaluator.device_block import BlockRefused, Lent
from kerntree.evaluator.oracle import Oracle
from kerntree.evaluator.oracle_ground import CudaBlocks
from kerntree.evaluator.oracle_process import BlockUnusable, OracleProcess
from kerntree.evaluator.refusal import Refused
from kerntree.evaluator.room import Room
from kerntree.evaluator.session import CandidateFailed, LoadOrder, Session
from kerntree.evaluator.settings import EvaluatorSettings
from kerntree.evaluator.tensor_block import views
from kerntree.evaluator.trials import TrialInputs
from kerntree.plans.evaluation import Verdict

PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x, residual):
        residual.add_(x)
        self.seen.add_(1)
        return torch.softmax(residual * self.weight, dim=-1)

def get_inputs():
    return [torch.randn(64, 33), torch.randn(64, 33)]

def get_init_inputs():
    return [33]
"""
MODEL = PROBLEM.split("def get_inputs", maxsplit=1)[0]
PLAIN = MODEL + "class ModelNew(Model):\n    pass\n"


class Table:
    """`Lending` by a table: what one side lends, the other finds under its name."""

    def __init__(self):
        self.blocks = {}
        self.numbers = itertools.count(1)

    def lend(self, layout, *, poison=False):
        flat = torch.full((layout.bytes,), 0xFF if poison else 0, dtype=torch.uint8)
        handle = f"{next(self.numbers):0128x}"
        self.blocks[handle] = flat
        return Lent(views(flat, layout), handle)

    @contextmanager
    def opened(self, handle, layout):
        if handle not in self.blocks or self.blocks[handle].numel() < layout.bytes:
            raise BlockRefused("no such block")
        yield views(self.blocks[handle], layout)


class Ground(CudaGround):
    """A child's GPU, of which only the lending is left."""

    def __init__(self, table):
        super().__init__(lending=table)
        self.device = torch.device("cpu")
        self.released = self.captures = 0

    def begin(self):
        return

    def timed(self, call, args):
        return CpuGround().timed(call, args)

    def captured(self, call, args):
        """Replays what was captured: the same call on the same memory."""
        self.captures += 1
        for _ in range(2):
            call(args)
        return lambda: self.timed(call, args)

    def settle(self):
        return

    def release(self):
        self.released += 1


class Blocks(CudaBlocks):
    kind = "cpu"

    def memory(self):
        return 1 << 32


class Child:
    """A child's process without the process: each request passes as JSON text."""

    def __init__(self, runner):
        self.runner = runner
        self.asked = []

    def request(self, message, *, fds=(), timeout):
        message = json.loads(json.dumps(message))
        self.asked.append(message)
        try:
            reply = {"ok": True, **getattr(self.runner, message["op"])(message, list(fds))}
        except Refused as refused:
            reply = {
                "ok": False, "stage": "check", "verdict": refused.verdict,
                "message": refused.message,
            }  # fmt: skip
        return json.loads(json.dumps(reply)), []

    def close(self):
        return


class NearOracle(OracleProcess):
    """The oracle's process without the process."""

    answers: Oracle

    def _request(self, message, *, fds=()):
        message = json.loads(json.dumps(message))
        try:
            reply, sent = oracle_module._answer(self.answers, message, list(fds), lambda _: None)
        except BlockRefused as error:
            raise BlockUnusable(str(error)) from None
        return json.loads(json.dumps(reply)), sent


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    path = tmp_path_factory.mktemp("lent") / "problem.py"
    path.write_text(PROBLEM)
    with OracleProcess.start(seconds=60) as process:
        return process.describe(path)


class World:
    def __init__(self, problem, *, thrifty):
        self.problem = problem
        self.table = Table()
        self.oracle = NearOracle(problem=problem)
        self.oracle.answers = Oracle(budget=1 << 30, ground=Blocks(self.table))
        self.state = self.oracle.state(5)
        settings = EvaluatorSettings()
        inputs = TrialInputs(self.oracle, settings.trials, 1 << 30)
        rooms = {"default": Room(slots=1 if thrifty else 2, thrifty=thrifty)}
        self.bench = Bench(problem, settings, inputs, lambda *_: None, rooms=rooms)

    def session(self, source):
        self.ground = Ground(self.table)
        self.child = Child(Runner(self.ground))
        session = Session(self.child, self.problem, EvaluatorSettings().deadlines)
        session.load(
            LoadOrder(
                source=source,
                class_name="ModelNew",
                seed=self.state.seed,
                init=self.state.init,
                init_layout=self.state.init_layout,
                state=self.state.names,
                state_layout=self.state.state_layout,
                fds=self.state.fds,
            )
        )
        return session

    def timed(self, session):
        case = self.problem.cases[0]
        with self.bench.timed_inputs(case) as prepared:
            slots = self.bench.give(session, prepared)
            blocks = session.time([slots[0]] * 3, warmup=1, timeout=5)
            self.bench.check_timed(session, case, prepared[0])
            session.rest()
        return blocks


@pytest.fixture(params=[False, True], ids=["plenty", "thrifty"])
def world(request, described):
    return World(described, thrifty=request.param)


def forward(body):
    return f"{MODEL}class ModelNew(Model):\n    def forward(self, x, residual):\n        {body}\n"


def test_the_right_candidate_is_right_checked_and_timed(world):
    session = world.session(PLAIN)
    errors = world.bench.check(session, full=True)
    assert {error.output for error in errors} >= {"", "changed input 1", "changed buffer seen"}
    assert len(world.timed(session).calls_ns) == 3


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        ("return super().forward(x, residual) * 1.001", Verdict.WRONG),
        ("return super().forward(x, residual.clone())", Verdict.WRONG),
        ("y = super().forward(x, residual); x.zero_(); return y", Verdict.WRONG_MUTATION),
        ("return super().forward(x, residual).to('meta')", Verdict.WRONG_FORM),
        ("raise RuntimeError('CUDA error: out of memory')", Verdict.OUT_OF_MEMORY),
        ("raise RuntimeError('CUDA error: an illegal memory access was encountered')",
         Verdict.CRASHED),
        ("raise RuntimeError('Triton Error [CUDA]: invalid argument')", Verdict.RAISED),
    ],
)  # fmt: skip
def test_failures_have_their_verdicts(world, body, verdict):
    session = world.session(forward(body))
    with pytest.raises(CandidateFailed) as failed:
        world.bench.check(session, full=True)
    assert failed.value.verdict is verdict


def test_what_a_child_ruins_in_its_block_leaves_the_truth_alone(world):
    session = world.session(PLAIN)
    world.bench.check(session, full=True)
    for flat in world.table.blocks.values():
        flat.fill_(0x7F)
    world.bench.check(world.session(PLAIN), full=True)


def test_a_block_that_nobody_wrote_to_is_told_from_a_wrong_result(world):
    session = world.session(PLAIN)
    world.ground.give = lambda layout, fds, results: {
        "handle": world.table.lend(layout, poison=True).handle
    }
    with pytest.raises(CandidateFailed) as failed:
        world.bench.check(session, full=True)
    assert failed.value.verdict is Verdict.FORGED
    assert "no result was written" in failed.value.message


@pytest.mark.parametrize("handle", ["", None, 7, "ab" * 64, "zz" * 64, "../../etc/passwd"])
def test_a_handle_that_cannot_be_is_forged(world, handle):
    session = world.session(PLAIN)
    world.ground.give = lambda layout, fds, results: {"handle": handle}
    with pytest.raises(CandidateFailed) as failed:
        world.bench.check(session, full=True)
    assert failed.value.verdict is Verdict.FORGED


def test_a_thrifty_child_gives_memory_back_and_warms_up_anew(described):
    world = World(described, thrifty=True)
    session = world.session(PLAIN)
    world.bench.check(session, full=True)
    checked = world.ground.released
    assert checked == len(world.bench.inputs.check_slots(described.cases[0], full=True))
    assert 0 not in world.child.runner.slots
    world.timed(session)
    world.timed(session)
    warmed = [m for m in world.child.asked if m["op"] == "time" and len(m["slots"]) == m["warmup"]]
    assert len(warmed) == 2  # before each of the timed requests, since the check rested as well
    assert world.ground.released == checked + 2
    assert world.child.runner.timed is None


def test_with_plenty_of_room_nothing_is_given_back(described):
    world = World(described, thrifty=False)
    session = world.session(PLAIN)
    world.bench.check(session, full=True)
    world.timed(session)
    assert world.ground.released == 0
    assert not [m for m in world.child.asked if m["op"] == "release"]


KEEPS = """
_kept = []

class ModelNew(Model):
    def forward(self, x, residual):
        if len(_kept) < 2:
            _kept.append(super().forward(x, residual))
            return _kept[-1]
        super().forward(x, residual)
        return _kept[0].clone()
"""


def replayed(world, session):
    case = world.problem.cases[0]
    with world.bench.timed_inputs(case) as prepared:
        slots = world.bench.give(session, prepared)
        blocks = session.time([*slots, *slots], warmup=1, timeout=5, graph=True)
        world.bench.check_timed(session, case, prepared[-1])
    return blocks


def test_a_replay_reads_rewritten_inputs_and_its_results_are_compared(described):
    world = World(described, thrifty=False)
    session = world.session(PLAIN)
    assert len(replayed(world, session).calls_ns) == 4
    assert world.ground.captures == 1


def test_a_result_kept_from_before_the_capture_is_found_out(described):
    world = World(described, thrifty=False)
    with pytest.raises(CandidateFailed) as failed:
        replayed(world, world.session(f"{MODEL}{KEEPS}"))
    assert failed.value.verdict is Verdict.WRONG


def test_a_new_set_of_inputs_is_captured_anew(described):
    world = World(described, thrifty=False)
    session = world.session(PLAIN)
    replayed(world, session)
    world.bench.inputs.renew()
    session.loaded.clear()
    replayed(world, session)
    assert world.ground.captures == 2


def test_what_cannot_be_captured_raises(described):
    world = World(described, thrifty=False)
    session = world.session(PLAIN)

    def refuse(call, args):
        raise RuntimeError("operation not permitted when stream is capturing")

    world.ground.captured = refuse
    with pytest.raises(CandidateFailed, match="stream is capturing") as failed:
        replayed(world, session)
    assert failed.value.verdict is Verdict.RAISED
