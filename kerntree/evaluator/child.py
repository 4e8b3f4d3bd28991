"""The candidate's process: loads one module, runs it on inputs it is handed, times it.

Nothing it says is believed: outputs are compared elsewhere, times are held against the
supervisor's clock. Its duty is to be convenient for honest candidates and useless to others.
"""

import contextlib
import gc
import importlib.util
import os
import socket
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kerntree.evaluator.call_forms import WrongForm, check_result, same_bits
from kerntree.evaluator.child_ground import CpuGround, Ground, TimedCall, ground_named
from kerntree.evaluator.cuda import CudaError
from kerntree.evaluator.refusal import Refused, guarded, refusal
from kerntree.evaluator.tensor_block import (
    Layout,
    decode,
    map_block,
    private_copy,
    tensor_paths,
)
from kerntree.evaluator.transport import TransportClosed, receive, send

_REQUEST_LIMIT = 64 << 20
_MOST_CASES = 256


class Runner:
    """One loaded candidate and the inputs it was handed."""

    def __init__(self, ground: Ground | None = None) -> None:
        self.ground = ground or CpuGround()
        self.model: Any = None
        self.compiled = False
        self.state: dict[str, torch.Tensor] = {}
        self.slots: dict[int, tuple[Any, list[torch.Tensor], list[tuple[int, ...]], list[str]]] = {}
        self.buffers: dict[int, list[str]] = {}
        self.timed: tuple[int, list[torch.Tensor], Any] | None = None
        self.captured: tuple[list[torch.Tensor], TimedCall] | None = None
        self.clock = time.perf_counter_ns
        self._held: list[torch.Tensor] = []

    # --- load -------------------------------------------------------------------------------

    def load(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Imports the module under its config, builds it, constructs the model with the state."""
        init = map_block(fds[0], Layout.model_validate(message["init_layout"]), writable=False)
        state = map_block(fds[1], Layout.model_validate(message["state_layout"]), writable=False)
        self.ground.begin()
        started = self.clock()
        if message["folder"]:
            sys.path.insert(0, message["folder"])
        module = _imported(message["source"])
        if message.get("config"):
            own = getattr(module, "CONFIG", {})
            vars(module)["CONFIG"] = {**own, **message["config"]}
        build = getattr(module, "build", None)
        loaded = self.clock()
        if callable(build):
            guarded("build failed", build)
        built = self.clock()
        kind = getattr(module, message["class"], None)
        if not (isinstance(kind, type) and issubclass(kind, torch.nn.Module)):
            raise Refused(
                "load failed", f"the module has no class {message['class']} that is an nn.Module"
            )
        torch.manual_seed(message["seed"])
        device = self.ground.device
        arguments = decode(message["init"], [t.to(device, copy=True) for t in init])
        self.model = guarded("load failed", lambda: kind(*arguments).to(device))
        if message["mode"] == "eval":
            self.model.eval()
        self._take_state(dict(zip(message["state"], state, strict=True)))
        if message.get("compile"):
            self.compiled = True
            self.model = _compiled(self.model)
        return {
            "tunables": _plain(getattr(module, "TUNABLES", {})),
            "config": _plain(getattr(module, "CONFIG", {})),
            "seconds": {
                "load": (loaded - started + self.clock() - built) / 1e9,
                "build": (built - loaded) / 1e9,
            },
        }

    def _take_state(self, given: dict[str, torch.Tensor]) -> None:
        own = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        with torch.no_grad():
            for name, value in given.items():
                if name in own and own[name].shape == value.shape:
                    own[name].copy_(value)
        self.state = {name: tensor.detach().clone() for name, tensor in own.items()}

    # --- inputs and calls ---------------------------------------------------------------------

    def inputs(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Takes a set of inputs as a slot; the memory is private to this process."""
        layout = Layout.model_validate(message["layout"])
        self.slots.pop(message["slot"], None)
        self.captured = None
        tensors, reply = self.ground.take(layout, fds)
        strides = [placed.spec.strides for placed in layout.tensors]
        paths = tensor_paths(message["args"])
        self.slots[message["slot"]] = (message["args"], tensors, strides, paths)
        self.buffers[message["slot"]] = message.get("buffers", [])
        return reply

    def run(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """One call; its outputs, then mutated inputs, then mutated buffers, into the block."""
        self._restore(message["buffers"])
        slot = message["slot"]
        started = self.clock()
        copies, args = self._fresh(slot)
        result = self._call(args)
        guarded("raised", self.ground.settle)
        seconds = (self.clock() - started) / 1e9
        return {"seconds": seconds, **self._submit(message, fds, slot, copies, result)}

    def time(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Calls on fresh copies of the slots in turn; nanoseconds of each after the warm-up.

        With `"graph"` each is a replay of one captured call, its inputs rewritten before it.
        """
        samples: list[float] = []
        timed = self._replayed if message.get("graph") else self._called
        self.timed = None
        gc.collect()
        gc.freeze()  # the next collection need not walk a compiler's objects again
        gc.disable()
        try:
            for number, slot in enumerate(message["slots"]):
                result = None
                copies, result, nanoseconds = timed(slot)
                if number >= message["warmup"]:
                    samples.append(nanoseconds)
                self.timed = (slot, copies, result)
                del result, copies
                if number + 1 < len(message["slots"]):
                    self.timed = None
        finally:
            gc.enable()
        return {"ns": samples}

    def submit(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """The outputs of the last timed call, into the block."""
        if self.timed is None:
            raise Refused("forged", "no timed call to submit")
        slot, copies, result = self.timed
        return self._submit(message, fds, slot, copies, result)

    def release(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Forgets the last timed call and some slots, and gives their memory back."""
        self.timed = self.captured = None
        for slot in message["slots"]:
            self.slots.pop(slot, None)
        if not self.compiled:  # a compiler's objects hold no results, and walking them takes long
            gc.unfreeze()
        gc.collect()
        self.ground.release()
        return {}

    def _called(self, slot: int) -> tuple[list[torch.Tensor], Any, float]:
        self._restore(self.buffers[slot])
        copies, args = self._fresh(slot)
        return copies, *self.ground.timed(self._call, args)

    def _replayed(self, slot: int) -> tuple[list[torch.Tensor], Any, float]:
        if self.captured is None:
            copies, args = self._fresh(slot)
            self.captured = (
                copies,
                guarded("raised", lambda: self.ground.captured(self._call, args)),
            )
        copies, call = self.captured
        self._restore(self.buffers[slot])
        for copy, original in zip(copies, self.slots[slot][1], strict=True):
            copy.copy_(original)
        return copies, *call()

    def _fresh(self, slot: int) -> tuple[list[torch.Tensor], Any]:
        tree, tensors, strides, _ = self.slots[slot]
        copies = [private_copy(t, s) for t, s in zip(tensors, strides, strict=True)]
        return copies, decode(tree, copies)

    def _call(self, args: Any) -> Any:
        with torch.no_grad():
            return guarded("raised", lambda: self.model(*args))

    def _restore(self, buffers: list[str]) -> None:
        own = dict(self.model.named_buffers())
        with torch.no_grad():
            for name in buffers:
                if name in own:
                    own[name].copy_(self.state[name])

    def _submit(
        self,
        message: dict[str, Any],
        fds: list[int],
        slot: int,
        copies: list[torch.Tensor],
        result: Any,
    ) -> dict[str, Any]:
        layout = Layout.model_validate(message["layout"])
        _, originals, _, paths = self.slots[slot]
        mutated, buffers = message["mutated"], message["buffers"]
        own = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        own = {name.removeprefix("_orig_mod."): tensor for name, tensor in own.items()}
        try:
            outputs = check_result(
                message["tree"],
                result,
                layout,
                inputs=copies,
                aliases=message.get("aliases", False),
                device=self.ground.device,
            )
        except WrongForm as error:
            raise Refused("wrong form", str(error)) from None
        if not message.get("outputs_only"):
            for path, copy, original in zip(paths, copies, originals, strict=True):
                if path not in mutated and not same_bits(copy, original):
                    raise Refused("wrong mutation", f"input {path} was changed")
            for name, tensor in own.items():
                kept = self.state.get(name)
                if kept is None or name in buffers:
                    continue
                if not same_bits(tensor.detach(), kept):
                    raise Refused("wrong mutation", f"{name} was changed")
        results = outputs + [copies[paths.index(path)] for path in mutated]
        for name in buffers:
            if name not in own:
                raise Refused("wrong mutation", f"the module has no buffer {name}")
            results.append(own[name].detach())
        with torch.no_grad():
            return self.ground.give(layout, fds, results)


def serve(sock: socket.socket, *, threads: int, device: str = "cpu", tf32: bool = False) -> None:
    """Answers requests until told to exit or the socket closes."""
    torch.set_num_threads(threads)
    runner = Runner(ground_named(device, tf32=tf32))
    operations: dict[str, tuple[str, Callable[[dict[str, Any], list[int]], dict[str, Any]]]] = {
        "load": ("load", runner.load),
        "inputs": ("check", runner.inputs),
        "run": ("check", runner.run),
        "time": ("time", runner.time),
        "submit": ("time", runner.submit),
        "release": ("time", runner.release),
    }
    while True:
        try:
            message, fds = receive(sock, limit=_REQUEST_LIMIT)
        except TransportClosed:
            return
        if message["op"] == "exit":
            return
        stage, operation = operations[message["op"]]
        try:
            reply = {"ok": True, **operation(message, fds)}
        except Refused as refused:
            reply = _refused(refused, stage)
        except (torch.OutOfMemoryError, CudaError) as error:  # what it left us was too little
            reply = _refused(refusal(error, otherwise="crashed"), stage)
        finally:
            for fd in fds:
                os.close(fd)
        send(sock, reply)


def _refused(refused: Refused, stage: str) -> dict[str, Any]:
    return {
        "ok": False,
        "stage": "build" if refused.verdict == "build failed" else stage,
        "verdict": refused.verdict,
        "message": refused.message[-2000:],
        "detail": refused.detail[-8000:],
    }


def _imported(source: str) -> types.ModuleType:
    """The module of a source text, from a real file, so that `inspect` and triton find it."""
    folder = Path(tempfile.mkdtemp())
    path = folder / "candidate.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("candidate", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["candidate"] = module
    loader = spec.loader
    guarded("load failed", lambda: loader.exec_module(module))
    return module


def _compiled(model: torch.nn.Module) -> torch.nn.Module:
    """`torch.compile` at its best: code for the sizes of each case, which it knows beforehand."""
    import torch._dynamo.config as dynamo
    import torch._inductor.config as inductor

    inductor.compile_threads = 1
    dynamo.recompile_limit = _MOST_CASES  # where it is passed, the plain operators run instead
    return torch.compile(model, dynamic=False)  # type: ignore[return-value]


def _plain(value: Any) -> Any:
    """Tunables and config as JSON, or nothing if they are not of that form."""
    with contextlib.suppress(TypeError, ValueError, AttributeError):
        return {
            str(key): [int(v) for v in item] if isinstance(item, list | tuple) else int(item)
            for key, item in value.items()
        }
    return {}
