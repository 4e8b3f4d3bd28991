"""What surrounds a GPU and needs none: handles, facts, room, words for failures."""

import ctypes
import gc
import weakref
from types import SimpleNamespace

import pytest
import torch

from kerntree.evaluator.cuda import CudaError, Driver, is_handle
from kerntree.evaluator.cuda_device import CudaDevice, GpuFacts
from kerntree.evaluator.floor import floor_ns
from kerntree.evaluator.inputs import make_inputs
from kerntree.evaluator.memory import check_memory
from kerntree.evaluator.opening import open_evaluator
from kerntree.evaluator.oracle_ground import CudaBlocks
from kerntree.evaluator.problem_file import load_problem_file
from kerntree.evaluator.refusal import poisoned, refusal
from kerntree.evaluator.room import Bytes, Room, bytes_of, room_for
from kerntree.evaluator.settings import EvaluatorSettings
from kerntree.plans.errors import ProblemError, SettingsError
from kerntree.plans.graph import GraphInput, GraphOutput, Node, OperatorGraph, contiguous
from kerntree.plans.problem import Case, InputSpec, OutputSpec, Problem, StateSpec

GIB = 1 << 30
H200 = GpuFacts(
    model="NVIDIA H200",
    uuid="GPU-1",
    capability=(9, 0),
    processors=132,
    clock_khz=1_980_000,
    memory_clock_khz=3_201_000,
    bus_bits=6144,
    cache_bytes=60 << 20,
    memory_bytes=int(139.8 * GIB),
    free_bytes=139 * GIB,
    driver="580.65.06",
    cuda="12.8",
)
DEVICE = CudaDevice(facts=H200, threads=8, host_memory=64 * GIB)
MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)

def get_inputs():
    return [torch.rand({rows}, 393216)]
"""


class Library:
    """libcuda's calls on a table of allocations."""

    def __init__(self, *, code=0):
        self.code, self.sizes, self.opened = code, {}, []

    def cuMemAlloc_v2(self, pointer, count):
        pointer._obj.value = address = (len(self.sizes) + 1) << 32
        self.sizes[address] = count
        return self.code

    def cuMemFree_v2(self, address):
        return 0 if self.sizes.pop(address, None) else 1

    def cuMemGetAddressRange_v2(self, base, size, address):
        start = max(a for a in self.sizes if a <= address)
        base._obj.value, size._obj.value = start, self.sizes[start]
        return 0

    def cuIpcGetMemHandle(self, handle, address):
        ctypes.memmove(handle._obj.reserved, address.to_bytes(64, "little"), 64)
        return 0

    def cuIpcOpenMemHandle_v2(self, pointer, handle, flags):
        pointer._obj.value = int.from_bytes(bytes(handle.reserved), "little")
        self.opened.append(pointer._obj.value)
        return 0 if pointer._obj.value in self.sizes else 400

    def cuIpcCloseMemHandle(self, address):
        self.opened.remove(address)
        return 0

    def cuGetErrorName(self, code, text):
        text._obj.value = b"CUDA_ERROR_OUT_OF_MEMORY" if code == 2 else b"CUDA_ERROR_OTHER"
        return 0


def test_a_handle_travels_as_text_and_names_the_same_memory():
    library = Library()
    driver = Driver(library)
    address = driver.allocate(100)
    assert library.sizes[address] == 2 << 20  # alone in what is shared
    handle = driver.export(address)
    assert is_handle(handle)
    assert driver.open(handle) == address
    assert driver.extent(address + 5) == (2 << 20) - 5
    driver.close(address)
    driver.free(address)
    assert not library.sizes and not library.opened


def test_the_driver_says_which_call_failed_and_why():
    driver = Driver(Library(code=2))
    with pytest.raises(CudaError, match=r"cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY \(2\)") as told:
        driver.allocate(1)
    assert told.value.out_of_memory
    with pytest.raises(ValueError, match="not the text"):
        driver.open("0" * 127)
    with pytest.raises(CudaError, match="cuIpcOpenMemHandle"):
        driver.open("0" * 128)


