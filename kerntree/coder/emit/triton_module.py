"""What a module with Triton kernels holds beside them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kerntree.coder.emit.language import Printed, TunableNames
from kerntree.coder.emit.names import identifier
from kerntree.coder.emit.triton import TritonFunction, emit_triton
from kerntree.coder.emit.triton_launch import PROCESSORS, ROOM, launch_lines, open_sizes
from kerntree.coder.emit.triton_text import HELPERS
from kerntree.coder.kernel import Kernel
from kerntree.coder.program import Program, Schedule
from kerntree.plans.candidate import Config, Tunables


@dataclass(frozen=True)
class Triton:
    """Implements `Language`."""

    name: Literal["cpp", "triton"] = "triton"

    def function(
        self, kernel: Kernel, schedule: Schedule, *, name: str, in_place: Mapping[str, str]
    ) -> TritonFunction:
        return emit_triton(kernel, schedule, name=name, in_place=in_place)

    def launch(
        self,
        functions: Sequence[TritonFunction],
        arguments: Sequence[str],
        *,
        device: str,
        extent: str,
        entry: Callable[[str], str],
    ) -> Sequence[str]:
        return launch_lines(functions, arguments, device=device, extent=extent, entry=entry)

    def limit(self, function: TritonFunction) -> int | None:
        return function.most_rows

    def tunables(
        self, printed: Sequence[Printed], program: Program, names: TunableNames
    ) -> tuple[Tunables, Config]:
        together: dict[str, list[TritonFunction]] = {}
        for one in printed:
            together.setdefault(one.function.name, []).append(one.function)
        tunables: Tunables = {}
        config: Config = {}
        for one in printed:
            kernel, case = identifier(one.group), one.case
            for size in open_sizes(together[one.function.name]):
                name = names.name(size, kernel=kernel, case=case)
                config[name] = one.function.tiles.first[size]
                choices = one.function.tiles.choices[size]
                tunables[name] = tuple(choices) if one.searched else (config[name],)
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
