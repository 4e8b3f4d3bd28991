"""The library through which Triton launches kernels: built once, not again by every child.

Triton compiles it with the system's C compiler when a process first launches a kernel, and keeps
it in its cache. Children have caches of their own, since a candidate may write to one.
"""

import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

CACHE = "TRITON_CACHE_DIR"
Files = Mapping[str, bytes]
"""What a cache holds, by the path in it."""


def built(build: Callable[[], object] | None = None) -> Files:
    """Triton's cache once the library is in it; empty where it cannot be built.

    Builds in a fork: loading the library must not start a driver in a process that forks later.
    """
    with tempfile.TemporaryDirectory(prefix="kerntree-") as folder:
        pid = os.fork()
        if pid == 0:
            _build(folder, build or _triton_s)
        _, status = os.waitpid(pid, 0)
        if status:
            return {}
        files = (path for path in Path(folder).rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def planted(files: Files) -> None:
    """Puts them into this process's own cache, where nothing of that name lies yet."""
    if CACHE not in os.environ:
        return
    for name, content in files.items():
        path = Path(os.environ[CACHE], name)
        with suppress(OSError):  # then Triton builds it, as it would have
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.write(content)


def _triton_s() -> None:
    from triton.backends.nvidia.driver import CudaUtils

    CudaUtils()


def _build(folder: str, build: Callable[[], object]) -> None:
    code = 1
    try:
        os.environ[CACHE] = folder
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        build()
        code = 0
    finally:
        os._exit(code)
