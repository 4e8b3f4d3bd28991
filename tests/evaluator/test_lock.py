import os
import signal
import subprocess
import sys
import threading

import pytest

from kerntree.evaluator.lock import DeviceBusyError, device_lock, runtime_directory

HOLD = """
import sys
from pathlib import Path
from kerntree.evaluator.lock import device_lock
with device_lock("cpu", directory=Path(sys.argv[1]), timeout=10):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_held_device_is_refused_and_the_holder_is_named(tmp_path, holder):
    said = []
    with (
        pytest.raises(DeviceBusyError, match=f"process {holder.pid} is measuring"),
        device_lock("cpu", directory=tmp_path, timeout=0.05, waiting=said.append),
    ):
        pytest.fail("two processes hold one device")
    assert len(said) == 1
    assert str(holder.pid) in said[0]


def test_another_device_is_free(tmp_path, holder):
    with device_lock("gpu:0", directory=tmp_path, timeout=0.05):
        assert (tmp_path / "gpu-0.lock").read_text().strip() == str(os.getpid())


def test_the_lock_of_a_killed_holder_is_free(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with device_lock("cpu", directory=tmp_path, timeout=5):
        pass


def test_a_waiter_gets_the_device_when_it_is_released(tmp_path):
    with device_lock("cpu", directory=tmp_path, timeout=1):
        waits, got = threading.Event(), threading.Event()

        def wait():
            with device_lock(
                "cpu", directory=tmp_path, timeout=20, waiting=lambda message: waits.set()
            ):
                got.set()

        waiter = threading.Thread(target=wait)
        waiter.start()
        assert waits.wait(20)
        assert not got.is_set()
    waiter.join(20)
    assert got.is_set()


def test_the_lock_is_free_after_an_error_inside(tmp_path):
    with pytest.raises(RuntimeError), device_lock("cpu", directory=tmp_path, timeout=1):
        raise RuntimeError
    with device_lock("cpu", directory=tmp_path, timeout=0.05):
        pass


def test_the_runtime_directory_is_private(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert runtime_directory() == tmp_path / "kerntree"
    assert (tmp_path / "kerntree").stat().st_mode & 0o077 == 0
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "absent"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert runtime_directory() == tmp_path / f"kerntree-{os.getuid()}"


def test_a_link_in_place_of_the_runtime_directory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "kerntree").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DeviceBusyError, match="belongs to another user"):
        runtime_directory()
