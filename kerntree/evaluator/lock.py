"""The machine-wide timing lock: one measurement at a time on a device."""

import errno
import fcntl
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kerntree.cache.errors import KerntreeError

_POLL_LOW, _POLL_HIGH = 0.002, 0.05  # seconds


class DeviceBusyError(KerntreeError):
    """Another measurement held the device for longer than we would wait."""


def runtime_directory() -> Path:
    """A directory of this user's own for locks; created if need be.

    `XDG_RUNTIME_DIR` where the system has one, else a directory under the system's temporary one.
    Raises `DeviceBusyError` if somebody else owns it.
    """
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.access(base, os.W_OK):
        directory = Path(base) / "kerntree"
    else:
        directory = Path(tempfile.gettempdir()) / f"kerntree-{os.getuid()}"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise DeviceBusyError(
            f"{directory} belongs to another user, so that the timing lock cannot be kept there; "
            "remove it or set XDG_RUNTIME_DIR"
        )
    return directory


@contextmanager
def device_lock(
    device: str,
    *,
    directory: Path,
    timeout: float,
    waiting: Callable[[str], None] = lambda message: None,
) -> Iterator[None]:
    """Holds a device for timing, against every other process of this user on this machine.

    The kernel drops the lock when its holder dies. Who waits longest is served first: waiters
    queue on a second lock, so that only one of them polls for the first. `waiting` is told once
    who holds it. Raises `DeviceBusyError` after `timeout` seconds.
    """
    name = re.sub(r"[^A-Za-z0-9]+", "-", device).strip("-") or "device"
    deadline = time.monotonic() + timeout
    told = [False]

    def tell(holder: str) -> None:
        if not told[0]:
            told[0] = True
            waiting(f"waiting for {device}: {holder}")

    turn = _open(directory / f"{name}.turn")
    try:
        held = _open(directory / f"{name}.lock")
        try:
            _take(turn, deadline, lambda: tell(_holder(held)), device, held)
            _take(held, deadline, lambda: tell(_holder(held)), device, held)
            fcntl.flock(turn, fcntl.LOCK_UN)
            os.ftruncate(held, 0)
            os.pwrite(held, f"{os.getpid()}\n".encode(), 0)
            try:
                yield
            finally:
                os.ftruncate(held, 0)
                fcntl.flock(held, fcntl.LOCK_UN)
        finally:
            os.close(held)
    finally:
        os.close(turn)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _take(
    descriptor: int, deadline: float, busy: Callable[[], None], device: str, holder: int
) -> None:
    pause = _POLL_LOW
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
        else:
            return
        busy()
        if time.monotonic() >= deadline:
            raise DeviceBusyError(
                f"{device} is busy: {_holder(holder)}; wait for it, or stop it, then try again"
            )
        time.sleep(pause)
        pause = min(2 * pause, _POLL_HIGH)


def _holder(descriptor: int) -> str:
    text = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
    return f"process {text} is measuring" if text.isdigit() else "another process is measuring"
