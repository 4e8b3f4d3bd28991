"""Children: what they can do, what they cannot, and that nothing of them stays."""

import importlib.util
import os
import socket
import time
from pathlib import Path

import psutil
import pytest
import torch

from kerntree.evaluator.process import ChildFailure, ChildSpec, Zygote
from kerntree.evaluator.tensor_block import (
    create_block,
    encode,
    layout_of,
    map_block,
    pack,
    read_only,
    spec_of,
)

_spec = importlib.util.spec_from_file_location(
    "bodies", Path(__file__).parent / "hostile" / "bodies.py"
)
bodies = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(bodies)

SPEC = ChildSpec(threads=2, memory_bytes=1 << 30, processes=400)


@pytest.fixture(scope="module")
def zygote():
    zygote = Zygote.start(threads=2)
    yield zygote
    zygote.close()


def request(child, message, tensors=(), timeout=20.0):
    layout, fd = pack(list(tensors))
    shared = read_only(fd)
    try:
        return child.request(
            {**message, "layout": layout.model_dump(mode="json")}, fds=(shared,), timeout=timeout
        )[0]
    finally:
        os.close(fd)
        os.close(shared)


def load(child, source, **more):
    layout, fd = pack([])
    try:
        return child.request(
            {
                "op": "load", "source": source, "class": "ModelNew", "config": None, "seed": 0,
                "init": {"list": []}, "init_layout": layout.model_dump(mode="json"), "state": [],
                "state_layout": layout.model_dump(mode="json"), "folder": "", "mode": "as_is",
                "compile": False, **more,
            },
            fds=(fd, fd),
            timeout=30.0,
        )[0]  # fmt: skip
    finally:
        os.close(fd)


def run(zygote, source, *, timeout=20.0, spec=SPEC, **more):
    """The reply to one run on a matrix, and whether the block then held twice the matrix."""
    x = torch.randn(8, 8)
    child = zygote.spawn(spec)
    try:
        reply = load(child, source, **more)
        if not reply["ok"]:
            return reply, False
        tree, tensors = encode([x])
        assert request(child, {"op": "inputs", "slot": 0, "args": tree}, tensors)["ok"]
        layout = layout_of([spec_of(x)])
        block = create_block(layout, poison=True)
        try:
            reply, _ = child.request(
                {
                    "op": "run", "slot": 0, "layout": layout.model_dump(mode="json"), "tree": 0,
                    "mutated": [], "buffers": [],
                },
                fds=(block,),
                timeout=timeout,
            )  # fmt: skip
            got = map_block(block, layout, writable=False)[0]
            return reply, torch.equal(got, x * 2)
        finally:
            os.close(block)
    finally:
        child.close()


def processes_of(pid):
    return {process.pid for process in psutil.Process(pid).children(recursive=True)}


def gone(pid, seconds=3.0):
    """Whether all descendants of a process have left the process table within a moment."""
    deadline = time.monotonic() + seconds
    while processes_of(pid) and time.monotonic() < deadline:
        os.sched_yield()
    return not processes_of(pid)


@pytest.mark.parametrize("name", bodies.HONEST)
def test_honest_candidates_run(zygote, name):
    reply, right = run(zygote, bodies.module(bodies.HONEST[name]))
    assert reply["ok"], reply
    assert right


@pytest.mark.parametrize("name", bodies.HOSTILE)
def test_hostile_candidates_are_refused_and_leave_nothing(zygote, name):
    body, reason = bodies.HOSTILE[name]
    mounts = Path("/proc/self/mountinfo").read_text()
    patience = 3.0 if reason == "ChildTimedOut" else 20.0
    try:
        reply, right = run(zygote, bodies.module(body), timeout=patience)
        said = f"{reply.get('verdict')} {reply.get('message')}"
        assert not right
    except ChildFailure as failure:
        said = f"{type(failure).__name__} {failure.message}"
    assert reason in said
    assert gone(zygote.pid)
    assert Path("/proc/self/mountinfo").read_text() == mounts
    reply, right = run(zygote, bodies.module(bodies.HONEST["plain"]))
    assert reply["ok"] and right


def test_the_network_is_out_of_reach(zygote):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        body = f"socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 2)"
        reply, _ = run(zygote, bodies.module(body))
        assert reply["verdict"] in ("forbidden", "raised")
        with pytest.raises(BlockingIOError):
            server.accept()


