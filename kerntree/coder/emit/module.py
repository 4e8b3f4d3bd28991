"""A whole program as one stand-alone module: reference, C++ text, build, ModelNew."""

from collections.abc import Sequence
from dataclasses import dataclass

from kerntree.coder.emit.build_text import BUILD
from kerntree.coder.emit.cpp import Function, emit_function
from kerntree.coder.emit.cpp_text import HEADERS, HELPERS, PRELUDE, vector_math
from kerntree.coder.emit.forward import CaseBody, case_body
from kerntree.coder.emit.names import identifier
from kerntree.coder.emit.reference import embedded_reference
from kerntree.coder.lowering import build_kernel
from kerntree.coder.passes import one_pass
from kerntree.coder.program import Group, Program, to_json
from kerntree.plans.candidate import Candidate
from kerntree.plans.graph import OperatorGraph
from kerntree.plans.problem import Case, Problem

LANES: tuple[int, ...] = (16, 32, 64, 128, 256)
_DEFAULT_LANES = 64


@dataclass(frozen=True)
class _CaseCode:
    case: Case
    functions: tuple[Function, ...]
    body: CaseBody


def emit_module(problem: Problem, program: Program | None) -> Candidate:
    """The candidate of a program.

    Without a program (a problem with no operator graph) the module calls the reference itself,
    which is the only case in which it may.
    """
    future, reference = embedded_reference(problem.source)
    if program is None:
        text = _page(future, reference, [_PLAIN])
        return Candidate(source=text, language="torch", torch_calls=("reference",))
    codes = [_case_code(case, program, len(problem.cases)) for case in problem.cases]
    functions = [function for code in codes for function in code.functions]
    tiled = any(group.lowered and group.schedule.tile for group in program.groups)
    wide = any(group.lowered and group.schedule.vectorize for group in program.groups)
    tunables = {"LANES": LANES} if tiled and wide else {}
    config = dict.fromkeys(tunables, _DEFAULT_LANES)
    sections = []
    if functions:
        sections += [
            _tunables(tunables, config),
            _cpp(functions, wide and not tiled),
            BUILD.format(functions=_signatures(functions)),
        ]
    else:
        sections += [_tunables({}, {})]
    sections.append(_model(problem, codes))
    return Candidate(
        source=_page(future, reference, sections),
        language="cpp" if functions else "torch",
        tunables={name: tuple(values) for name, values in tunables.items()},
        config=config,
        program=to_json(program),
        kernels=tuple(dict.fromkeys(g.name for g in program.groups if g.lowered)),
        torch_calls=tuple(g.name for g in program.groups if not g.lowered),
    )


def _case_code(case: Case, program: Program, cases: int) -> _CaseCode:
    graph = case.graph
    assert graph is not None
    functions: dict[str, Function] = {}
    in_place: dict[str, dict[str, str]] = {}
    for position, group in enumerate(program.groups):
        if not group.lowered:
            continue
        kernel = build_kernel(graph, group.nodes, name=group.name)
        if group.schedule.one_pass:
            kernel = one_pass(kernel)
        suffix = f"_{identifier(case.name)}" if cases > 1 else ""
        replaced = _replaced(graph, program.groups, position, group)
        in_place[group.name] = replaced
        functions[group.name] = emit_function(
            kernel,
            group.schedule,
            name=f"kernel_{identifier(group.name)}{suffix}",
            in_place=replaced,
        )
    body = case_body(case, graph, program, functions, in_place)
    return _CaseCode(case, tuple(functions.values()), body)


def _replaced(
    graph: OperatorGraph, groups: Sequence[Group], position: int, group: Group
) -> dict[str, str]:
    """Values this kernel may write straight into the inputs that they replace."""
    from kerntree.coder.lowering import can_store_in_place
    from kerntree.plans.graph import operands

    inputs = {entry.target: entry for entry in graph.inputs if entry.kind == "user"}
    kernel = build_kernel(graph, group.nodes, name=group.name)
    later = {n for g in groups[position + 1 :] for n in g.nodes}
    read_later = {o for node in graph.nodes if node.name in later for o in operands(node)}
    returned = {o.value for o in graph.outputs if o.kind == "output"}
    result: dict[str, str] = {}
    for output in graph.outputs:
        if output.kind != "input_mutation" or output.value not in kernel.writes:
            continue
        tensor = inputs[output.target]
        if tensor.name in read_later or tensor.name in returned:
            continue
        if tensor.name in result.values() or output.value in result:
            continue
        same = graph.spec(output.value).shape == tensor.spec.shape
        if same and can_store_in_place(kernel, output.value, tensor.name):
            result[output.value] = tensor.name
    return result


def _cpp(functions: Sequence[Function], fixed_lanes: bool) -> str:
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
    entries = [f'    "{f.name}": {len(f.parameters)},' for f in functions]
    return "{\n" + "\n".join(entries) + "\n}"


def _tunables(tunables: dict[str, tuple[int, ...]], config: dict[str, int]) -> str:
    shown = {name: list(values) for name, values in tunables.items()}
    return f"TUNABLES = {shown!r}\nCONFIG = {config!r}".replace("'", '"')


def _model(problem: Problem, codes: Sequence[_CaseCode]) -> str:
    lines = ["class ModelNew(Model):"]
    names = [identifier(spec.name) for spec in problem.cases[0].inputs]
    nested = any("." in spec.path for case in problem.cases for spec in case.inputs)
    arguments = "*inputs" if nested else ", ".join(names)
    lines.append(f"    def forward(self, {arguments}):" if arguments else "    def forward(self):")
    given = "inputs" if nested else f"({', '.join(names)}{',' if len(names) == 1 else ''})"
    if nested:
        lines.append("        inputs = leaves(inputs)")
    lines.append(f"        form = form_of({given})")
    for number, code in enumerate(codes):
        lines.append(f"        if form == FORMS[{number}]:")
        call = "*inputs" if nested else ", ".join(names)
        lines.append(f"            return self.{_method(code, codes)}({call})")
    lines.append("        raise ValueError(")
    lines.append('            f"this kernel was made for inputs {FORMS}, not for {form}; "')
    lines.append('            "search again with a case of that form"')
    lines.append("        )")
    for code in codes:
        lines.append("")
        inner = ", ".join(identifier(spec.name) for spec in code.case.inputs)
        lines.append(f"    def {_method(code, codes)}(self{', ' + inner if inner else ''}):")
        lines += [f"        {line}" for line in code.body.lines]
    forms = [code.body.form for code in codes]
    shown = "FORMS = [\n" + "".join(f"    {form},\n" for form in forms) + "]"
    return "\n\n\n".join([shown, _FORM_OF + (_LEAVES if nested else ""), "\n".join(lines)])


def _method(code: _CaseCode, codes: Sequence[_CaseCode]) -> str:
    return f"run_{identifier(code.case.name)}" if len(codes) > 1 else "run"


def _page(future: str, reference: str, sections: Sequence[str]) -> str:
    head = [future] if future else []
    imports = "import torch"
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

_FORM_OF = '''def form_of(inputs):
    """Shapes and types of tensors, and all other values as they are."""
    return tuple(
        (tuple(x.shape), x.dtype) if isinstance(x, torch.Tensor) else x for x in inputs
    )'''

_LEAVES = '''


def leaves(value):
    """Tensors and numbers of nested arguments, in order."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]'''
