"""Bounded JSON messages with file descriptors over a Unix socket."""

import array
import json
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

from kerntree.cache.errors import KerntreeError

_HEADER = struct.Struct(">I")
_MOST_DESCRIPTORS = 16


class TransportError(KerntreeError):
    """A message did not pass."""


class TransportClosed(TransportError):
    """The other end is gone."""


class TransportTimeout(TransportError):
    """The deadline passed."""


class TransportFlooded(TransportError):
    """A message longer than allowed."""


class TransportGarbled(TransportError):
    """Bytes that are not a JSON object."""


def send(
    sock: socket.socket,
    message: dict[str, Any],
    *,
    fds: Sequence[int] = (),
    deadline: float | None = None,
) -> None:
    """Sends one message; `deadline` is absolute on `time.monotonic`. Raises `TransportError`."""
    body = json.dumps(message).encode()
    data = _HEADER.pack(len(body)) + body
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    try:
        _wait(sock, deadline)
        sent = sock.sendmsg([data[:1]], ancillary)
        while sent < len(data):
            _wait(sock, deadline)
            sent += sock.send(data[sent : sent + (1 << 16)])
    except TimeoutError:
        raise TransportTimeout("the other process does not read") from None
    except OSError as error:
        raise TransportClosed(f"the other process is gone ({error})") from None


def receive(
    sock: socket.socket, *, limit: int, deadline: float | None = None
) -> tuple[dict[str, Any], list[int]]:
    """One message of at most `limit` bytes, and the descriptors that came with it.

    Raises `TransportClosed`, `TransportTimeout`, `TransportFlooded` or `TransportGarbled`; any
    descriptors received are closed then.
    """
    fds: list[int] = []
    try:
        header = _read(sock, _HEADER.size, deadline, fds)
        (length,) = _HEADER.unpack(header)
        if length > limit:
            raise TransportFlooded(f"a message of {length} bytes where {limit} are allowed")
        body = _read(sock, length, deadline, fds)
        try:
            message = json.loads(body)
        except (ValueError, RecursionError):
            raise TransportGarbled("a message that is not JSON") from None
        if not isinstance(message, dict):
            raise TransportGarbled("a message that is not a JSON object")
    except TransportError:
        _close(fds)
        raise
    return message, fds


def _read(sock: socket.socket, count: int, deadline: float | None, fds: list[int]) -> bytes:
    data = bytearray()
    size = socket.CMSG_SPACE(_MOST_DESCRIPTORS * 4)
    while len(data) < count:
        try:
            _wait(sock, deadline)
            part, ancillary, _, _ = sock.recvmsg(min(count - len(data), 1 << 16), size)
        except TimeoutError:
            raise TransportTimeout("no answer before the deadline") from None
        except OSError as error:
            raise TransportClosed(f"the other process is gone ({error})") from None
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received = array.array("i")
                received.frombytes(content[: len(content) // 4 * 4])
                fds.extend(received)
        if not part:
            raise TransportClosed("the other process closed the connection")
        data += part
    return bytes(data)


def _wait(sock: socket.socket, deadline: float | None) -> None:
    """Sets the socket's own time-out to what is left."""
    if deadline is None:
        sock.settimeout(None)
        return
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    sock.settimeout(left)


def _close(fds: Sequence[int]) -> None:
    import os

    for fd in fds:
        os.close(fd)
