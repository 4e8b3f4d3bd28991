"""The Python body that runs a program on the inputs of one case."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

from kerntree.coder.emit.names import argument
from kerntree.coder.emit.torch_calls import call_text
from kerntree.coder.program import Program
from kerntree.plans.graph import GraphInput, OperatorGraph, operands
from kerntree.plans.problem import Case


@dataclass(frozen=True)
class CaseBody:
    """Statements of the method, and the form of the inputs that it is for, both as text."""

    lines: tuple[str, ...]
    form: str


class Function(Protocol):
    """What `case_body` knows of a printed kernel: its tensors in order, and those it writes."""

    @property
    def parameters(self) -> tuple[str, ...]: ...

    @property
    def writes(self) -> tuple[str, ...]: ...


def case_body(
    case: Case,
    graph: OperatorGraph,
    program: Program,
    functions: Mapping[str, Function],
    in_place: Mapping[str, Mapping[str, str]],
    *,
    launch: Callable[[str, Sequence[str]], Sequence[str]],
    device: str = "",
    reserved: Collection[str] = (),
) -> CaseBody:
    """The method's text for one case.

    `launch` gives the statements that run a group's kernel on tensors, by their names in order.
    `device` is the expression of where new tensors go, if not to the CPU. No value but an input
    takes a name of `reserved`.
    """
    names = _value_names(case, graph, reserved)
    lines: list[str] = []
    read = {o for node in graph.nodes for o in operands(node)}
    read |= {output.value for output in graph.outputs}
    replaced = {t: v for group in in_place.values() for v, t in group.items()}
    by_kernels = {t for function in functions.values() for t in function.parameters}
    for entry in graph.inputs:
        if entry.name in read:
            lines += _entry(entry, names[entry.name], entry.name in by_kernels, device)
    nodes = {node.name: node for node in graph.nodes}
    last_use = _last_uses(graph, program)
    called: set[str] = set()
    for position, group in enumerate(program.groups):
        if group.lowered:
            function = functions[group.name]
            lines += _contiguous(function, called, names)
            lines += _results(graph, function, in_place[group.name], names, device)
            lines += launch(group.name, [names[t] for t in function.parameters])
        else:
            called.update(group.nodes)
            for name in group.nodes:
                text = call_text(nodes[name], lambda ref: names[ref], device=device)
                lines.append(f"{names[name]} = {text}")
        gone = [names[v] for v, p in last_use.items() if p == position and v in nodes]
        if gone:
            lines.append(f"del {', '.join(gone)}")
    lines += _mutations(graph, names, replaced, by_kernels)
    lines.append(f"return {_outputs(case, graph, names, by_kernels)}")
    return CaseBody(tuple(lines), _form(case))


def _value_names(case: Case, graph: OperatorGraph, reserved: Collection[str]) -> dict[str, str]:
    by_path = {spec.path: argument(spec.name) for spec in case.inputs}
    taken = {*by_path.values(), *reserved}
    names: dict[str, str] = {}
    for entry in graph.inputs:
        if entry.kind == "user":
            names[entry.name] = by_path[entry.target]
    for value in [
        *(e.name for e in graph.inputs if e.kind != "user"),
        *(n.name for n in graph.nodes),
    ]:
        name = argument(value)
        while name in taken:
            name += "_"
        taken.add(name)
        names[value] = name
    return names


def _entry(entry: GraphInput, name: str, by_kernel: bool, device: str) -> list[str]:
    dtype = f"torch.{entry.spec.dtype}"
    match entry.kind:
        case "user":
            return [f"{name}_given, {name} = {name}, {name}.contiguous()"] if by_kernel else []
        case "constant":
            if entry.values is None:
                raise ValueError(f"the constant {entry.name} is too large to print")
            values = ", ".join(
                f'float("{v}")' if isinstance(v, float) and v - v != 0 else repr(v)
                for v in entry.values
            )
            shape = list(entry.spec.shape)
            where = f", device={device}" if device else ""
            return [f"{name} = torch.tensor([{values}], dtype={dtype}{where}).reshape({shape})"]
        case _:
            path = (
                f'self.get_{entry.kind}("{entry.target}")'
                if "." in entry.target
                else (f"self.{entry.target}")
            )
            return [f"{name} = {path}.contiguous()" if by_kernel else f"{name} = {path}"]


def _contiguous(function: Function, called: Collection[str], names: Mapping[str, str]) -> list[str]:
    """What torch calls gave, as kernels take it: views and some operators leave other strides."""
    return [f"{names[t]} = {names[t]}.contiguous()" for t in function.parameters if t in called]


def _results(
    graph: OperatorGraph,
    function: Function,
    in_place: Mapping[str, str],
    names: Mapping[str, str],
    device: str,
) -> list[str]:
    produced = {node.name: node.outputs[0] for node in graph.nodes}
    where = f", device={device}" if device else ""
    lines = []
    for tensor in function.writes:
        if tensor in in_place:
            lines.append(f"{names[tensor]} = {names[in_place[tensor]]}")
            continue
        spec = produced[tensor]
        lines.append(
            f"{names[tensor]} = torch.empty({tuple(spec.shape)}, dtype=torch.{spec.dtype}{where})"
        )
    return lines


def _last_uses(graph: OperatorGraph, program: Program) -> dict[str, int]:
    """For each value that may be freed, the position of the group that reads it last."""
    nodes = {node.name: node for node in graph.nodes}
    home = {name: p for p, group in enumerate(program.groups) for name in group.nodes}
    escapes = {output.value for output in graph.outputs}
    last: dict[str, int] = {}
    for position, group in enumerate(program.groups):
        for name in group.nodes:
            for operand in operands(nodes[name]):
                if operand in home and (not group.lowered or home[operand] != position):
                    last[operand] = position
    return {name: position for name, position in last.items() if name not in escapes}


def _mutations(
    graph: OperatorGraph,
    names: Mapping[str, str],
    replaced: Mapping[str, str],
    by_kernels: Collection[str],
) -> list[str]:
    lines = []
    inputs = {entry.target: entry.name for entry in graph.inputs if entry.kind == "user"}
    buffers = {entry.target: entry.name for entry in graph.inputs if entry.kind == "buffer"}
    for output in graph.outputs:
        if output.kind == "input_mutation":
            tensor = inputs[output.target]
            name = names[tensor]
            if replaced.get(tensor) == output.value:
                lines.append(f"if {name} is not {name}_given:")
                lines.append(f"    {name}_given.copy_({name})")
            elif output.value != tensor:
                given = f"{name}_given" if tensor in by_kernels else name
                lines.append(f"{given}.copy_({names[output.value]})")
        elif output.kind == "buffer_mutation" and output.value != buffers.get(output.target):
            lines.append(f'self.get_buffer("{output.target}").copy_({names[output.value]})')
    return lines


def _outputs(
    case: Case, graph: OperatorGraph, names: Mapping[str, str], by_kernels: Collection[str]
) -> str:
    leaves = [output.value for output in graph.outputs if output.kind == "output"]
    mutated = {
        output.value: output.target for output in graph.outputs if output.kind == "input_mutation"
    }
    by_path = {entry.target: entry.name for entry in graph.inputs if entry.kind == "user"}

    def leaf(index: int) -> str:
        value = leaves[index]
        if value in mutated:  # the reference returns the very input that it changed
            value = by_path[mutated[value]]
        given = value in by_kernels and value in by_path.values()
        return f"{names[value]}_given" if given else names[value]

    def text(tree: Any) -> str:
        if isinstance(tree, int):
            return leaf(tree)
        ((kind, inner),) = tree.items()
        if kind == "value":
            return repr(inner)
        if kind == "dict":
            return "{" + ", ".join(f"{key!r}: {text(item)}" for key, item in inner.items()) + "}"
        items = ", ".join(text(item) for item in inner)
        if kind == "tuple":
            return f"({items},)" if len(inner) == 1 else f"({items})"
        return f"[{items}]"

    return text(case.output_tree)


def _plain(value: object) -> str:
    """A plain input as `form_of` gives it, in Python."""
    if isinstance(value, float) and value != value:
        return '"nan"'
    return f'float("{value}")' if isinstance(value, float) and value in (inf, -inf) else repr(value)


def _form(case: Case) -> str:
    parts = [
        f"({tuple(spec.tensor.shape)}, torch.{spec.tensor.dtype})"
        if spec.tensor
        else _plain(spec.value)
        for spec in case.inputs
    ]
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
