"""A whole program as one stand-alone module: reference, kernels, ModelNew."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from kerntree.coder.emit.cpp_module import Cpp
from kerntree.coder.emit.forward import CaseBody, case_body
from kerntree.coder.emit.names import identifier
from kerntree.coder.emit.reference import embedded_reference
from kerntree.coder.emit.triton_module import Triton
from kerntree.coder.kernel import Kernel, Store
from kerntree.coder.lowering import build_kernel, can_store_in_place
from kerntree.coder.passes import one_pass
from kerntree.coder.program import Group, Program, Schedule, to_json
from kerntree.plans.candidate import Candidate, Config, Tunables
from kerntree.plans.graph import OperatorGraph, operands
from kerntree.plans.problem import Case, Problem
from kerntree.plans.roofline import FREE

F = TypeVar("F")


class Language(Protocol[F]):
    """How kernels are printed in one language, and what the module holds beside them."""

    @property
    def name(self) -> Literal["cpp", "triton"]: ...

    def function(
        self, kernel: Kernel, schedule: Schedule, *, name: str, in_place: Mapping[str, str]
    ) -> F:
        """One kernel as a function."""
        ...

    def launch(self, function: F, arguments: Sequence[str], *, device: str) -> Sequence[str]:
        """Statements that run a function on tensors, by their names in order."""
        ...

    def tunables(self, functions: Sequence[F], program: Program) -> tuple[Tunables, Config]:
        """What the functions leave open, and the values to begin with."""
        ...

    def sections(self, functions: Sequence[F], program: Program) -> Sequence[str]:
        """The kernels as sections of the module's text."""
        ...

    def imports(self, functions: Sequence[F]) -> Sequence[str]:
        """Lines at the module's top, beside torch."""
        ...


@dataclass(frozen=True)
class _CaseCode:
    case: Case
    functions: tuple[Any, ...]
    body: CaseBody


def emit_module(problem: Problem, program: Program | None) -> Candidate:
    """The candidate of a program.

    Without a program (a problem with no operator graph) the module calls the reference itself,
    which is the only case in which it may.
    """
    future, reference = embedded_reference(problem.source)
    if program is None:
        text = _page(future, [], reference, [_PLAIN])
        return Candidate(source=text, language="torch", torch_calls=("reference",))
    return _emit(problem, program, _language(problem, program), (future, reference))


def _language(problem: Problem, program: Program) -> Language[Any]:
    if program.target == "cpp":
        return Cpp()
    kernels = sum(group.lowered for group in program.groups) * len(problem.cases)
    return Triton(alone=kernels == 1)


def _emit(
    problem: Problem, program: Program, language: Language[Any], embedded: tuple[str, str]
) -> Candidate:
    codes = [_case_code(case, program, len(problem.cases), language) for case in problem.cases]
    functions = [function for code in codes for function in code.functions]
    tunables, config = language.tunables(functions, program)
    sections = [_tunables(tunables, config)]
    if functions:
        sections += language.sections(functions, program)
    sections.append(_model(problem, codes))
    future, reference = embedded
    imports = language.imports(functions) if functions else []
    return Candidate(
        source=_page(future, imports, reference, sections),
        language=language.name if functions else "torch",
        tunables=tunables,
        config=config,
        program=to_json(program),
        kernels=tuple(dict.fromkeys(g.name for g in program.groups if g.lowered)),
        torch_calls=tuple(g.name for g in program.groups if not g.lowered),
    )


def _case_code(case: Case, program: Program, cases: int, language: Language[Any]) -> _CaseCode:
    graph = case.graph
    assert graph is not None
    functions: dict[str, Any] = {}
    in_place: dict[str, dict[str, str]] = {}
    for position, group in enumerate(program.groups):
        if not group.lowered:
            continue
        kernel = build_kernel(graph, group.nodes, name=group.name)
        if group.schedule.one_pass:
            kernel = one_pass(kernel)
        suffix = f"_{identifier(case.name)}" if cases > 1 else ""
        replaced = _replaced(graph, program.groups, position, group, language.name)
        in_place[group.name] = replaced
        functions[group.name] = language.function(
            kernel,
            group.schedule,
            name=f"kernel_{identifier(group.name)}{suffix}",
            in_place=replaced,
        )
    device = _device(case) if language.name == "triton" else ""
    body = case_body(
        case,
        graph,
        program,
        functions,
        in_place,
        launch=lambda function, names: language.launch(function, names, device=device),
        device=device,
    )
    return _CaseCode(case, tuple(functions.values()), body)


def _device(case: Case) -> str:
    """Where the inputs lie, as an expression."""
    for spec in case.inputs:
        if spec.tensor is not None:
            return f"{identifier(spec.name)}.device"
    return 'torch.device("cuda")'


def _replaced(
    graph: OperatorGraph, groups: Sequence[Group], position: int, group: Group, language: str
) -> dict[str, str]:
    """Values this kernel may write straight into the inputs that they replace."""
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
        if _views_of(graph, tensor.name) & (read_later | returned):
            continue
        if tensor.name in result.values() or output.value in result:
            continue
        value = graph.spec(output.value)
        same = (value.shape, value.dtype) == (tensor.spec.shape, tensor.spec.dtype)
        if language == "triton" and not _written_along_rows(kernel, output.value):
            continue  # other programs of the row, or other threads, may yet have to read it
        if same and can_store_in_place(kernel, output.value, tensor.name):
            result[output.value] = tensor.name
    return result


def _views_of(graph: OperatorGraph, name: str) -> set[str]:
    """The values that may lie in a tensor's memory, itself among them."""
    found = {name}
    for node in graph.nodes:
        if node.target in FREE and found.intersection(operands(node)):
            found.add(node.name)
    return found


def _written_along_rows(kernel: Kernel, value: str) -> bool:
    """Whether a stored value differs along what the kernel reduces, if it reduces at all."""
    stores = [i for i in kernel.body if isinstance(i, Store) and i.access.tensor == value]
    return not kernel.reduced or all(
        any(store.access.strides[d] for d in kernel.reduced) for store in stores
    )


def _tunables(tunables: Tunables, config: Config) -> str:
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
    lines.append(f"        given_form = form_of({given})")
    for number, code in enumerate(codes):
        lines.append(f"        if given_form == FORMS[{number}]:")
        call = "*inputs" if nested else ", ".join(names)
        lines.append(f"            return self.{_method(code, codes)}({call})")
    lines.append("        raise ValueError(")
    lines.append('            f"this kernel was made for inputs {FORMS}, not for {given_form}; "')
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
