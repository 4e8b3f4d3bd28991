"""System calls that a candidate has no honest use for, refused by a seccomp filter.

The other walls make most of these calls fail already; the filter also stands where a kernel has a
hole behind one of them, and closes what no namespace covers: sockets to the hypervisor. A refused
call fails with EPERM, as it does without privileges, so that a library which only asks whether a
call is there goes on without it. clone3, whose flags a filter cannot read, fails with ENOSYS: libc
then uses clone.

The filter is classic BPF (Linux, Documentation/userspace-api/seccomp_filter.rst).
"""

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Numbers by architecture: (x86-64, AArch64); None where there is no such call.
_REFUSED: Mapping[str, tuple[int | None, int | None]] = {
    # other processes' memory and descriptors
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "kcmp": (312, 272), "pidfd_getfd": (438, 438), "process_madvise": (440, 440),
    # mounts and namespaces
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "unshare": (272, 97), "setns": (308, 268), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    # the machine
    "reboot": (169, 142), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "sethostname": (170, 161), "setdomainname": (171, 162),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266),
    "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None), "syslog": (103, 116),
    # large and often broken parts of the kernel
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
}  # fmt: skip
_CLONE, _CLONE3, _SOCKET = (56, 220), (435, 435), (41, 198)
_NEW_NAMESPACES = 0x7E020000  # clone's flags for namespaces
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_X32 = 0x40000000  # the second calling convention of x86-64
_SET_SECCOMP, _FILTER = 22, 2
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENT = 0, 4, 16  # offsets in what the filter sees


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


@dataclass(frozen=True)
class Instruction:
    """One step of classic BPF: its jumps skip `then` or `otherwise` steps."""

    code: int
    value: int
    then: int = 0
    otherwise: int = 0

    def packed(self) -> bytes:
        return struct.pack("=HBBI", self.code, self.then, self.otherwise, self.value)


def program(machine: str) -> list[Instruction]:
    """The filter for a machine's architecture, or nothing where its numbers are not known here."""
    if machine not in _MACHINES:
        return []
    column, architecture = _MACHINES[machine]
    refuse = Instruction(_RETURN, _ERRNO | errno.EPERM)
    allow = Instruction(_RETURN, _ALLOW)
    steps = [
        Instruction(_LOAD, _ARCHITECTURE),
        Instruction(_EQUAL, architecture, then=1),
        Instruction(_RETURN, _KILL),
        Instruction(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":
        steps += [Instruction(_AT_LEAST, _X32, otherwise=1), refuse]
    for numbers in _REFUSED.values():
        number = numbers[column]
        if number is not None:
            steps += [Instruction(_EQUAL, number, otherwise=1), refuse]
    steps += [
        Instruction(_EQUAL, _CLONE3[column], otherwise=1),
        Instruction(_RETURN, _ERRNO | errno.ENOSYS),
        Instruction(_EQUAL, _CLONE[column], otherwise=4),
        Instruction(_LOAD, _ARGUMENT),
        Instruction(_ANY_BIT, _NEW_NAMESPACES, otherwise=1),
        refuse,
        allow,
        Instruction(_EQUAL, _SOCKET[column], then=1),
        allow,
        Instruction(_LOAD, _ARGUMENT),
    ]
    for family in _FAMILIES:
        steps += [Instruction(_EQUAL, int(family), otherwise=1), allow]
    return [*steps, refuse]


def refuse_calls() -> bool:
    """Puts the filter on this thread and all it will start; whether there is one.

    Needs `no_new_privs`. False on an architecture whose numbers are not known here, or where the
    kernel has no seccomp.
    """
    steps: Sequence[Instruction] = program(os.uname().machine)
    if not steps:
        return False
    text = b"".join(step.packed() for step in steps)
    wanted = _Program(len(steps), text)
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(wanted), 0, 0) == 0)
