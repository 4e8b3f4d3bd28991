"""Whether a problem fits: estimated before anything large is allocated."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.utils._pytree import tree_leaves

from kerntree.evaluator.problem_file import ProblemFile
from kerntree.evaluator.room import Bytes, does_not_fit
from kerntree.plans.errors import ProblemError

_GIB = 1 << 30


@dataclass(frozen=True)
class Footprint:
    """Bytes of one set of inputs, of the module's state and of the outputs.

    The `*_double` are the same tensors in float64, as the oracle computes.
    """

    inputs: int
    inputs_double: int
    state: int
    state_double: int
    outputs: int
    outputs_double: int

    @property
    def needed(self) -> int:
        """What oracle, candidate and baseline hold at the same time.

        Inputs: the shared block, a private copy in each of the three, one kept for comparison.
        State: the same without the last. Outputs: PyTorch's, the expectation (twice while it
        is made), the shared block, one in each child.
        """
        return (
            5 * self.inputs + self.inputs_double
            + 4 * self.state + self.state_double
            + 4 * self.outputs + 2 * self.outputs_double
        )  # fmt: skip

    @property
    def on_device(self) -> Bytes:
        """The same as a GPU's plan takes it."""
        return Bytes(
            inputs=self.inputs,
            inputs_double=self.inputs_double,
            outputs=self.outputs,
            outputs_double=self.outputs_double,
            state=self.state,
            state_double=self.state_double,
        )


def footprints(file: ProblemFile) -> dict[str, Footprint]:
    """Footprints by case, from a run on the meta device, which allocates nothing.

    A case is left out where the user's code cannot run there; nothing is raised.
    """
    found: dict[str, Footprint] = {}
    if file.device.type != "cpu":
        file = replace(file, device=torch.device("meta"))
    try:
        with torch.device("meta"):
            module = file.construct(file.init_inputs())
    except ProblemError:
        return {}
    state = [*module.parameters(), *module.buffers()]
    for case in file.cases:
        try:
            with torch.device("meta"), torch.no_grad():
                args = file.inputs(case)
        except ProblemError:
            continue
        outputs: list[object] = []
        try:
            with torch.device("meta"), torch.no_grad(), file.blamed("Model.forward"):
                outputs = tree_leaves(module(*args))
        except ProblemError:
            outputs = []  # the inputs alone are a lower bound
        inputs = tree_leaves(args)
        found[case.name] = Footprint(
            *_bytes(inputs),
            *_bytes(state),
            *_bytes(outputs),
        )
    return found


def check_memory(file: ProblemFile, *, available: int) -> None:
    """Raises `ProblemError` if a case needs more than `available` bytes."""
    for name, footprint in footprints(file).items():
        if file.device.type != "cpu":
            on_device = footprint.on_device
            if on_device.needed(slots=1) > available:
                raise ProblemError(f"{file.path}: {does_not_fit(name, on_device, available)}")
        elif footprint.needed > available:
            which = "" if name == "default" else f" case {name!r}"
            raise ProblemError(
                f"{file.path}:{which} needs about {footprint.needed / _GIB:.1f} GiB (inputs "
                f"{footprint.inputs / _GIB:.1f}, outputs {footprint.outputs / _GIB:.1f}, several "
                f"copies of each) and {available / _GIB:.1f} GiB are available; reduce the shapes"
            )


def available_memory() -> int:
    """Bytes that can still be allocated: the machine's, or what the control group leaves."""
    fields = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        fields[name] = int(rest.split()[0]) << 10
    free = fields["MemAvailable"]
    try:
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
    except (OSError, ValueError):  # no such group, or "max"
        return free
    return min(free, max(limit - used, 0))


def _bytes(leaves: Iterable[object]) -> tuple[int, int]:
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    double = sum(t.numel() * (8 if t.is_floating_point() else t.element_size()) for t in tensors)
    return sum(t.numel() * t.element_size() for t in tensors), double
