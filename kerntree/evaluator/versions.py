"""Versions that decide what a candidate becomes, read without importing anything."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from importlib import metadata

from pydantic import JsonValue


def versions(environment: Mapping[str, str] = os.environ) -> dict[str, JsonValue]:
    """Torch, triton and the system's C++ compiler; None for what is not there."""
    return {
        "torch": _package("torch"),
        "triton": _package("triton"),
        "compiler": _compiler(environment),
    }


def _package(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _compiler(environment: Mapping[str, str]) -> str | None:
    """The first line that `CXX`, or else the first of the usual names, says of itself."""
    names = [environment.get("CXX", ""), "c++", "g++", "clang++"]
    path = next((found for name in names if name and (found := shutil.which(name))), None)
    if path is None:
        return None
    try:
        said = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return said.stdout.splitlines()[0].strip() if said.stdout else None
