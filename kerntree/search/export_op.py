"""The winning kernel as an operator of torch's: usable under torch.compile and in CUDA graphs."""

import json
import keyword
import re
from typing import Any

from kerntree.plans.problem import Case, InputSpec, Problem
from kerntree.search.errors import RunError

_TYPES = {bool: "bool", int: "int", float: "float", str: "str"}


def as_torch_op(module: str, problem: Problem) -> str:
    """Adds to a stand-alone module its operator, with a fake implementation and a module on it.

    `module` is the text of `stand_alone`. The operator takes the reference's inputs, then its
    parameters and buffers, and says which of them it changes. Inputs of another form than those
    searched for go to the reference. Raises `RunError` for what no operator's signature can say:
    nested inputs, results in a dict.
    """
    case = problem.cases[0]
    signature = _Signature(problem, case)
    body, _, check = module.partition("\n\ndef _self_check(")
    check = f"\n\ndef _self_check({check}" if check else ""
    return f"{body.rstrip()}\n\n\n{signature.text()}{check}"


class _Signature:
    """Names and types of what the operator takes and gives."""

    def __init__(self, problem: Problem, case: Case) -> None:
        self.name = _identifier(problem.name)
        self.problem, self.case = problem, case
        for spec in case.inputs:
            if "." in spec.path:
                raise RunError(
                    f"input {spec.path} of {problem.name} is nested, which no operator takes; "
                    "export it --as module"
                )
        self.inputs = {spec.path: _identifier(spec.name) for spec in case.inputs}
        taken = set(self.inputs.values())
        self.state: dict[str, str] = {}
        for entry in problem.state:
            name = _identifier(entry.name)
            while name in taken:
                name += "_"
            taken.add(name)
            self.state[entry.name] = name
        self.returned_inputs = _returned_inputs(case)
        self.results = [k for k in range(len(case.outputs)) if k not in self.returned_inputs]

    def text(self) -> str:
        arguments = [f"{self.inputs[s.path]}: {_type(s)}" for s in self.case.inputs]
        arguments += [f"{name}: torch.Tensor" for name in self.state.values()]
        given = ", ".join(self.inputs.values())
        values = {
            "NAME": self.name,
            "ARGUMENTS": ", ".join(arguments),
            "MUTATED": repr(self._mutated()),
            "RETURNS": self._returns(),
            "INPUTS": f"({given},)" if given else "()",
            "STATE": "{" + ", ".join(f"{k!r}: {v}" for k, v in self.state.items()) + "}",
            "KEPT": repr(self.results),
            "RESULT": _among(len(self.results), "results"),
            "SPECS": self._specs(),
            "GIVEN": given,
            "PASSED": ", ".join([*self.inputs.values(), *self._own_state()]),
            "TENSORS": self._tensors(),
            "TREE": self._tree(self.case.output_tree),
            "UNPACK": _unpacked(len(self.results)),
            "MADE": "kind(*init)" + (".eval()" if self.problem.mode == "eval" else ""),
        }
        return re.sub(rf"\b({'|'.join(values)})\b", lambda found: values[found[1]], _OPERATOR)

    def _mutated(self) -> tuple[str, ...]:
        changed = [self.inputs[path] for path in self.case.mutated_inputs]
        return (*changed, *(self.state[name] for name in self.case.mutated_buffers))

    def _returns(self) -> str:
        if not self.results:
            return "None"
        if len(self.results) == 1:
            return "torch.Tensor"
        return f"tuple[{', '.join(['torch.Tensor'] * len(self.results))}]"

    def _specs(self) -> str:
        rows = []
        for case in self.problem.cases:
            specs = [case.outputs[k].tensor for k in self.results]
            entries = [f"({tuple(s.shape)}, torch.{s.dtype})" for s in specs]
            rows.append(f"    [{', '.join(entries)}],\n")
        return f"[\n{''.join(rows)}]"

    def _own_state(self) -> list[str]:
        kinds = {entry.name: entry.kind for entry in self.problem.state}
        return [f'self.get_{kinds[name]}("{name}")' for name in self.state]

    def _tensors(self) -> str:
        names = [self.inputs[s.path] for s in self.case.inputs if s.tensor is not None]
        return f"({', '.join([*names, '*self.parameters()'])},)"

    def _tree(self, tree: Any) -> str:
        if isinstance(tree, int):
            if tree in self.returned_inputs:
                return self.inputs[self.returned_inputs[tree]]
            return f"results[{self.results.index(tree)}]"
        ((kind, inner),) = tree.items()
        if kind == "value":
            return repr(inner)
        if kind == "dict":
            pairs = [f"{json.dumps(key)}: {self._tree(item)}" for key, item in inner.items()]
            return "{" + ", ".join(pairs) + "}"
        items = [self._tree(item) for item in inner]
        if kind == "tuple":
            return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
        return f"[{', '.join(items)}]"


