"""The seccomp filter: simulated for every call and both architectures, and put on for real."""

import ctypes
import errno
import os
import socket
import threading

import pytest

from kerntree.evaluator import syscalls

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOWED, REFUSED, MISSING, KILLED = 0x7FFF0000, 0x50000 | 1, 0x50000 | errno.ENOSYS, 0x80000000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def verdict(machine, number, argument=0, *, architecture=None):
    """What the filter answers, by a walk of its own through the program."""
    seen = {0: number, 4: architecture or ARCHITECTURES[machine], 16: argument}
    steps, at, held = syscalls.program(machine), 0, 0
    while True:
        step = steps[at]
        at += 1
        if step.code == RETURN:
            return step.value
        if step.code == LOAD:
            held = seen[step.value]
            continue
        true = {
            EQUAL: held == step.value,
            AT_LEAST: held >= step.value,
            ANY_BIT: bool(held & step.value),
        }[step.code]
        at += step.then if true else step.otherwise


@pytest.mark.parametrize(
    ("machine", "ptrace", "clone", "clone3", "opened_socket", "harmless"),
    [("x86_64", 101, 56, 435, 41, (0, 1, 9, 16, 57, 202)), ("aarch64", 117, 220, 435, 198, (63,))],
)
def test_the_filter_answers_each_call(machine, ptrace, clone, clone3, opened_socket, harmless):
    assert verdict(machine, ptrace) == REFUSED
    assert verdict(machine, clone3) == MISSING
    assert verdict(machine, clone, 0x01200011) == ALLOWED  # fork
    assert verdict(machine, clone, 0x003D0F00) == ALLOWED  # a thread
    for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 1 << 30):
        assert verdict(machine, clone, flag | 17) == REFUSED
    assert verdict(machine, opened_socket, socket.AF_UNIX) == ALLOWED
    assert verdict(machine, opened_socket, socket.AF_INET) == ALLOWED
    for family in (socket.AF_PACKET, socket.AF_VSOCK, socket.AF_ALG):
        assert verdict(machine, opened_socket, family) == REFUSED
    assert {verdict(machine, number) for number in harmless} == {ALLOWED}
    assert verdict(machine, 0, architecture=0x40000003) == KILLED  # 32-bit x86
    if machine == "x86_64":
        assert verdict(machine, 0x40000000 | 1) == REFUSED  # x32


def test_a_jump_never_leaves_the_program():
    for machine in ARCHITECTURES:
        steps = syscalls.program(machine)
        for at, step in enumerate(steps):
            assert at + 1 + max(step.then, step.otherwise) < len(steps) or step.code == RETURN
            assert max(step.then, step.otherwise) < 256


def test_an_unknown_machine_has_no_filter():
    assert syscalls.program("riscv64") == []


def test_the_kernel_takes_the_filter_and_honest_work_goes_on():
    answer, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(told, f"{_tried()}".encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(answer, 1000).decode() == str(
        ["filtered", errno.EPERM, errno.EPERM, errno.EPERM, "thread", "process", "socket"]
    )


def _tried():
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(38, 1, 0, 0, 0)
    said = ["filtered" if syscalls.refuse_calls() else "no filter"]
    libc.unshare(0x10000000)
    said.append(ctypes.get_errno())
    libc.process_vm_readv(os.getppid(), None, 0, None, 0, 0)
    said.append(ctypes.get_errno())
    try:
        socket.socket(socket.AF_VSOCK)
    except OSError as error:
        said.append(error.errno)
    thread = threading.Thread(target=lambda: said.append("thread"))
    thread.start()
    thread.join()
    if os.system("true") == 0:
        said.append("process")
    socket.socket(socket.AF_UNIX).close()
    said.append("socket")
    return said
