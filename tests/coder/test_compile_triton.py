"""Printed Triton kernels compile for a GPU that is not here, without spilling registers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("compile_for_gpu.py")
SCHEDULES = ["fast", "one pass", "columns", "pipelined", "split", "kept split"]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    done = subprocess.run(
        [sys.executable, "-P", str(SCRIPT), json.dumps(SCHEDULES)],
        capture_output=True, text=True, env=environment, timeout=170, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_schedule_compiles(kernels):
    for case in ("softmax", "columns", "gelu", "half", "loss", "any rows"):
        assert {k["schedule"] for k in kernels if k["case"] == case} == set(SCHEDULES)


def test_no_first_config_spills(kernels):
    assert [k for k in kernels if k["stack"] > 0] == []
    assert all(0 < k["reg"] <= 255 for k in kernels)


def test_contiguous_tensors_are_read_in_wide_loads(kernels):
    chosen = [k for k in kernels if k["case"] in ("softmax", "gelu", "any rows")]
    chosen += [k for k in kernels if k["case"] == k["schedule"] == "columns"]
    assert [k for k in chosen if not k["wide"]] == []


def test_operators_of_parts_compile(kernels):
    chosen = [k for k in kernels if k["case"].startswith("bf16")]
    assert len({k["case"] for k in chosen}) == 10
    assert {k["schedule"] for k in chosen} == {"fast", "one pass"}


def test_whole_numbers_compile(kernels):
    chosen = {k["case"] for k in kernels if k["case"].startswith("torch.")}
    assert {case.split()[0] for case in chosen} == {"torch.uint8", "torch.int32"}
    assert len(chosen) == 10


def test_half_types_are_read_and_written_sixteen_bytes_at_once(kernels):
    """A mask of single bytes is all that may be read in fewer."""
    for k in (k for k in kernels if k["case"].startswith("bf16")):
        assert set(k["loads"]) <= ({"16"} if "softmax" not in k["case"] else {"8", "16"}), k
        assert "16" in k["loads"] and set(k["stores"]) == {"16"}, k