def test_limits_are_peaks_that_no_h200_passes():
    limits = DEVICE.limits
    assert 4.8e12 < limits.bandwidth < 5.5e12
    assert limits.operations > 2 * 989e12 / 2  # twice bf16's products, as multiply-adds
    spec = contiguous((4096, 393216), "float32")
    graph = OperatorGraph(
        inputs=(GraphInput(name="x", kind="user", target="0", spec=spec),),
        nodes=(
            Node(
                name="y",
                target="aten._softmax.default",
                args=({"ref": "x"}, -1, False),
                kwargs={},
                outputs=(spec,),
            ),
        ),
        outputs=(GraphOutput(kind="output", value="y", target="0"),),
    )
    case = Case(
        name="default",
        inputs=(InputSpec(path="0", name="x", tensor=spec),),
        outputs=(OutputSpec(path="", tensor=spec),),
        output_tree=0,
        graph=graph,
    )
    assert 2.2e6 < floor_ns(case, limits) < 3.06e6  # below the copy limit that was measured


def test_a_driver_that_says_little_refuses_nothing():
    unknown = H200.replaced(clock_khz=0, memory_clock_khz=0, bus_bits=0)
    limits = CudaDevice(unknown, 8, GIB).limits
    assert limits.bandwidth >= 20e12 and limits.cache_bandwidth > DEVICE.limits.cache_bandwidth


def test_the_key_knows_the_model_and_the_lock_the_board():
    other = CudaDevice(H200.replaced(uuid="GPU-2", free_bytes=GIB), 4, GIB)
    assert other.description() == DEVICE.description()
    assert other.name != DEVICE.name
    assert other.memory == GIB
    assert DEVICE.memory == int(0.85 * H200.memory_bytes)


def problem_of(*shape, inputs=1):
    spec = contiguous(shape, "float32")
    case = Case(
        name="default",
        inputs=tuple(InputSpec(path=str(k), name="", tensor=spec) for k in range(inputs)),
        outputs=(OutputSpec(path="", tensor=spec),),
        output_tree=0,
        mutated_inputs=("0",) if inputs > 1 else (),
    )
    return Problem(name="p", path="p.py", folder="", source="", cases=(case,))


def room(*shape, memory=DEVICE.memory, inputs=1):
    problem = problem_of(*shape, inputs=inputs)
    return room_for(problem, problem.cases[0], memory=memory, slots=2)


def test_small_cases_are_kept_as_they_are_and_the_largest_thriftily():
    assert room(4096, 4096) == Room(2, thrifty=False)
    assert room(4096, 393216) == Room(1, thrifty=True)  # softmax of KernelBench
    assert room(112, 64, 512, 512) == Room(1, thrifty=True)  # its RMSNorm
    assert room(8192, 65536).thrifty


def test_what_does_not_fit_is_refused_with_the_sizes():
    with pytest.raises(ProblemError, match=r"needs about \d+\.\d GiB .* 118\.\d GiB"):
        room(8192, 393216)


def test_a_large_state_counts_though_the_case_is_small():
    weights = StateSpec(name="w", kind="parameter", tensor=contiguous((1 << 32,), "float32"))
    problem = problem_of(64, 64).replaced(state=(weights,))
    with pytest.raises(ProblemError, match="needs about"):
        room_for(problem, problem.cases[0], memory=DEVICE.memory, slots=2)


def test_the_oracle_frees_tensors_that_only_a_cycle_holds(monkeypatch):
    class Held:
        pass

    held = Held()
    held.itself = held
    gone = weakref.ref(held)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 8 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 8 * GIB)
    gc.disable()
    try:
        del held
        assert gone() is not None
        CudaBlocks(lending=object()).tidy()
        assert gone() is None
    finally:
        gc.enable()


def test_what_is_written_in_place_counts_as_a_result():
    problem = problem_of(1024, 1024, inputs=2)
    found = bytes_of(problem, problem.cases[0])
    assert (found.inputs, found.outputs, found.outputs_double) == (8 << 20, 8 << 20, 16 << 20)


def test_room_grows_with_the_sets_that_are_kept():
    found = Bytes(GIB, 2 * GIB, GIB, 2 * GIB, 0, 0)
    assert found.needed(slots=2) - found.needed(slots=1) == 6 * GIB


