"""The supervisor's hold on the zygote and its children; imports no torch."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from kerntree.cache.errors import KerntreeError
from kerntree.evaluator.transport import (
    TransportClosed,
    TransportFlooded,
    TransportGarbled,
    TransportTimeout,
    receive,
    send,
)

_REPLY_LIMIT = 1 << 20
_WATCH_SECONDS = 0.05
_INHERITED = (
    "PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CXX", "CC", "LANG", "CUDA_HOME",
    "TRITON_INTERPRET", "OMP_PROC_BIND", "OMP_PLACES", "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER", "CUDA_PATH", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
    "TRITON_LIBCUDA_PATH", "TRITON_PTXAS_PATH",
)  # fmt: skip


class ProcessError(KerntreeError):
    """The evaluator's own processes do not work; the message says which and why."""


class ChildFailure(Exception):
    """A child's life ended, or its answer cannot be used. `output` is the tail of what it wrote."""

    def __init__(self, message: str, *, output: str = "") -> None:
        super().__init__(message)
        self.message, self.output = message, output


class ChildDied(ChildFailure):
    """Ended by a signal (`exit` < 0) or by itself without a reply."""

    def __init__(self, message: str, *, exit: int | None, output: str = "") -> None:  # noqa: A002
        super().__init__(message, output=output)
        self.exit = exit


class ChildTimedOut(ChildFailure):
    """Did not reply before the deadline."""


class ChildFlooded(ChildFailure):
    """Wrote more than allowed."""


class ChildForged(ChildFailure):
    """Sent what is not a reply."""


class ChildOutOfMemory(ChildFailure):
    """Took more memory than allowed."""


@dataclass(frozen=True)
class ChildSpec:
    """What a child may have: threads, bytes of memory and of output, directories it may
    write to, and read though they lie below /tmp; and the type of device it computes on, with
    float32 products rounded to TF32 or not."""

    threads: int
    memory_bytes: int
    output_bytes: int = 4 << 20
    scratch_bytes: int = 1 << 30
    processes: int = 400
    writable: tuple[str, ...] = ()
    visible: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    required: bool = False
    device: str = "cpu"
    tf32: bool = False


class Child:
    """One candidate's process, spoken to over its own socket."""

    def __init__(self, sock: socket.socket, status: socket.socket, spec: ChildSpec) -> None:
        self._socket, self._status, self._spec = sock, status, spec
        self._report: dict[str, Any] | None = None
        self.level = "unknown"

    def start(self, *, timeout: float) -> None:
        """Waits until the child is ready; raises `ChildFailure`."""
        reply, _ = self._receive(timeout)
        self.level = str(reply.get("level"))

    def request(
        self, message: dict[str, Any], *, fds: Sequence[int] = (), timeout: float
    ) -> tuple[dict[str, Any], list[int]]:
        """Sends a message and waits for the reply (seconds); raises `ChildFailure`."""
        try:
            send(self._socket, message, fds=fds, deadline=time.monotonic() + timeout)
        except TransportTimeout:
            raise ChildTimedOut(f"took no request for {timeout:.0f} s") from None
        except TransportClosed:
            raise self._death() from None
        return self._receive(timeout)

    def close(self) -> None:
        """Kills the child with all that it started. May be called twice."""
        self._socket.close()
        if self._report is None and self._status.fileno() >= 0:
            with contextlib.suppress(OSError):
                self._status.shutdown(socket.SHUT_WR)
            self._report = self._read_report(5.0)
        self._status.close()

    def _receive(self, timeout: float) -> tuple[dict[str, Any], list[int]]:
        deadline = time.monotonic() + timeout
        while True:
            step = min(time.monotonic() + _WATCH_SECONDS, deadline)
            try:
                if self._readable(step - time.monotonic()):
                    return receive(self._socket, limit=_REPLY_LIMIT, deadline=deadline)
            except TransportFlooded as error:
                raise ChildFlooded(str(error)) from None
            except TransportGarbled as error:
                raise ChildForged(str(error)) from None
            except TransportClosed:
                raise self._death() from None
            except TransportTimeout:
                pass
            self._check_memory()
            if time.monotonic() >= deadline:
                self.close()
                raise ChildTimedOut(f"no answer in {timeout:.0f} s", output=self._output())

    def _readable(self, seconds: float) -> bool:
        import select

        ready, _, _ = select.select([self._socket], [], [], max(seconds, 0.0))
        return bool(ready)

    def _check_memory(self) -> None:
        used = _namespace_memory(self._keeper())
        if used > self._spec.memory_bytes:
            self.close()
            raise ChildOutOfMemory(
                f"took {used >> 20} MiB where {self._spec.memory_bytes >> 20} MiB are allowed"
            )

    def _keeper(self) -> int:
        return self._keeper_pid

    _keeper_pid = 0

    def _death(self) -> ChildFailure:
        self._report = self._report or self._read_report(5.0)
        code, output = self._report.get("exit"), self._output()
        if self._report.get("failed"):
            return ChildDied(str(self._report["failed"]), exit=None, output=output)
        if self._report.get("flooded"):
            return ChildFlooded(
                f"wrote more than {self._spec.output_bytes >> 20} MiB of output", output=output
            )
        if code is None:
            return ChildDied("ended without a trace", exit=None, output=output)
        if code < 0:
            import signal

            name = signal.Signals(-code).name
            return ChildDied(f"killed by {name}", exit=code, output=output)
        return ChildDied(f"exited with code {code} without a reply", exit=code, output=output)

    def _output(self) -> str:
        return str((self._report or {}).get("output", ""))

    def _read_report(self, seconds: float) -> dict[str, Any]:
        self._status.settimeout(seconds)
        data = b""
        with contextlib.suppress(OSError):
            while part := self._status.recv(1 << 16):
                data += part
        try:
            report = json.loads(data)
        except ValueError:
            return {}
        return report if isinstance(report, dict) else {}


