"""The zygote: a warm interpreter that forks one walled-in child for each candidate.

Run as `python -P -m kerntree.evaluator.zygote FD [DEVICE]`. It imports torch once (and triton, for
children on a GPU), never computes with it (after one parallel operation a forked child's OpenMP
would hang), never touches a GPU (a context does not survive a fork) and ends when its socket
closes.
"""

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import warnings
from pathlib import Path
from typing import Any, NoReturn

from kerntree.evaluator import host_library
from kerntree.evaluator.sandbox import (
    SandboxSpec,
    close_all_but,
    close_in,
    die_with_parent,
    unshare,
)
from kerntree.evaluator.transport import TransportClosed, receive, send

_TAIL = 8192  # bytes of a child's output that are kept


def main(descriptor: int, device: str = "cpu") -> None:
    """Serves spawn requests: each has the child's socket and a status socket as descriptors."""
    die_with_parent()
    control = socket.socket(fileno=descriptor)
    warnings.simplefilter("ignore")
    import torch

    import kerntree.evaluator.child  # noqa: F401 - warm before the forks

    if device != "cpu":
        with contextlib.suppress(ImportError):
            import triton  # noqa: F401
    library = {} if device == "cpu" else host_library.built()

    gc.collect()
    gc.freeze()  # a child's own collections then need not walk torch, nor copy its pages
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    send(control, {"ready": True, "torch": torch.__version__, "python": sys.version.split()[0]})
    while True:
        try:
            request, (child_fd, status_fd) = receive(control, limit=1 << 20)
        except TransportClosed:
            return
        keeper = os.fork()
        if keeper == 0:
            control.close()
            _keeper(request, child_fd, status_fd, library)
        send(control, {"keeper": keeper})
        os.close(child_fd)
        os.close(status_fd)


def _keeper(
    request: dict[str, Any], child_fd: int, status_fd: int, library: host_library.Files
) -> NoReturn:
    """Starts the child in its namespaces, drains its output, ends it, and reports how it ended.

    It lives outside the child's PID namespace. The child is killed when the status socket closes.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    die_with_parent()
    os.setsid()
    close_all_but([child_fd, status_fd])
    spec = SandboxSpec(
        writable=tuple(request["writable"]),
        visible=(*_installation(), *request["visible"]),
        scratch_bytes=request["scratch_bytes"],
        processes=request["processes"],
        environment=request["environment"],
    )
    read_end, write_end = os.pipe()
    level = "full"
    try:
        level = unshare()
    except OSError as error:
        level = "reduced"
        if request["required"]:
            _report(status_fd, {"failed": f"no isolation: {error}"})
            os._exit(1)
    pid = os.fork()
    if pid == 0:
        os.close(status_fd)
        os.close(read_end)
        _child(request, spec, child_fd, write_end, level, library)
    os.close(child_fd)
    os.close(write_end)
    report = _watch(pid, read_end, status_fd, request["output_bytes"])
    _report(status_fd, {**report, "level": level})
    os._exit(0)


def _child(
    request: dict[str, Any],
    spec: SandboxSpec,
    child_fd: int,
    write_end: int,
    level: str,
    library: host_library.Files,
) -> NoReturn:
    try:
        die_with_parent()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(write_end, 1)
        os.dup2(write_end, 2)
        close_all_but([child_fd])
        if level != "reduced":
            close_in(spec)
        os.chdir("/tmp")
        host_library.planted(library)
        from kerntree.evaluator.child import serve

        sock = socket.socket(fileno=child_fd)
        send(sock, {"ok": True, "level": level})
        serve(sock, threads=request["threads"], device=request["device"], tf32=request["tf32"])
    except BaseException as error:
        with contextlib.suppress(Exception):
            print(f"child failed: {error!r}", file=sys.stderr, flush=True)
        os._exit(70)
    os._exit(0)


def _watch(pid: int, output: int, status_fd: int, most: int) -> dict[str, Any]:
    """Waits for the child to end; kills it for a flood or when the status socket closes."""
    process = os.pidfd_open(pid)
    poller = select.poll()
    for fd in (process, output, status_fd):
        poller.register(fd, select.POLLIN | select.POLLHUP)
    tail, total, flooded, killed = b"", 0, False, False
    while True:
        ready = {fd for fd, _ in poller.poll()}
        if output in ready:
            part = os.read(output, 1 << 16)
            tail, total = (tail + part)[-_TAIL:], total + len(part)
            if not part:
                poller.unregister(output)
            if total > most and not flooded:
                flooded = True
                signal.pidfd_send_signal(process, signal.SIGKILL)
        if status_fd in ready and not killed:
            killed = True
            poller.unregister(status_fd)
            signal.pidfd_send_signal(process, signal.SIGKILL)
        if process in ready:
            break
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    os.set_blocking(output, False)
    with contextlib.suppress(BlockingIOError):
        tail = (tail + os.read(output, 1 << 16))[-_TAIL:]
    return {"exit": code, "flooded": flooded, "output": tail.decode(errors="replace")}


def _installation() -> list[str]:
    """Where this interpreter and its packages lie."""
    import kerntree

    packages = [str(Path(file).parents[1]) for file in [kerntree.__file__] if file]
    return [sys.prefix, sys.base_prefix, *packages, *sys.path]


def _report(status_fd: int, report: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        os.write(status_fd, json.dumps(report).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:3])