@pytest.mark.parametrize(
    ("error", "verdict", "said"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "out of memory", ""),
        (CudaError("cuMemAlloc_v2", 2, "CUDA_ERROR_OUT_OF_MEMORY"), "out of memory", ""),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "crashed",
         "illegal address"),
        (RuntimeError("CUDA error: device-side assert triggered"), "crashed", "assertion"),
        (RuntimeError("CUDA error: misaligned address"), "crashed", "misaligned"),
        (RuntimeError("CUDA error: unspecified launch failure"), "crashed", "launch failure"),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), "crashed",
         "illegal address"),
        (RuntimeError("CUDA error: invalid configuration argument"), "raised", "launch failure"),
        (RuntimeError("an illegal memory access, says the candidate"), "raised", ""),
        (ValueError("shape"), "raised", ""),
        (PermissionError(13, "no"), "forbidden", ""),
        (RuntimeError("build failed: x"), "build failed", ""),
    ],
)  # fmt: skip
def test_failures_on_a_device_have_verdicts(error, verdict, said):
    found = refusal(error, otherwise="raised")
    assert found.verdict == verdict
    assert said in found.message
    assert bool(poisoned(error)) == (verdict == "crashed")


def test_triton_s_own_refusals_are_failed_builds():
    kind = type("OutOfResources", (Exception,), {"__module__": "triton.runtime.errors"})
    assert refusal(kind("shared memory"), otherwise="raised").verdict == "build failed"


@pytest.fixture
def write(tmp_path):
    def written(text):
        path = tmp_path / "problem.py"
        path.write_text(text)
        return path

    return written


def test_inputs_are_made_where_the_file_runs(write):
    text = (
        MODEL.format(rows=2)
        .replace("torch.rand(", "made(")
        .replace("class Model", "def made(*shape):\n    return torch.zeros(shape)\n\nclass Model")
    )
    file = load_problem_file(write(text), device="meta")
    (made,) = make_inputs(file, file.cases[0], seed=1)
    assert made.device.type == "meta"


def test_inputs_that_insist_on_the_cpu_are_moved(write):
    text = MODEL.format(rows=2).replace("393216)", "4, generator=torch.Generator('cpu'))")
    file = load_problem_file(write(text), device="meta")
    (made,) = file.inputs(file.cases[0])
    assert made.device.type == "meta" and made.shape == (2, 4)


def test_a_problem_too_large_for_the_device_is_refused_before_it_runs(write):
    file = load_problem_file(write(MODEL.format(rows=40960)), device="meta")
    with pytest.raises(ProblemError, match="on the device"):
        check_memory(file, available=DEVICE.memory)
    check_memory(load_problem_file(write(MODEL.format(rows=4096)), device="meta"),
                 available=DEVICE.memory)  # fmt: skip


def opened(path, tmp_path, **options):
    settings = EvaluatorSettings(**options.pop("settings", {}))
    return open_evaluator(
        path,
        settings=settings,
        memo_directory=tmp_path / "memo",
        work_directory=tmp_path / "work",
        **options,
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_auto_means_the_cpu_and_cuda_says_why(write, tmp_path):
    path = write(MODEL.format(rows=2).replace("393216", "8"))
    with pytest.raises(SettingsError, match=r"device cuda: torch .*(CUDA|GPU)"):
        opened(path, tmp_path, device="cuda")
    with pytest.raises(SettingsError, match="needs a GPU"):
        opened(path, tmp_path, device="auto", settings={"precision": "tf32"})
    with pytest.raises(SettingsError, match="not supported yet"):
        opened(path, tmp_path, device="auto", settings={"precision": "half"})
    _, evaluator = opened(path, tmp_path, device="auto")
    evaluator.close()
    assert evaluator.device.kind == "cpu"


def test_the_kernel_module_s_version_is_found(tmp_path):
    from kerntree.evaluator.oracle_ground import _driver_version

    path = tmp_path / "version"
    path.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release\n")
    assert _driver_version(path) == "580.65.06"
    assert _driver_version(SimpleNamespace(read_text=lambda: "")) == ""