class Zygote:
    """A warm interpreter that forks children. Restarted by its owner when it is sick."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self._process, self._control = process, control
        self.versions: dict[str, str] = {}

    @classmethod
    def start(cls, *, threads: int, device: str = "cpu", timeout: float = 60.0) -> Self:
        """Starts the interpreter and waits until torch is loaded; raises `ProcessError`."""
        ours, theirs = socket.socketpair()
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        environment |= {"OMP_NUM_THREADS": str(threads), "HOME": "/tmp"}
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "kerntree.evaluator.zygote", str(theirs.fileno()), device],
            pass_fds=(theirs.fileno(),),
            env=environment,
            cwd="/",
            start_new_session=True,  # a Ctrl-C in the terminal is the supervisor's alone
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        theirs.close()
        zygote = cls(process, ours)
        try:
            reply, _ = receive(ours, limit=1 << 16, deadline=time.monotonic() + timeout)
        except KerntreeError as error:
            process.kill()
            _, said = process.communicate()
            raise ProcessError(
                f"the process that starts kernels did not come up ({error}): "
                f"{said.decode(errors='replace')[-500:].strip()}"
            ) from None
        zygote.versions = {"torch": str(reply["torch"]), "python": str(reply["python"])}
        return zygote

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def spawn(self, spec: ChildSpec, *, timeout: float = 20.0) -> Child:
        """A new child, ready for requests; raises `ProcessError` or `ChildFailure`."""
        ours, theirs = socket.socketpair()
        status, keeper = socket.socketpair()
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        environment |= {
            "HOME": "/tmp",
            "TMPDIR": "/tmp",
            "OMP_NUM_THREADS": str(spec.threads),
            **spec.environment,
        }
        request = {
            "writable": list(spec.writable),
            "visible": list(spec.visible),
            "scratch_bytes": spec.scratch_bytes,
            "output_bytes": spec.output_bytes,
            "processes": spec.processes,
            "environment": environment,
            "threads": spec.threads,
            "required": spec.required,
            "device": spec.device,
            "tf32": spec.tf32,
        }
        try:
            send(
                self._control,
                request,
                fds=(theirs.fileno(), keeper.fileno()),
                deadline=time.monotonic() + timeout,
            )
            reply, _ = receive(self._control, limit=1 << 16, deadline=time.monotonic() + timeout)
        except KerntreeError as error:
            ours.close()
            status.close()
            raise ProcessError(f"the process that starts kernels is gone: {error}") from None
        finally:
            theirs.close()
            keeper.close()
        child = Child(ours, status, spec)
        child._keeper_pid = int(reply["keeper"])
        try:
            child.start(timeout=timeout)
        except ChildFailure:
            child.close()
            raise
        return child

    def close(self) -> None:
        """Ends the zygote and, with it, every child. May be called twice."""
        self._control.close()
        if self._process.poll() is None:
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()


def _namespace_memory(keeper: int) -> int:
    """Bytes of resident private memory of all descendants of a process."""
    page = os.sysconf("SC_PAGE_SIZE")
    total, pending = 0, children_of(keeper)
    while pending:
        pid = pending.pop()
        pending += children_of(pid)
        with contextlib.suppress(OSError, ValueError):
            _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
            total += (int(resident) - int(shared)) * page
    return total


def children_of(pid: int) -> list[int]:
    """Process ids of what any thread of a process started; threads may end while it looks."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # this thread alone is gone
                found += map(int, (task / "children").read_text().split())
    return found
