"""A whole program as one stand-alone module: reference, kernels, ModelNew."""

from collections.abc import Sequence
from typing import Any

from kerntree.coder.emit.cpp_module import Cpp
from kerntree.coder.emit.language import Language, Printed, TunableNames
from kerntree.coder.emit.methods import print_methods
from kerntree.coder.emit.names import identifier
from kerntree.coder.emit.reference import embedded_reference
from kerntree.coder.emit.triton_module import Triton
from kerntree.coder.program import Program, to_json
from kerntree.plans.candidate import Candidate, Config, Tunables
from kerntree.plans.problem import Problem


def emit_module(problem: Problem, program: Program | None) -> Candidate:
    """The candidate of a program.

    Without a program (a problem with no operator graph) the module calls the reference itself,
    which is the only case in which it may.
    """
    future, reference = embedded_reference(problem.source)
    if program is None:
        text = _page(future, [], reference, [_PLAIN])
        return Candidate(source=text, language="torch", torch_calls=("reference",))
    return _emit(
        problem, program, Cpp() if program.target == "cpp" else Triton(), (future, reference)
    )


def _emit(
    problem: Problem, program: Program, language: Language[Any], embedded: tuple[str, str]
) -> Candidate:
    lowered = [group for group in program.groups if group.lowered]
    names = TunableNames(by_kernel=len(lowered) > 1, by_case=len(problem.cases) > 1)
    methods, printed = print_methods(problem, program, language, names)
    functions = list({p.function.name: p.function for p in printed}.values())
    tunables, config = language.tunables(printed, program, names)
    sections = [_tunables(tunables, config)]
    if functions:
        sections += language.sections(functions, program)
    sections.append("\n\n\n".join(methods.sections()))
    future, reference = embedded
    imports = language.imports(functions) if functions else []
    return Candidate(
        source=_page(future, imports, reference, sections),
        language=language.name if functions else "torch",
        tunables=tunables,
        config=config,
        case_tunables=_by_case(problem, printed, tunables, names) if names.by_case else {},
        program=to_json(program),
        kernels=tuple(dict.fromkeys(group.name for group in lowered)),
        torch_calls=tuple(g.name for g in program.groups if not g.lowered),
    )


def _by_case(
    problem: Problem, printed: Sequence[Printed], tunables: Tunables, names: TunableNames
) -> dict[str, tuple[str, ...]]:
    """The tunables that matter to one case alone, by its name."""
    found = {}
    for place, case in enumerate(problem.cases):
        kernels = [identifier(p.group) for p in printed if p.place == place]
        labels = {p.case for p in printed if p.place == place}
        mine = tuple(
            name
            for name in tunables
            if any(
                name == names.name(name.partition("_")[0], kernel=kernel, case=label)
                for kernel in kernels
                for label in labels
            )
        )
        if mine:
            found[case.name] = mine
    return found


def _tunables(tunables: Tunables, config: Config) -> str:
    shown = {name: list(values) for name, values in tunables.items()}
    return f"TUNABLES = {shown!r}\nCONFIG = {config!r}".replace("'", '"')


def _page(future: str, imported: Sequence[str], reference: str, sections: Sequence[str]) -> str:
    head = [future] if future else []
    imports = "\n".join(["import torch", *imported])
    rule = "# --- {} " + "-" * 60
    parts = [
        *head,
        imports,
        rule.format("the reference, for construction only"),
        reference,
        rule.format("the candidate"),
        *sections,
    ]
    return "\n\n".join(parts) + "\n"


_PLAIN = '''TUNABLES = {}
CONFIG = {}


class ModelNew(Model):
    """The reference itself: its operators could not be exported as a graph."""

    def forward(self, *args):
        return super().forward(*args)'''