def _returned_inputs(case: Case) -> dict[int, str]:
    """Outputs that are the very inputs which the reference changes: place to input path."""
    if case.graph is None:
        return {}
    changed = {o.value: o.target for o in case.graph.outputs if o.kind == "input_mutation"}
    leaves = [o.value for o in case.graph.outputs if o.kind == "output"]
    names = {e.name: e.target for e in case.graph.inputs if e.kind == "user"}
    found = {k: changed[value] for k, value in enumerate(leaves) if value in changed}
    for k, value in enumerate(leaves):
        if value in names and names[value] in case.mutated_inputs:
            found[k] = names[value]
    return found


def _type(spec: InputSpec) -> str:
    if spec.tensor is not None:
        return "torch.Tensor"
    kind = _TYPES.get(type(spec.value))
    if kind is None:
        raise RunError(f"input {spec.name} is {spec.value!r}, which no operator takes")
    return kind


def _identifier(name: str) -> str:
    text = re.sub(r"\W", "_", name, flags=re.ASCII)
    if not text or text[0].isdigit() or keyword.iskeyword(text) or text in ("self", "torch"):
        text = f"_{text}"
    return text


def _among(count: int, name: str) -> str:
    if count == 0:
        return "None"
    return f"{name}[0]" if count == 1 else f"tuple({name})"


def _unpacked(count: int) -> str:
    if count == 0:
        return "[]"
    return "[made]" if count == 1 else "list(made)"


_OPERATOR = '''# --- the operator -----------------------------------------------------------

_modules = {}
_OUTPUTS = SPECS


def _module(kind):
    """One module of a class, for its code alone: its state comes with each call."""
    if kind not in _modules:
        init = get_init_inputs() if "get_init_inputs" in globals() else []
        _modules[kind] = MADE
    return _modules[kind]


def _leaves(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, (list, tuple)):
        return []
    return [leaf for item in value for leaf in _leaves(item)]


def _place(inputs):
    """Which of the searched forms the inputs have; None for another. Own kernels have one form."""
    if "FORMS" not in globals():
        return 0
    form = form_of(inputs)
    return FORMS.index(form) if form in FORMS else None


def _run(inputs, state):
    """The kernel; for a form that it was not made for it asks the reference itself."""
    result = torch.func.functional_call(_module(ModelNew), state, inputs)
    leaves = _leaves(result)
    results = [leaves[k].contiguous() for k in KEPT]
    shared = [t.untyped_storage().data_ptr() for t in (*_leaves(list(inputs)), *state.values())]
    # an operator may not return what it was given
    return [y.clone() if y.untyped_storage().data_ptr() in shared else y for y in results]


@torch.library.custom_op("kerntree::NAME", mutates_args=MUTATED)
def NAME(ARGUMENTS) -> RETURNS:
    inputs, state = INPUTS, STATE
    with torch.no_grad():
        results = _run(inputs, state)
    return RESULT


@NAME.register_fake
def _(ARGUMENTS):
    inputs, state = INPUTS, STATE
    place = _place(inputs)
    if place is None:
        results = [y.contiguous() for k, y in enumerate(_leaves(
            torch.func.functional_call(_module(Model), state, inputs))) if k in KEPT]
        return RESULT
    device = next(iter((*_leaves(list(inputs)), *state.values()))).device
    results = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in _OUTPUTS[place]]
    return RESULT


class ModelFast(Model):
    """The reference with the operator in its place, where no gradient is wanted."""

    def forward(self, GIVEN):
        if torch.is_grad_enabled() and any(t.requires_grad for t in TENSORS):
            return super().forward(GIVEN)
        made = NAME(PASSED)
        results = UNPACK
        return TREE
'''
