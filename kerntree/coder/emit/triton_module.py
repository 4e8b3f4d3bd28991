"""What a module with Triton kernels holds beside them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kerntree.coder.emit.triton import TritonFunction, emit_triton
from kerntree.coder.emit.triton_launch import PROCESSORS, ROOM, launch_lines, tunable
from kerntree.coder.emit.triton_text import HELPERS
from kerntree.coder.kernel import Kernel
from kerntree.coder.program import Program, Schedule
from kerntree.plans.candidate import Config, Tunables


@dataclass(frozen=True)
class Triton:
    """Implements `Language`. `alone`: there is one kernel, whose sizes need no name of it."""

    alone: bool
    name: Literal["cpp", "triton"] = "triton"

    def function(
        self, kernel: Kernel, schedule: Schedule, *, name: str, in_place: Mapping[str, str]
    ) -> TritonFunction:
        return emit_triton(kernel, schedule, name=name, in_place=in_place)

    def launch(
        self, function: TritonFunction, arguments: Sequence[str], *, device: str
    ) -> Sequence[str]:
        return launch_lines(function, arguments, device=device, alone=self.alone)

    def tunables(
        self, functions: Sequence[TritonFunction], program: Program
    ) -> tuple[Tunables, Config]:
        tunables: Tunables = {}
        config: Config = {}
        for function in functions:
            for size, choices in function.tiles.choices.items():
                if len(choices) > 1:
                    name = tunable(function, size, alone=self.alone)
                    tunables[name] = tuple(choices)
                    config[name] = function.tiles.first[size]
        return tunables, config

    def sections(self, functions: Sequence[TritonFunction], program: Program) -> Sequence[str]:
        used = {helper for function in functions for helper in function.helpers}
        sections = [text for name, text in HELPERS.items() if name in used]
        split = any(function.tiles.split for function in functions)
        if split or any(function.persist for function in functions):
            sections.append(PROCESSORS)
        if split:
            sections.append(ROOM)
        return [*sections, *(function.text.rstrip() for function in functions)]

    def imports(self, functions: Sequence[TritonFunction]) -> Sequence[str]:
        used = {helper for function in functions for helper in function.helpers}
        lines = ["import triton", "import triton.language as tl"]
        if "libdevice" in used:
            lines.append("from triton.language.extra import libdevice")
        return lines
