"""What a module with C++ kernels holds: the text of all of them, and how it is built."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from kerntree.coder.emit.build_text import BUILD
from kerntree.coder.emit.cpp import Function, emit_function
from kerntree.coder.emit.cpp_text import HEADERS, HELPERS, PRELUDE, vector_math
from kerntree.coder.emit.language import Printed, TunableNames
from kerntree.coder.kernel import Kernel
from kerntree.coder.program import Program, Schedule
from kerntree.plans.candidate import Config, Tunables

LANES: tuple[int, ...] = (16, 32, 64, 128, 256)
_DEFAULT_LANES = 64


class Cpp:
    """Implements `Language`. The block length is compiled in, and so one number for all cases."""

    name: Literal["cpp", "triton"] = "cpp"

    def function(
        self, kernel: Kernel, schedule: Schedule, *, name: str, in_place: Mapping[str, str]
    ) -> Function:
        return emit_function(kernel, schedule, name=name, in_place=in_place)

    def launch(
        self,
        functions: Sequence[Function],
        arguments: Sequence[str],
        *,
        device: str,
        extent: str,
        entry: Callable[[str], str],
    ) -> Sequence[str]:
        function = functions[0]
        given = [f"{name}.data_ptr()" for name in arguments]
        given += [extent] * function.sized
        return [f"library().{function.name}({', '.join(given)}, torch.get_num_threads())"]

    def limit(self, function: Function) -> int | None:
        return None

    def tunables(
        self, printed: Sequence[Printed], program: Program, names: TunableNames
    ) -> tuple[Tunables, Config]:
        if not (_tiled(program) and _wide(program)):
            return {}, {}
        return {"LANES": LANES}, {"LANES": _DEFAULT_LANES}

    def sections(self, functions: Sequence[Function], program: Program) -> Sequence[str]:
        fixed = _wide(program) and not _tiled(program)
        return [_text(functions, fixed), BUILD.format(functions=_signatures(functions))]

    def imports(self, functions: Sequence[Function]) -> Sequence[str]:
        return []


def _tiled(program: Program) -> bool:
    return any(group.lowered and group.schedule.tile for group in program.groups)


def _wide(program: Program) -> bool:
    return any(group.lowered and group.schedule.vectorize for group in program.groups)


def _text(functions: Sequence[Function], fixed_lanes: bool) -> str:
    helpers = {helper for function in functions for helper in function.helpers}
    math = {name for function in functions for name in function.math}
    if "online_softmax" in math:
        math.add("exp")
    text = PRELUDE
    text += "".join(HEADERS[h] for h in sorted(helpers) if h in HEADERS)
    if fixed_lanes:
        text += f"\n#ifndef LANES\n#define LANES {_DEFAULT_LANES}\n#endif\n"
    declared = vector_math(math)
    text += "\n" + declared if declared else ""
    text += "".join("\n" + HELPERS[h] for h in sorted(helpers))
    text += "".join("\n" + function.text for function in functions)
    return f'CPP = r"""\n{text}"""'


def _signatures(functions: Sequence[Function]) -> str:
    entries = [f'    "{f.name}": ({len(f.parameters)}, {int(f.sized)}),' for f in functions]
    return "{\n" + "\n".join(entries) + "\n}"
