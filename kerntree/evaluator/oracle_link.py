"""The oracle's process as the supervisor holds it: its socket, its lifeline, how it ends."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from kerntree.cache.errors import KerntreeError
from kerntree.evaluator.transport import TransportError, receive, send

_REPLY_LIMIT = 256 << 20
_TAIL = 4096  # bytes of what the oracle wrote that are kept
_START_SECONDS = 120.0


class OracleFailed(KerntreeError):
    """The oracle died, hung or erred, and another one did not do better."""


class OracleLink:
    """One oracle process: its socket, its lifeline, and the tail of what it writes."""

    def __init__(
        self, popen: "subprocess.Popen[bytes]", sock: socket.socket, lifeline: int
    ) -> None:
        self.popen, self.sock, self.lifeline = popen, sock, lifeline
        self.ready: dict[str, Any] = {}
        self.tail = b""
        self.reader = threading.Thread(target=self._drain, daemon=True)
        self.reader.start()

    @classmethod
    def start(
        cls, caches: Path | None = None, *, device: str = "cpu", precision: str = "strict"
    ) -> Self:
        """Raises `OracleFailed` if the process does not come up; `ready` is what it says then."""
        ours, theirs = socket.socketpair()
        read_end, write_end = os.pipe()
        command = [sys.executable, "-P", "-m", "kerntree.evaluator.oracle"]
        try:
            popen = subprocess.Popen(
                [*command, str(theirs.fileno()), str(read_end), device, precision],
                pass_fds=[theirs.fileno(), read_end],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=_environment(caches),
                start_new_session=True,  # a Ctrl-C is for us to handle, not for the oracle
            )
        except BaseException:
            ours.close()
            os.close(write_end)
            raise
        finally:
            theirs.close()
            os.close(read_end)
        process = cls(popen, ours, write_end)
        try:
            process.ready, _ = receive(
                ours, limit=_REPLY_LIMIT, deadline=time.monotonic() + _START_SECONDS
            )
        except TransportError:
            raise OracleFailed(f"the oracle does not start: {process.end()}") from None
        return process

    def request(
        self,
        message: dict[str, Any],
        *,
        seconds: float,
        fds: Sequence[int] = (),
        stages: list[str] | None = None,
    ) -> tuple[dict[str, Any], list[int]]:
        """One request; reports of stages that precede the reply go to `stages`."""
        deadline = time.monotonic() + seconds
        send(self.sock, message, fds=fds, deadline=deadline)
        while True:
            reply, received = receive(self.sock, limit=_REPLY_LIMIT, deadline=deadline)
            if "stage" not in reply:
                return reply, received
            if stages is not None:
                stages.append(reply["stage"])

    def end(self) -> str:
        """Ends the process and says how it ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):  # it may be about to exit by itself
            if self._hung_up():
                self.popen.wait(timeout=2.0)
        by_itself = self.popen.poll()
        with contextlib.suppress(OSError):
            os.close(self.lifeline)  # the kernel kills it now
        self.lifeline = -1
        self.sock.close()
        try:
            self.popen.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        self.reader.join(timeout=2.0)
        if self.popen.stderr is not None:
            self.popen.stderr.close()
        return "" if by_itself is None else _how(by_itself, self.tail)

    def _hung_up(self) -> bool:
        self.sock.setblocking(False)
        try:
            return self.sock.recv(1, socket.MSG_PEEK) == b""
        except OSError:
            return False

    def _drain(self) -> None:
        assert self.popen.stderr is not None
        descriptor = self.popen.stderr.fileno()
        with contextlib.suppress(OSError, ValueError):
            while part := os.read(descriptor, 1 << 16):
                self.tail = (self.tail + part)[-_TAIL:]


def _environment(caches: Path | None) -> dict[str, str]:
    # it waits most of the time; and importing torch's compiler makes its cache directory
    own = {} if caches is None else {"TORCHINDUCTOR_CACHE_DIR": str(caches)}
    return {**own, **os.environ, "OMP_WAIT_POLICY": "passive"}


def _how(code: int, tail: bytes) -> str:
    text = tail.decode(errors="replace").strip()
    if code >= 0:
        return f"exit code {code}" + (f"; it wrote: {text[-500:]}" if text else "")
    name = signal.Signals(-code).name
    if -code == signal.SIGKILL:
        return f"killed ({name}), most likely for want of memory; reduce the shapes"
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("File ")]
    return f"signal {name}" + (f" at {lines[0]}" if lines else "")
