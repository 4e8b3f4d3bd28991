"""The candidate's process: loads one module, runs it on inputs it is handed, times it.

Nothing it says is believed: outputs are compared elsewhere, times are held against the
supervisor's clock. Its duty is to be convenient for honest candidates and useless to others.
"""

import contextlib
import errno
import gc
import importlib.util
import os
import socket
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kerntree.evaluator.call_forms import WrongForm, check_result, same_bits
from kerntree.evaluator.tensor_block import (
    Layout,
    decode,
    map_block,
    private_copy,
    tensor_paths,
)
from kerntree.evaluator.transport import TransportClosed, receive, send

_REQUEST_LIMIT = 64 << 20
_REFUSED = {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENETUNREACH, errno.ENETDOWN}


class Refused(Exception):
    """The candidate's fault: a verdict, the stage, a message and more detail."""

    def __init__(self, verdict: str, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.verdict, self.message, self.detail = verdict, message, detail


class Runner:
    """One loaded candidate and the inputs it was handed."""

    def __init__(self) -> None:
        self.model: Any = None
        self.state: dict[str, torch.Tensor] = {}
        self.slots: dict[int, tuple[Any, list[torch.Tensor], list[tuple[int, ...]], list[str]]] = {}
        self.timed: tuple[int, list[torch.Tensor], Any] | None = None
        self.clock = time.perf_counter_ns
        self._held: list[torch.Tensor] = []

    # --- load -------------------------------------------------------------------------------

    def load(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Imports the module under its config, builds it, constructs the model with the state."""
        init = map_block(fds[0], Layout.model_validate(message["init_layout"]), writable=False)
        state = map_block(fds[1], Layout.model_validate(message["state_layout"]), writable=False)
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
            _guarded("build failed", build)
        built = self.clock()
        kind = getattr(module, message["class"], None)
        if not (isinstance(kind, type) and issubclass(kind, torch.nn.Module)):
            raise Refused(
                "load failed", f"the module has no class {message['class']} that is an nn.Module"
            )
        torch.manual_seed(message["seed"])
        arguments = decode(message["init"], [t.clone() for t in init])
        self.model = _guarded("load failed", lambda: kind(*arguments))
        if message["mode"] == "eval":
            self.model.eval()
        self._take_state(dict(zip(message["state"], state, strict=True)))
        if message.get("compile"):
            import torch._inductor.config as inductor

            inductor.compile_threads = 1
            self.model = torch.compile(self.model)
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
        tensors = map_block(fds[0], layout, writable=False)
        strides = [placed.spec.strides for placed in layout.tensors]
        paths = tensor_paths(message["args"])
        self.slots[message["slot"]] = (message["args"], tensors, strides, paths)
        return {}

    def run(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """One call; its outputs, then mutated inputs, then mutated buffers, into the block."""
        self._restore(message["buffers"])
        slot = message["slot"]
        started = self.clock()
        copies, args = self._fresh(slot)
        result = self._call(args)
        seconds = (self.clock() - started) / 1e9
        self._submit(message, fds[0], slot, copies, result)
        return {"seconds": seconds}

    def time(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Calls on fresh copies of the slots in turn; nanoseconds of each after the warm-up."""
        samples: list[int] = []
        self.timed = None
        gc.collect()
        gc.disable()
        try:
            for number, slot in enumerate(message["slots"]):
                copies, args = self._fresh(slot)
                result = None
                before = self.clock()
                result = self._call(args)
                after = self.clock()
                if number >= message["warmup"]:
                    samples.append(after - before)
                self.timed = (slot, copies, result)
                del args, result, copies
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
        self._submit(message, fds[0], slot, copies, result)
        return {}

    def _fresh(self, slot: int) -> tuple[list[torch.Tensor], Any]:
        tree, tensors, strides, _ = self.slots[slot]
        copies = [private_copy(t, s) for t, s in zip(tensors, strides, strict=True)]
        return copies, decode(tree, copies)

    def _call(self, args: Any) -> Any:
        with torch.no_grad():
            return _guarded("raised", lambda: self.model(*args))

    def _restore(self, buffers: list[str]) -> None:
        own = dict(self.model.named_buffers())
        with torch.no_grad():
            for name in buffers:
                if name in own:
                    own[name].copy_(self.state[name])

    def _submit(
        self,
        message: dict[str, Any],
        fd: int,
        slot: int,
        copies: list[torch.Tensor],
        result: Any,
    ) -> None:
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
            for target, source in zip(map_block(fd, layout, writable=True), results, strict=True):
                target.copy_(source)


def serve(sock: socket.socket, *, threads: int) -> None:
    """Answers requests until told to exit or the socket closes."""
    torch.set_num_threads(threads)
    runner = Runner()
    operations: dict[str, tuple[str, Callable[[dict[str, Any], list[int]], dict[str, Any]]]] = {
        "load": ("load", runner.load),
        "inputs": ("check", runner.inputs),
        "run": ("check", runner.run),
        "time": ("time", runner.time),
        "submit": ("time", runner.submit),
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
            reply = {
                "ok": False,
                "stage": "build" if refused.verdict == "build failed" else stage,
                "verdict": refused.verdict,
                "message": refused.message[-2000:],
                "detail": refused.detail[-8000:],
            }
        finally:
            for fd in fds:
                os.close(fd)
        send(sock, reply)


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
    _guarded("load failed", lambda: loader.exec_module(module))
    return module


def _guarded(verdict: str, call: Callable[[], Any]) -> Any:
    """Runs the candidate's code; whatever it raises becomes its verdict."""
    try:
        return call()
    except BaseException as error:
        detail = traceback.format_exc()
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, MemoryError) or "not enough memory" in str(error):
            raise Refused("out of memory", text, detail) from None
        if isinstance(error, OSError) and error.errno in _REFUSED:
            raise Refused("forbidden", text, detail) from None
        if str(error).startswith("build failed"):
            raise Refused("build failed", str(error), detail) from None
        raise Refused(verdict, text, detail) from None


def _plain(value: Any) -> Any:
    """Tunables and config as JSON, or nothing if they are not of that form."""
    with contextlib.suppress(TypeError, ValueError, AttributeError):
        return {
            str(key): [int(v) for v in item] if isinstance(item, list | tuple) else int(item)
            for key, item in value.items()
        }
    return {}
