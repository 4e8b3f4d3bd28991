"""Which method of a module runs on which inputs: one for each form, or one for many sizes."""

from collections.abc import Sequence
from dataclasses import dataclass

from kerntree.coder.emit.names import argument, labels
from kerntree.coder.sizes import Size
from kerntree.plans.problem import Problem


@dataclass(frozen=True)
class Method:
    """A method's statements, and the cases it serves; `limits` hold for its sizes (conditions)."""

    cases: tuple[str, ...]
    lines: tuple[str, ...]
    limits: tuple[str, ...] = ()


@dataclass(frozen=True)
class Methods:
    """All methods of a module.

    `forms` are the forms of the inputs that are searched for, in the order of the methods: without
    `sizes` each method has its own. With them, `forms` is one text with the sizes' names in it, and
    the last method serves what is larger than all cases.
    """

    problem: Problem
    methods: tuple[Method, ...]
    forms: tuple[str, ...]
    sizes: tuple[Size, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The methods' names."""
        if len(self.methods) == 1:
            return ("run",)
        return tuple(f"run_{method.cases[0]}" for method in self.methods)

    def sections(self) -> list[str]:
        """What the module's text holds for it, the class among it."""
        listed = [] if self.sizes else self.forms
        entries = "".join(f"    {form},\n" for form in listed)
        sections = [f"FORMS = [\n{entries}]" if entries else "FORMS = []"]
        if self.sizes:
            sections.append(f"FORM = {self.forms[0]!r}  # whatever its sizes")
            searched = ", ".join(f'"{label}": {n}' for n, label in self._by_size())
            sections += [f"SEARCHED = {{{searched}}}", _SIZE_OF, _NEAREST]
        return [*sections, _FORM_OF + (_LEAVES if self._nested else ""), self._class()]

    def _class(self) -> str:
        names = [argument(spec.name) for spec in self.problem.cases[0].inputs]
        shown = ", ".join(names)
        arguments = "*inputs" if self._nested else shown
        taken = ", ".join(["self", *([arguments] if arguments else [])])
        lines = ["class ModelNew(Model):", f"    def forward({taken}):"]
        given = "inputs" if self._nested else f"({shown}{',' if len(names) == 1 else ''})"
        if self._nested:
            lines.append("        inputs = leaves(inputs)")
        lines.append(f"        given_form = form_of({given})")
        call = "*inputs" if self._nested else shown
        lines += self._by_sizes(call, names) if self.sizes else self._by_form(call)
        made_for = "FORM" if self.sizes else "FORMS"
        lines.append("        raise ValueError(")
        lines.append(f'            f"this kernel was made for inputs {{{made_for}}}, not for "')
        lines.append('            f"{given_form}; search again with a case of that form"')
        lines.append("        )")
        inner = [*(argument(spec.name) for spec in self.problem.cases[0].inputs)]
        inner += [*(size.name for size in self.sizes), *(["case"] if self.sizes else [])]
        for name, method in zip(self.names, self.methods, strict=True):
            lines += ["", f"    def {name}({', '.join(['self', *inner])}):"]
            lines += [f"        {line}" for line in method.lines]
        return "\n".join(lines)

    def _by_form(self, call: str) -> list[str]:
        lines = []
        for number, name in enumerate(self.names):
            lines.append(f"        if given_form == FORMS[{number}]:")
            lines.append(f"            return self.{name}({call})")
        return lines

    def _by_sizes(self, call: str, names: Sequence[str]) -> list[str]:
        lines = []
        for size in self.sizes:
            tensor = f"inputs[{size.input}]" if self._nested else names[size.input]
            lines.append(f"        {size.name} = size_of({tensor}, {size.dim})")
        shown = [size.name for size in self.sizes]
        conditions = [*shown, f"given_form == {self.forms[0]}"]
        several = self.methods if len(self.sizes) > 1 else self.methods[-1:]
        conditions += dict.fromkeys(limit for method in several for limit in method.limits)
        lines.append("        if (")
        lines.append(f"            {conditions[0]}")
        lines += [f"            and {condition}" for condition in conditions[1:]]
        lines.append("        ):")
        lines.append(f"            case = nearest({' * '.join(shown)})")
        passed = ", ".join([*([call] if call else []), *shown, "case"])
        for name, method in zip(self.names[:-1], self.methods[:-1], strict=True):
            cases = ", ".join(f'"{case}"' for case in method.cases)
            lines.append(f"            if case in ({cases},):")
            lines.append(f"                return self.{name}({passed})")
        lines.append(f"            return self.{self.names[-1]}({passed})")
        return lines

    def _by_size(self) -> list[tuple[int, str]]:
        counts = [1] * len(self.problem.cases)
        for size in self.sizes:
            counts = [c * v for c, v in zip(counts, size.values, strict=True)]
        named = labels([case.name for case in self.problem.cases])
        listed = zip(counts, named, self.problem.cases, strict=True)
        return sorted((count, label) for count, label, case in listed if case.searched)

    @property
    def _nested(self) -> bool:
        return any("." in spec.path for case in self.problem.cases for spec in case.inputs)


_FORM_OF = '''def form_of(inputs):
    """Shapes and types of tensors, and all other values as they are."""
    return tuple(
        (tuple(x.shape), x.dtype) if isinstance(x, torch.Tensor) else x if x == x else "nan"
        for x in inputs
    )'''

_SIZE_OF = '''def size_of(tensor, dim):
    """The size of a dimension; 0 where there is none."""
    return tensor.shape[dim] if isinstance(tensor, torch.Tensor) and tensor.dim() > dim else 0'''

_NEAREST = '''def nearest(count):
    """The case whose config to run under: the least that is not smaller, or else the largest."""
    for case, searched in SEARCHED.items():
        if count <= searched:
            return case
    return case'''

_LEAVES = '''


def leaves(value):
    """Tensors and numbers of nested arguments, in order."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]'''
