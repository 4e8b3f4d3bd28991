import os
from pathlib import Path

import pytest

from kerntree.evaluator.host_library import CACHE, built, planted


def build():
    folder = Path(os.environ[CACHE], "KEY")
    folder.mkdir()
    (folder / "library.so").write_bytes(b"code")
    os.write(1, b"a compiler talks")


def test_what_was_built_once_lies_in_another_process_s_cache(tmp_path, monkeypatch, capfd):
    files = built(build)
    assert files == {"KEY/library.so": b"code"}
    assert capfd.readouterr() == ("", "")  # it was silenced
    assert os.environ.get(CACHE) is None
    monkeypatch.setenv(CACHE, str(tmp_path / "own"))
    planted(files)
    assert (tmp_path / "own/KEY/library.so").read_bytes() == b"code"


def test_what_lies_there_already_stays(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE, str(tmp_path))
    planted({"a": b"first"})
    planted({"a": b"second", "b": b"other"})
    assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] == [b"first", b"other"]


def test_a_build_that_fails_or_dies_gives_nothing(tmp_path):
    assert built(lambda: 1 / 0) == {}
    assert built(lambda: os.kill(os.getpid(), 9)) == {}


def test_a_cache_that_cannot_be_written_stops_nobody(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(CACHE, str(tmp_path / "file"))
    planted({"a/b": b"code"})
    monkeypatch.delenv(CACHE)
    planted({"a/b": b"code"})


@pytest.mark.skipif(not Path("/usr/bin/gcc").exists(), reason="needs a C compiler")
def test_triton_finds_its_library_in_a_planted_cache(tmp_path, monkeypatch):
    """With a library of Triton's kind: its own needs the driver's."""
    pytest.importorskip("triton")
    from triton.runtime import build as triton_build

    source = """
    #include <Python.h>
    static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "tiny", 0, -1, 0};
    PyMODINIT_FUNC PyInit_tiny(void) { return PyModule_Create(&definition); }
    """
    files = built(lambda: triton_build.compile_module_from_src(source, "tiny"))
    assert any(name.endswith(".so") for name in files)
    monkeypatch.setenv(CACHE, str(tmp_path))
    planted(files)
    monkeypatch.setattr(triton_build, "_build", lambda *args: pytest.fail("was built again"))
    assert triton_build.compile_module_from_src(source, "tiny").__name__ == "tiny"