def test_the_environment_tells_nothing(zygote, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    body = "raise ValueError(','.join(os.environ) + open('/proc/self/environ').read())"
    reply, _ = run(zygote, bodies.module(body))
    assert "SECRET_TOKEN" not in reply["message"] and "hunter2" not in reply["message"]


def test_other_processes_cannot_be_seen_or_signalled(zygote):
    body = "raise ValueError(str(sorted(int(p) for p in os.listdir('/proc') if p.isdigit())))"
    reply, _ = run(zygote, bodies.module(body))
    assert reply["message"] == "ValueError: [1]"


def test_config_reaches_the_module_before_it_is_built(zygote):
    source = (
        "CONFIG = {'A': 1, 'B': 2}\nTUNABLES = {'A': [1, 3]}\nseen = []\n"
        "def build(): seen.append(dict(CONFIG))\n" + bodies.module("return x * seen[0]['A']")
    )
    reply, right = run(zygote, source, config={"A": 2})
    assert reply["ok"] and right


def test_a_failing_build_is_named(zygote):
    source = "def build(): raise RuntimeError('build failed: line 3: no such type')\n"
    reply, _ = run(zygote, source + bodies.module("return x * 2"))
    assert (reply["stage"], reply["verdict"]) == ("build", "build failed")
    assert "line 3" in reply["message"]


@pytest.mark.parametrize("source", ["def broken(:", "import no_such_package", "x = 1"])
def test_a_module_that_does_not_load_is_named(zygote, source):
    reply, _ = run(zygote, source)
    assert (reply["stage"], reply["verdict"]) == ("load", "load failed")


def test_timed_calls_see_fresh_memory_and_can_be_submitted(zygote):
    source = bodies.module(
        "self.seen = getattr(self, 'seen', set()) | {x.data_ptr()}\n"
        "assert torch.equal(x, x.clone())\nx = x * 2\nreturn x"
    )
    x = torch.randn(64, 64)
    child = zygote.spawn(SPEC)
    try:
        assert load(child, source)["ok"]
        tree, tensors = encode([x])
        assert request(child, {"op": "inputs", "slot": 5, "args": tree}, tensors)["ok"]
        timed, _ = child.request({"op": "time", "slots": [5] * 4, "warmup": 1}, timeout=10)
        assert len(timed["ns"]) == 3 and min(timed["ns"]) > 0
        layout = layout_of([spec_of(x)])
        block = create_block(layout, poison=True)
        message = {
            "op": "submit", "layout": layout.model_dump(mode="json"), "tree": 0,
            "mutated": [], "buffers": [],
        }  # fmt: skip
        assert child.request(message, fds=(block,), timeout=10)[0]["ok"]
        assert torch.equal(map_block(block, layout, writable=False)[0], x * 2)
        os.close(block)
    finally:
        child.close()


def test_what_a_module_holds_is_walked_for_garbage_once_not_before_every_block(zygote):
    held = "held = [{'number': [k]} for k in range(400_000)]\n"
    child = zygote.spawn(SPEC)
    try:
        assert load(child, held + bodies.module("return x * 2"))["ok"]
        tree, tensors = encode([torch.randn(8, 8)])
        assert request(child, {"op": "inputs", "slot": 5, "args": tree}, tensors)["ok"]
        seconds = []
        for _ in range(6):
            start = time.perf_counter()
            child.request({"op": "time", "slots": [5], "warmup": 1}, timeout=10)
            seconds.append(time.perf_counter() - start)
        assert min(seconds[1:]) < seconds[0] / 4
    finally:
        child.close()


def test_everything_ends_with_the_supervisor():
    zygote = Zygote.start(threads=1)
    child = zygote.spawn(SPEC)
    pids = {zygote.pid, *processes_of(zygote.pid)}
    assert len(pids) == 3
    zygote.close()
    with pytest.raises(ChildFailure):
        child.request({"op": "time", "slots": [], "warmup": 0}, timeout=5)
    child.close()
    deadline = time.monotonic() + 10
    while living := {pid for pid in pids if Path(f"/proc/{pid}/exe").exists()}:
        assert time.monotonic() < deadline, f"{living} outlived the supervisor"
        os.sched_yield()


def test_a_problem_below_tmp_can_be_read_and_not_written(zygote, tmp_path):
    (tmp_path / "data.txt").write_text("2")
    spec = ChildSpec(threads=1, memory_bytes=1 << 30, visible=(str(tmp_path),))
    path = str(tmp_path / "data.txt")
    reply, right = run(zygote, bodies.module(f"return x * int(open({path!r}).read())"), spec=spec)
    assert reply["ok"] and right
    reply, _ = run(zygote, bodies.module(f"open({path!r}, 'w')"), spec=spec)
    assert reply["verdict"] == "forbidden"
