"""What this machine can do for kerntree, and what is missing."""

import ctypes
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

_PROGRAM = """\
#include <math.h>
#include <omp.h>
extern "C" { __attribute__((simd("notinbranch"))) float expf(float); }
extern "C" int probe(float* x) {
  #pragma omp simd
  for (int i = 0; i < 64; ++i) x[i] = expf(x[i]);
  return omp_get_max_threads();
}
"""


@dataclass(frozen=True)
class Finding:
    """One thing looked at. A missing one that the main job needs is `bad`."""

    name: str
    state: Literal["good", "limited", "bad"]
    value: str
    remedy: str = ""


def examine(memo: Path) -> list[Finding]:
    """Looks at everything; runs a compiler and a sandbox. Torch is loaded elsewhere, if at all."""
    return [
        _python(),
        *(_package(name) for name in ("torch", "triton", "optuna", "diskcache")),
        *_compiler(),
        _cores(),
        _memory(),
        _huge_pages(),
        _isolation(),
        _memo(memo),
        _gpu(),
    ]


def can_run(findings: list[Finding]) -> bool:
    """Whether the main job can run here."""
    return all(finding.state != "bad" for finding in findings)


def as_json(findings: list[Finding]) -> list[dict[str, str]]:
    """The findings as plain data."""
    return [asdict(finding) for finding in findings]


def _python() -> Finding:
    good = sys.version_info >= (3, 11)
    return Finding(
        "Python", "good" if good else "bad", platform.python_version(),
        "" if good else "use Python 3.11 or later",
    )  # fmt: skip


def _package(name: str) -> Finding:
    try:
        return Finding(name, "good", metadata.version(name))
    except metadata.PackageNotFoundError:
        needed = name != "triton"
        return Finding(name, "bad" if needed else "limited", "missing", f"pip install {name}")


def _compiler() -> list[Finding]:
    wanted = [os.environ.get("CXX"), "c++", "g++", "clang++"]
    compiler = next((p for p in map(shutil.which, filter(None, wanted)) if p), None)
    if compiler is None:
        return [Finding("C++ compiler", "bad", "missing", "install g++ or set CXX")]
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    first = (version.stdout.splitlines() or ["unknown version"])[0]
    found = [Finding("C++ compiler", "good", f"{compiler}: {first}")]
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "probe.cpp"), Path(folder, "probe.so")
        source.write_text(_PROGRAM)
        base = [compiler, "-O2", "-shared", "-fPIC", str(source), "-o", str(library)]
        for name, flags, remedy in (
            ("OpenMP", ["-fopenmp", "-lm"], "install your compiler's OpenMP runtime"),
            ("vector math", ["-fopenmp", "-lmvec", "-lm"], "glibc 2.22 or later has libmvec"),
        ):
            done = subprocess.run(base + flags, capture_output=True, text=True, check=False)
            works = done.returncode == 0
            if works:
                ctypes.CDLL(str(library)).probe((ctypes.c_float * 64)())
            state: Literal["good", "limited", "bad"] = (
                "good" if works else ("bad" if name == "OpenMP" else "limited")
            )
            found.append(Finding(name, state, "works" if works else "no", "" if works else remedy))
    return found


def _cores() -> Finding:
    return Finding("cores", "good", str(len(os.sched_getaffinity(0))))


def _memory() -> Finding:
    facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    kib = int(facts["MemAvailable"].split()[0])
    few = kib < 2 << 20
    return Finding(
        "memory", "limited" if few else "good", f"{kib / (1 << 20):.1f} GiB available",
        "large problems will be refused" if few else "",
    )  # fmt: skip


def _huge_pages() -> Finding:
    path = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    mode = path.read_text().strip() if path.exists() else "not there"
    off = "[never]" in mode or not path.exists()
    return Finding(
        "huge pages", "limited" if off else "good", mode,
        "large outputs will cost a page fault each 4 KiB" if off else "",
    )  # fmt: skip


def _isolation() -> Finding:
    code = "from kerntree.evaluator.sandbox import probe; print('|'.join(probe()))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False
    )
    level, _, reason = done.stdout.strip().partition("|")
    if level in ("full", "user namespace"):
        return Finding("isolation", "good", level)
    return Finding(
        "isolation", "limited", f"reduced ({reason or done.stderr.strip()[-200:]})",
        "run as root, or allow user namespaces; --isolation required refuses to run like this",
    )  # fmt: skip


def _memo(memo: Path) -> Finding:
    place = memo
    while not place.exists():
        place = place.parent
    good = os.access(place, os.W_OK)
    return Finding(
        "memo", "good" if good else "bad", str(memo),
        "" if good else "not writable: choose a directory with --cache",
    )  # fmt: skip


def _gpu() -> Finding:
    """Asks a process with torch where the driver shows a device; without one, nothing is asked."""
    if not sorted(Path("/dev").glob("nvidia[0-9]*")):
        return Finding("GPU", "good", "none (not needed)")
    code = (
        "from kerntree.evaluator.oracle_ground import gpu_facts; found = gpu_facts(); "
        "print(found if isinstance(found, str) else '|' + found.model)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False
    )
    said = (done.stdout or done.stderr).strip()
    if said.startswith("|"):
        return Finding("GPU", "good", said[1:])
    return Finding(
        "GPU", "limited", said[-200:] or "no answer",
        "a search runs on the CPU; install a torch with CUDA for this driver to use the GPU",
    )  # fmt: skip
