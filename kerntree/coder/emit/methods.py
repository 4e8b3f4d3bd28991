"""The methods that run a program: printed for any size where cases differ in sizes alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kerntree.coder.emit.dispatch import Method, Methods
from kerntree.coder.emit.forward import case_body
from kerntree.coder.emit.in_place import replaced_inputs
from kerntree.coder.emit.language import Language, Printed, TunableNames
from kerntree.coder.emit.names import argument, identifier, labels
from kerntree.coder.kernel import Kernel
from kerntree.coder.lowering import build_kernel
from kerntree.coder.passes import one_pass
from kerntree.coder.program import Group, Program
from kerntree.coder.sizes import (
    Size,
    formula,
    varying_sizes,
    with_formulas,
    with_sizes_as_arguments,
)
from kerntree.plans.graph import OperatorGraph
from kerntree.plans.problem import Case, Problem


def print_methods(
    problem: Problem, program: Program, language: Language[Any], names: TunableNames
) -> tuple[Methods, list[Printed]]:
    """The methods of a module, and every kernel as it is printed for every case."""
    printer = _Printer(problem, program, language, names)
    return printer.for_any_size() or printer.for_each_form()


@dataclass(frozen=True)
class _Printer:
    problem: Problem
    program: Program
    language: Language[Any]
    names: TunableNames

    @property
    def cases(self) -> tuple[Case, ...]:
        return self.problem.cases

    @property
    def lowered(self) -> list[Group]:
        return [group for group in self.program.groups if group.lowered]

    @property
    def labels(self) -> list[str]:
        return labels([case.name for case in self.cases])

    def for_each_form(self) -> tuple[Methods, list[Printed]]:
        """A method for each case, made for its sizes alone."""
        methods, forms, printed = [], [], []
        for place, label in enumerate(self.labels):
            suffix = f"_{label}" if len(self.cases) > 1 else ""
            functions = {
                group.name: self._function(place, self._kernel(place, group), group, suffix)
                for group in self.lowered
            }
            launch = self._launcher([functions], {}, self._entry(f'"{label}"'))
            lines, form = self._body(place, functions, launch, ())
            methods.append(Method((label,), lines))
            forms.append(form)
            searched = self.cases[place].searched
            printed += [Printed(n, place, label, f, searched) for n, f in functions.items()]
        return Methods(self.problem, tuple(methods), tuple(forms)), printed

    def for_any_size(self) -> tuple[Methods, list[Printed]] | None:
        """Methods that take the sizes in which the cases differ; None where that is not all."""
        taken = {argument(spec.name) for spec in self.cases[0].inputs}
        sizes = _named_apart(varying_sizes(self.cases), taken) if len(self.cases) > 1 else ()
        kernels = self._sized_kernels() if sizes else None
        extents = None if kernels is None else _extents(kernels, sizes)
        if kernels is None or extents is None:
            return None
        places = range(len(self.cases))
        plain = [self._functions(place, kernels, "") for place in places]
        marked = self._common_body(plain, sizes)
        if marked is None:
            return None
        lines, form = marked
        methods, printed = [], []
        searched = [place for place in places if self.cases[place].searched]
        order = sorted(searched, key=lambda place: _positions(sizes, place))
        families = _families(order, plain)
        for family in families:
            suffix = f"_{self.labels[family[0]]}" if len(families) > 1 else ""
            functions = [self._functions(place, kernels, suffix) for place in family]
            launch = self._launcher(functions, extents, self._entry("case"))
            methods.append(
                Method(
                    tuple(self.labels[place] for place in family),
                    _with_launches(lines, functions[0], launch),
                    self._limits(functions[-1], extents),
                )
            )
            for place, mine in zip(family, functions, strict=True):
                printed += [Printed(n, place, self.labels[place], f) for n, f in mine.items()]
        return Methods(self.problem, tuple(methods), (form,), sizes), printed

    def _kernel(self, place: int, group: Group) -> Kernel:
        kernel = build_kernel(self._graph(place), group.nodes, name=group.name)
        return one_pass(kernel) if group.schedule.one_pass else kernel

    def _sized_kernels(self) -> dict[str, tuple[Kernel, ...]] | None:
        found = {}
        for group in self.lowered:
            kernels = [self._kernel(place, group) for place in range(len(self.cases))]
            sized = with_sizes_as_arguments(kernels)
            if sized is None:
                return None
            found[group.name] = sized
        return found

    def _functions(
        self, place: int, kernels: Mapping[str, Sequence[Kernel]], suffix: str
    ) -> dict[str, Any]:
        return {
            group.name: self._function(place, kernels[group.name][place], group, suffix)
            for group in self.lowered
        }

    def _function(self, place: int, kernel: Kernel, group: Group, suffix: str) -> Any:
        return self.language.function(
            kernel,
            group.schedule,
            name=f"kernel_{identifier(group.name)}{suffix}",
            in_place=self._in_place(place)[group.name],
        )

    def _in_place(self, place: int) -> dict[str, dict[str, str]]:
        graph, groups = self._graph(place), self.program.groups
        return {
            group.name: replaced_inputs(graph, groups, position, self.language.name)
            for position, group in enumerate(groups)
            if group.lowered
        }

    def _graph(self, place: int) -> OperatorGraph:
        graph = self.cases[place].graph
        assert graph is not None
        return graph

    def _launcher(
        self,
        functions: Sequence[Mapping[str, Any]],
        extents: Mapping[str, str],
        entry: Callable[[str, str], str],
    ) -> Callable[[str, Sequence[str]], Sequence[str]]:
        def launch(group: str, arguments: Sequence[str]) -> Sequence[str]:
            return self.language.launch(
                [mine[group] for mine in functions],
                arguments,
                device=self._device(0),
                extent=extents.get(group, ""),
                entry=lambda size: entry(identifier(group), size),
            )

        return launch

    def _entry(self, case: str) -> Callable[[str, str], str]:
        """Where CONFIG holds a size of a kernel; `case` is the label as a Python expression."""
        at_run_time = not case.startswith('"')

        def entry(kernel: str, size: str) -> str:
            label = f"{{{case}}}" if at_run_time else case.strip('"')
            name = self.names.name(size, kernel=kernel, case=label)
            return f'CONFIG[{"f" * at_run_time}"{name}"]'

        return entry

    def _device(self, place: int) -> str:
        """Where the inputs lie, as an expression; empty on a CPU."""
        if self.language.name != "triton":
            return ""
        tensors = (spec for spec in self.cases[place].inputs if spec.tensor is not None)
        first = next(tensors, None)
        return 'torch.device("cuda")' if first is None else f"{argument(first.name)}.device"

    def _body(
        self,
        place: int,
        functions: Mapping[str, Any],
        launch: Callable[[str, Sequence[str]], Sequence[str]],
        sizes: Sequence[Size],
    ) -> tuple[tuple[str, ...], str]:
        body = case_body(
            self.cases[place],
            self._graph(place),
            self.program,
            functions,
            self._in_place(place),
            launch=launch,
            device=self._device(place),
            reserved=[size.name for size in sizes],
        )
        return body.lines, body.form

    def _common_body(
        self, functions: Sequence[Mapping[str, Any]], sizes: Sequence[Size]
    ) -> tuple[list[str], str] | None:
        """The statements that are right for every case, launches still as marks, and the form."""
        bodies = [
            self._body(place, mine, lambda group, names: [_mark(group, names)], sizes)
            for place, mine in enumerate(functions)
        ]
        if len({len(lines) for lines, _ in bodies}) > 1:
            return None
        lines = [with_formulas(given, sizes) for given in zip(*(b[0] for b in bodies), strict=True)]
        form = with_formulas([form for _, form in bodies], sizes)
        found = [line for line in lines if line is not None]
        return None if form is None or len(found) < len(lines) else (found, form)

    def _limits(self, functions: Mapping[str, Any], extents: Mapping[str, str]) -> tuple[str, ...]:
        limits = []
        for group, extent in extents.items():
            most = self.language.limit(functions[group])
            if most is not None:
                limits.append(f"{extent} <= {most}")
        return tuple(limits)


def _named_apart(sizes: Sequence[Size], taken: set[str]) -> tuple[Size, ...]:
    found = []
    for size in sizes:
        name = size.name
        while name in taken:
            name += "_"
        taken.add(name)
        found.append(replace(size, name=name))
    return tuple(found)


def _extents(
    kernels: Mapping[str, Sequence[Kernel]], sizes: Sequence[Size]
) -> dict[str, str] | None:
    """The outermost extent of each kernel that takes it, as a formula of the sizes."""
    found = {}
    for group, mine in kernels.items():
        if mine[0].dims[0].at_run_time:
            text = formula(sizes, [kernel.dims[0].extent for kernel in mine])
            if text is None:
                return None
            found[group] = text
    return found


def _positions(sizes: Sequence[Size], place: int) -> int:
    count = 1
    for size in sizes:
        count *= size.values[place]
    return count


def _families(order: Sequence[int], functions: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Cases in order, those together that are served by the same kernels."""
    found: dict[tuple[str, ...], list[int]] = {}
    for place in order:
        found.setdefault(tuple(f.text for f in functions[place].values()), []).append(place)
    return sorted(found.values(), key=lambda family: order.index(family[-1]))


_MARK = "launch of"


def _mark(group: str, names: Sequence[str]) -> str:
    return f"{_MARK} {group}: {' '.join(names)}"


def _with_launches(
    lines: Sequence[str],
    functions: Mapping[str, Any],
    launch: Callable[[str, Sequence[str]], Sequence[str]],
) -> tuple[str, ...]:
    marks = {_MARK + f" {group}:": group for group in functions}
    found: list[str] = []
    for line in lines:
        mark = next((m for m in marks if line.startswith(m)), None)
        found += [line] if mark is None else launch(marks[mark], line[len(mark) :].split())
    return tuple(found)
