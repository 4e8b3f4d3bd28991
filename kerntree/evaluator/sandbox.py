"""The walls around a candidate: namespaces, a read-only file system, no capabilities, limits.

A process enters by system calls through ctypes, since the interpreter offers few of them before
Python 3.12 and a forked child cannot be wrapped by a program that executes.
"""

import contextlib
import ctypes
import os
import resource
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
_RDONLY, _NOSUID, _NODEV, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
_SET_PDEATHSIG, _SET_NO_NEW_PRIVS, _CAPBSET_DROP, _SET_DUMPABLE = 1, 38, 24, 4
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _ATTR_RDONLY = 442, -100, 0x8000, 1

_SCRATCH = ("/tmp", "/var/tmp", "/dev/shm")  # private to each child

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_ulong, ctypes.c_char_p]


@dataclass(frozen=True)
class SandboxSpec:
    """What a child may have: writable directories, bytes of scratch files, processes.

    `visible` are directories that stay readable though a scratch directory hides their place: an
    installation or a problem below /tmp.
    """

    writable: tuple[str, ...] = ()
    visible: tuple[str, ...] = ()
    scratch_bytes: int = 1 << 30
    file_bytes: int = 1 << 30
    processes: int = 256
    required: bool = True
    environment: dict[str, str] = field(default_factory=dict)


class _MountAttributes(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("user_namespace", ctypes.c_uint64),
    )


class _CapHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapData(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def die_with_parent() -> None:
    """This process is killed when its parent dies."""
    _check(_libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def unshare() -> str:
    """Leaves the host's namespaces; returns "full" (as root) or "user namespace".

    The next fork is the first process of the new PID namespace. Raises `OSError`.
    """
    flags = _NEWNS | _NEWNET | _NEWIPC | _NEWPID | _NEWUTS
    if os.geteuid() == 0:
        _check(_libc.unshare(flags), "unshare")
        return "full"
    user, group = os.getuid(), os.getgid()
    _check(_libc.unshare(_NEWUSER | flags), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    return "user namespace"


def close_in(spec: SandboxSpec) -> None:
    """Called by the first process of the PID namespace: mounts, limits, capabilities.

    Raises `OSError` if a wall cannot be put up.
    """
    _mounts(spec)
    _limits(spec)
    _drop_capabilities()
    os.environ.clear()
    os.environ.update(spec.environment)


def _mounts(spec: SandboxSpec) -> None:
    _mount(None, "/", None, _REC | _PRIVATE)
    kept = [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in spec.writable]
    shown = [(p, os.open(p, os.O_PATH | os.O_CLOEXEC)) for p in _hidden(spec.visible)]
    attributes = _MountAttributes(set=_ATTR_RDONLY)
    done = _libc.syscall(
        _MOUNT_SETATTR, _AT_FDCWD, b"/", _AT_RECURSIVE,
        ctypes.byref(attributes), ctypes.sizeof(attributes),
    )  # fmt: skip
    if done != 0:
        _remount_each()
    size = f"size={spec.scratch_bytes},nr_inodes=100000,mode=1777"
    for scratch in _SCRATCH:
        if Path(scratch).is_dir():
            _mount("tmpfs", scratch, "tmpfs", _NOSUID | _NODEV, size)
    _mount("proc", "/proc", "proc", _NOSUID | _NODEV)
    for path, fd in shown:  # read-only, as their file systems now are
        Path(path).mkdir(parents=True, exist_ok=True)
        _mount(f"/proc/self/fd/{fd}", path, None, _BIND | _REC)
        os.close(fd)
    for path, fd in kept:
        Path(path).mkdir(parents=True, exist_ok=True)
        _mount(f"/proc/self/fd/{fd}", path, None, _BIND)
        _libc.mount(None, path.encode(), None, _REMOUNT | _BIND, None)
        os.close(fd)


def _hidden(paths: Sequence[str]) -> list[str]:
    """Those of these directories that a scratch directory would hide, without what others hold."""
    outermost: list[str] = []
    for path in sorted({os.path.realpath(p) for p in paths if p and Path(p).is_dir()}):
        below = any(path.startswith(scratch + "/") for scratch in _SCRATCH)
        if below and not any(path.startswith(other + "/") for other in outermost):
            outermost.append(path)
    return outermost


def _remount_each() -> None:
    """For kernels before 5.12: every mount point by itself."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in points:
        _libc.mount(None, point.encode(), None, _REMOUNT | _BIND | _RDONLY, None)
    with_write = os.access("/", os.W_OK)
    if with_write:
        raise OSError("the file system could not be made read-only")


def _limits(spec: SandboxSpec) -> None:
    _limit_processes(spec.processes)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (spec.file_bytes, spec.file_bytes))
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))


def _limit_processes(count: int) -> None:
    """A PID namespace has its own `pid_max` from Linux 6.14 on; before, writing it is global.

    RLIMIT_NPROC does not bind root, and counts all of a user's processes otherwise.
    """
    release = os.uname().release.split("-")[0].split(".")
    if tuple(int(part) for part in release[:2]) >= (6, 14):
        with contextlib.suppress(OSError):
            Path("/proc/sys/kernel/pid_max").write_text(str(max(count, 400)))


def _drop_capabilities() -> None:
    for capability in range(64):
        if _libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break
    _check(_libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    header = _CapHeader(0x20080522, 0)
    data = (_CapData * 2)()
    _check(_libc.capset(ctypes.byref(header), ctypes.byref(data)), "capset")


def _mount(
    source: str | None, target: str, kind: str | None, flags: int, data: str | None = None
) -> None:
    done = _libc.mount(
        source.encode() if source else None,
        target.encode(),
        kind.encode() if kind else None,
        flags,
        data.encode() if data else None,
    )
    _check(done, f"mount {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def probe() -> tuple[str, str]:
    """The isolation this machine allows and, if it is not full, why; tried in a forked child."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            level = unshare()
            inner = os.fork()
            if inner == 0:
                close_in(SandboxSpec())
                os.write(write_end, f"{level}\n".encode())
                os._exit(0)
            os.waitpid(inner, 0)
        except OSError as error:
            os.write(write_end, f"reduced\n{error}".encode())
        finally:
            os._exit(0)
    os.close(write_end)
    os.waitpid(pid, 0)
    with os.fdopen(read_end) as pipe:
        level, _, reason = pipe.read().partition("\n")
    return level or "reduced", reason


def close_all_but(kept: Sequence[int]) -> None:
    """Closes every descriptor that was inherited, except the standard ones and these."""
    wanted = sorted({0, 1, 2, *kept})
    for low, high in zip(wanted, [*wanted[1:], 1 << 20], strict=True):
        os.closerange(low + 1, high)
