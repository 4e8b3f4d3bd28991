"""A problem file as plain data: cases, state, what is changed, and the operator graph."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import torch

from kerntree.evaluator.child_ground import pin_matmul
from kerntree.evaluator.compare import KERNELBENCH_TOLERANCE
from kerntree.evaluator.expectation import Writes, expectation, writes_of
from kerntree.evaluator.export import export_graph, spec_of
from kerntree.evaluator.inputs import make_inputs
from kerntree.evaluator.memory import available_memory, check_memory
from kerntree.evaluator.problem_file import ProblemCase, ProblemFile, load_problem_file
from kerntree.evaluator.reference import (
    Built,
    Mode,
    Observed,
    build,
    leaf_paths,
    observe,
    plain_argument,
    same,
)
from kerntree.plans.errors import ProblemError
from kerntree.plans.graph import ITEM_BYTES, OperatorGraph
from kerntree.plans.problem import Case, InputSpec, OutputSpec, Problem, StateSpec

_SEEDS = (11, 12)
_REORDERED = 64.0  # eps: a sum whose order changes from call to call is not a random result
_ERROR_LIMIT = 500  # characters of an export's failure

Progress = Callable[[str], None]


@dataclass(frozen=True)
class _Sample:
    """A case run under two seeds for its inputs."""

    case: ProblemCase
    args: list[Any]
    first: Observed
    second: Observed


def describe(
    path: str | Path,
    *,
    progress: Progress = lambda _: None,
    device: str = "cpu",
    tf32: bool = False,
    available: int | None = None,
) -> Problem:
    """Loads and runs a problem file, and says all that the other processes need to know.

    It runs on `device`, of whose memory all processes may take `available` bytes (default: the
    machine's). `progress` is told of each stage before it starts. Raises `ProblemError` for a
    file that cannot be used: see `load_problem_file`; exceptions in the user's functions;
    arguments or results that are not tensors, numbers or nests of them; results that differ from
    call to call; too little memory.
    """
    progress("importing the file")
    sizing = load_problem_file(path, device=device)
    progress("estimating the memory it needs")
    check_memory(sizing, available=available_memory() if available is None else available)
    progress("importing the file")
    file = load_problem_file(path, device=device)  # again: the first may keep empty tensors
    warnings = list(pin_precision(file, tf32=tf32))
    mode: Mode = "as_is"
    progress("constructing Model")
    built = _build_alike(file, mode)
    samples = _samples(file, built, progress)
    if samples is None:
        mode = "eval"
        built = _build_alike(file, mode)
        samples = _samples(file, built, progress)
        if samples is None:
            raise ProblemError(
                f"{file.path}: the output of Model changes from call to call on the same inputs, "
                "in eval mode too; make it a function of its inputs and buffers"
            )
        warnings.append(
            "the reference is random in the mode the file gives it (dropout?): judged in eval mode"
        )
    cases = []
    for sample in samples:
        progress(f"exporting the graph of case {sample.case.name!r}")
        case = _case(file, built, sample, mode)
        progress(f"evaluating case {sample.case.name!r} in float64")
        warnings += _lint(file, built, sample, case)
        cases.append(case)
    return Problem(
        name=file.name,
        path=str(file.path),
        folder=str(file.path.parent),
        source=file.source,
        mode=mode,
        state=tuple(
            StateSpec(
                name=name,
                kind="parameter" if isinstance(tensor, torch.nn.Parameter) else "buffer",
                tensor=spec_of(tensor),
            )
            for name, tensor in built.state.items()
        ),
        cases=tuple(cases),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def pin_precision(file: ProblemFile, *, tf32: bool = False) -> Sequence[str]:
    """Sets float32 products to full precision, or to TF32 on a GPU where the policy says so.

    Says so where the file had asked for less.
    """
    asked = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    if file.device.type == "cuda":
        pin_matmul(tf32=tf32)
    if asked == "highest" or tf32:
        return []
    return [f"the file sets the float32 matmul precision to {asked!r}: judged at 'highest'"]


def _build_alike(file: ProblemFile, mode: Mode) -> Built:
    """The reference, if two constructions under one seed agree; raises `ProblemError`."""
    built, again = (build(file, seed=_SEEDS[0], mode=mode) for _ in range(2))
    one, other = built.state, again.state
    for name, tensor in one.items():
        if str(tensor.dtype).removeprefix("torch.") not in ITEM_BYTES:
            raise ProblemError(
                f"{file.path}: the state {name!r} is {tensor.dtype}, which is not supported"
            )
        if name not in other or not same(tensor.detach(), other[name].detach()):
            raise ProblemError(
                f"{file.path}: two constructions of Model under the same seed differ in "
                f"{name!r}; draw random values from torch's generator"
            )
    return built


def _samples(file: ProblemFile, built: Built, progress: Progress) -> list[_Sample] | None:
    """Every case run under two seeds; None if a result is random."""
    samples = []
    for case in file.cases:
        where = "" if case.name == "default" else f" of case {case.name!r}"
        progress(f"making the inputs{where}")
        sets = [make_inputs(file, case, seed=seed) for seed in _SEEDS]
        for args in sets:
            _check_arguments(file, case, args)
        _check_forms(file, case, *sets)
        progress(f"running Model.forward on the inputs{where}")
        args, other = sets
        kept = _clone(args)
        first = observe(file, built, args, seed=1)
        again = observe(file, built, _clone(kept), seed=2)
        if not _agree(first, again):
            return None
        second = observe(file, built, other, seed=1)
        if _form(first) != _form(second):
            raise ProblemError(
                f"{file.path}: the shapes or plain values that Model returns{where} depend on the "
                "values of its inputs; they must not"
            )
        samples.append(_Sample(case=case, args=kept, first=first, second=second))
    return samples


def _case(file: ProblemFile, built: Built, sample: _Sample, mode: Mode) -> Case:
    names = _parameter_names(built.module)
    inputs = []
    for path, leaf in leaf_paths(sample.args):
        position, _, rest = path.partition(".")
        name = names[int(position)] if int(position) < len(names) else ""
        tensor = spec_of(leaf) if isinstance(leaf, torch.Tensor) else None
        value = None if tensor else _plain_value(leaf)
        full = f"{name}.{rest}" if name and rest else name
        inputs.append(InputSpec(path=path, name=full, tensor=tensor, value=value))
    graph, error = _graph(file, sample, mode)
    observed = sample.first
    paths = [path for path, _ in leaf_paths(sample.args)]
    changed = {*observed.inputs, *sample.second.inputs}
    buffers = {*observed.buffers, *sample.second.buffers}
    if graph is not None:
        changed |= {o.target for o in graph.outputs if o.kind == "input_mutation"}
        buffers |= {o.target for o in graph.outputs if o.kind == "buffer_mutation"}
    return Case(
        name=sample.case.name,
        weight=sample.case.weight,
        inputs=tuple(inputs),
        outputs=tuple(
            OutputSpec(path=path, tensor=spec_of(tensor))
            for path, tensor in observed.outputs.items()
        ),
        output_tree=observed.tree,
        mutated_inputs=tuple(path for path in paths if path in changed),
        mutated_buffers=tuple(name for name in built.state if name in buffers),
        aliased_outputs=observed.aliased,
        graph=graph,
        graph_error=error,
    )


def _graph(file: ProblemFile, sample: _Sample, mode: Mode) -> tuple[OperatorGraph | None, str]:
    """The graph of a case, or why there is none."""
    try:
        graph = _exported(file, sample, mode, seed=_SEEDS[0])
        constants = any(entry.kind == "constant" for entry in graph.inputs)
        if constants and _exported(file, sample, mode, seed=_SEEDS[1]) != graph:
            return None, "the constructor keeps random values outside parameters and buffers"
    except (KeyboardInterrupt, ProblemError):
        raise
    except BaseException as error:  # torch.export raises anything, also from the user's code
        text = " ".join(str(error).split())[:_ERROR_LIMIT]
        return None, f"torch.export: {type(error).__name__}: {text}"
    return _confirmed(graph, sample)


def _exported(file: ProblemFile, sample: _Sample, mode: Mode, *, seed: int) -> OperatorGraph:
    module = build(file, seed=seed, mode=mode).module
    paths = tuple(path for path, _ in leaf_paths(sample.args))
    graph = export_graph(module, tuple(_clone(sample.args)), paths=paths)
    places = [k for k, is_tensor in enumerate(sample.first.leaves) if is_tensor]
    outputs = tuple(
        output.replaced(target=str(places.index(int(output.target))))
        if output.kind == "output"
        else output
        for output in graph.outputs
    )
    return graph.replaced(outputs=outputs)


def _confirmed(graph: OperatorGraph, sample: _Sample) -> tuple[OperatorGraph | None, str]:
    """The graph, if it gives and changes what the reference did when it ran."""
    observed = sample.first
    specs = [graph.spec(o.value) for o in graph.outputs if o.kind == "output"]
    real = [spec_of(tensor) for tensor in observed.outputs.values()]
    if [(s.shape, s.dtype) for s in specs] != [(s.shape, s.dtype) for s in real]:
        return None, "the exported graph's outputs are not those of the reference"
    for kind, changed in (
        ("input_mutation", {*observed.inputs, *sample.second.inputs}),
        ("buffer_mutation", {*observed.buffers, *sample.second.buffers}),
    ):
        missing = changed - {o.target for o in graph.outputs if o.kind == kind}
        if missing:
            return None, f"the exported graph does not write to {sorted(missing)[0]!r}"
    return graph, ""


def _lint(file: ProblemFile, built: Built, sample: _Sample, case: Case) -> list[str]:
    """Findings that weaken a verdict: constant results, results near zero, no float64."""
    where = "" if case.name == "default" else f"case {case.name!r}: "
    warnings = []
    for path, tensor in sample.first.outputs.items():
        label = f"output {path!r}" if path else "the output"
        if tensor.is_floating_point() and same(tensor, sample.second.outputs[path]):
            warnings.append(f"{where}{label} does not depend on the random inputs")
    floats = [t for t in sample.first.outputs.values() if t.is_floating_point() and t.numel()]
    if floats and len(floats) == len(sample.first.outputs) and all(map(_near_zero, floats)):
        warnings.append(f"{where}zeros would pass KernelBench's tolerance")
    writes = replace(
        writes_of(sample.first), inputs=case.mutated_inputs, buffers=case.mutated_buffers
    )
    expected = expectation(file, built, sample.args, writes, seed=1)
    if expected.warning:
        warnings.append(
            f"{where}no float64 evaluation, judged against PyTorch's own: {expected.warning}"
        )
    elif expected.unsound and expected.finite:
        warnings.append(f"{where}imprecise on its own inputs: {expected.unsound}")
    return warnings


def _near_zero(tensor: torch.Tensor) -> bool:
    name = str(tensor.dtype).removeprefix("torch.")
    return bool((tensor.abs() <= KERNELBENCH_TOLERANCE.get(name, 1e-4)).all())


def _check_arguments(file: ProblemFile, case: ProblemCase, args: Sequence[Any]) -> None:
    for path, leaf in leaf_paths(args):
        what = f"{file.path}: argument {path!r} of case {case.name!r}"
        if isinstance(leaf, torch.Tensor):
            if leaf.layout != torch.strided or leaf.is_quantized:
                raise ProblemError(f"{what} is not a dense tensor")
            if leaf.device.type != file.device.type:
                raise ProblemError(f"{what} is on {leaf.device}; make it on the CPU")
            if str(leaf.dtype).removeprefix("torch.") not in ITEM_BYTES:
                raise ProblemError(f"{what} is {leaf.dtype}, which is not supported")
        elif not plain_argument(leaf):
            raise ProblemError(
                f"{what} is a {type(leaf).__module__}.{type(leaf).__name__}; tensors, numbers and "
                "nests of them can be passed"
            )


def _check_forms(
    file: ProblemFile, case: ProblemCase, one: Sequence[Any], other: Sequence[Any]
) -> None:
    forms = [
        [
            (path, *_shape(leaf)) if isinstance(leaf, torch.Tensor) else (path, repr(leaf))
            for path, leaf in leaf_paths(args)
        ]
        for args in (one, other)
    ]
    if forms[0] != forms[1]:
        raise ProblemError(
            f"{file.path}: the shapes or numbers of the inputs of case {case.name!r} change from "
            "call to call; fix them, or list several cases in get_cases()"
        )


def _agree(one: Observed, other: Observed) -> bool:
    if _form(one) != _form(other):
        return False
    for left, right in (
        (one.outputs, other.outputs),
        (one.inputs, other.inputs),
        (one.buffers, other.buffers),
    ):
        if left.keys() != right.keys():
            return False
        if not all(_close(tensor, right[key]) for key, tensor in left.items()):
            return False
    return True


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    if same(one, other):
        return True
    if not one.is_floating_point():
        return False
    scale = one.to(torch.float64).nan_to_num(0.0, 0.0, 0.0).square().mean().sqrt()
    tolerance = _REORDERED * torch.finfo(one.dtype).eps
    return torch.allclose(one, other, rtol=tolerance, atol=tolerance * float(scale), equal_nan=True)


def _form(observed: Observed) -> tuple[Any, ...]:
    shapes = tuple((path, *_shape(t)) for path, t in observed.outputs.items())
    return repr(observed.tree), shapes


def _shape(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), str(tensor.dtype)


def _plain_value(leaf: Any) -> Any:
    if isinstance(leaf, float) and not math.isfinite(leaf):
        return {"float": repr(leaf)}
    return str(leaf) if isinstance(leaf, torch.dtype | torch.device) else leaf


def _parameter_names(module: torch.nn.Module) -> list[str]:
    positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind in positional]


def _clone(args: Sequence[Any]) -> list[Any]:
    return list(
        torch.utils._pytree.tree_map(
            lambda leaf: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf,
            list(args),
        )
    )


__all__ = ["Progress", "Writes", "describe", "pin_precision"]
