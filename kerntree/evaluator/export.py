"""The operator graph of a module, by `torch.export` with core ATen decompositions."""

import math
import operator
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from pydantic import JsonValue
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from kerntree.plans.graph import GraphInput, GraphOutput, Node, OperatorGraph, TensorSpec

_SMALL_CONSTANT = 64  # elements whose values travel with the graph


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """Shape, dtype and strides of a tensor; raises `ValueError` for symbolic sizes."""
    sizes = [*tensor.shape, *tensor.stride()]
    if not all(isinstance(size, int) for size in sizes):
        raise ValueError("sizes that depend on data")
    return TensorSpec(
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        strides=tuple(tensor.stride()),
    )


def export_graph(
    module: torch.nn.Module, args: tuple[Any, ...], *, paths: tuple[str, ...] | None = None
) -> OperatorGraph:
    """The graph of `module(*args)` as plain data; raises whatever `torch.export` raises.

    `paths` name the flattened tensor and number leaves of `args` (default: `"0"`, `"1"`, …).
    """
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        exported = torch.export.export(module, args, strict=False).run_decompositions()
    return graph_of(exported, paths=paths)


def graph_of(exported: ExportedProgram, *, paths: tuple[str, ...] | None = None) -> OperatorGraph:
    """An exported program as plain data; raises `ValueError` for what has no plain form."""
    signature = exported.graph_signature
    metas = {node.name: node.meta.get("val") for node in exported.graph.nodes}
    inputs, user = [], 0
    targets: dict[str, str] = {}
    for entry in signature.input_specs:
        name = getattr(entry.arg, "name", "")
        if entry.kind is InputKind.USER_INPUT:
            target = paths[user] if paths else str(user)
            user += 1
            targets[name] = target
            if not isinstance(metas.get(name), torch.Tensor):
                continue
            inputs.append(
                GraphInput(name=name, kind="user", target=target, spec=spec_of(metas[name]))
            )
        else:
            inputs.append(_lifted(exported, entry, name, metas))
    nodes = [
        _node(node, metas)
        for node in exported.graph.nodes
        if node.op == "call_function" and metas[node.name] is not None  # assertions return nothing
    ]
    outputs, index = [], 0
    for out in signature.output_specs:
        value = getattr(out.arg, "name", "")
        if out.kind is OutputKind.USER_OUTPUT:
            if isinstance(metas.get(value), torch.Tensor):
                outputs.append(GraphOutput(kind="output", value=value, target=str(index)))
            index += 1
        elif out.kind is OutputKind.USER_INPUT_MUTATION:
            path = targets[str(out.target)]
            outputs.append(GraphOutput(kind="input_mutation", value=value, target=path))
        elif out.kind is OutputKind.BUFFER_MUTATION:
            outputs.append(GraphOutput(kind="buffer_mutation", value=value, target=str(out.target)))
        else:
            raise ValueError(f"an output of kind {out.kind.name}")
    return OperatorGraph(inputs=tuple(inputs), nodes=tuple(nodes), outputs=tuple(outputs))


def _lifted(
    exported: ExportedProgram, entry: Any, name: str, metas: Mapping[str, Any]
) -> GraphInput:
    kinds = {
        InputKind.PARAMETER: "parameter",
        InputKind.BUFFER: "buffer",
        InputKind.CONSTANT_TENSOR: "constant",
    }
    if entry.kind not in kinds:
        raise ValueError(f"an input of kind {entry.kind.name}")
    kind, values = kinds[entry.kind], None
    if kind == "constant":
        constant = exported.constants[entry.target]
        if isinstance(constant, torch.Tensor) and constant.numel() <= _SMALL_CONSTANT:
            values = tuple(constant.detach().flatten().tolist())
    return GraphInput.model_validate(
        {
            "name": name,
            "kind": kind,
            "target": str(entry.target),
            "spec": spec_of(metas[name]),
            "values": values,
        }
    )


def _node(node: torch.fx.Node, metas: Mapping[str, Any]) -> Node:
    if node.target is operator.getitem:
        target = "getitem"
    elif isinstance(node.target, torch._ops.OpOverload):
        target = str(node.target)
    else:
        raise ValueError(f"a call of {node.target}")
    value = metas[node.name]
    tensors = list(value) if isinstance(value, tuple | list) else [value]
    if not all(isinstance(t, torch.Tensor) for t in tensors if t is not None):
        raise ValueError(f"{target} gives a value that is not a tensor")
    return Node(
        name=node.name,
        target=target,
        args=tuple(_plain(arg) for arg in node.args),
        kwargs={key: _plain(arg) for key, arg in node.kwargs.items()},
        outputs=tuple(spec_of(t) for t in tensors if t is not None),
    )


def _plain(value: Any) -> JsonValue:
    match value:
        case torch.fx.Node():
            return {"ref": value.name}
        case float() if not math.isfinite(value):
            return {"float": repr(value)}
        case None | bool() | int() | float() | str():
            return value
        case list() | tuple():
            return [_plain(item) for item in value]
        case torch.dtype():
            return {"dtype": str(value).removeprefix("torch.")}
        case torch.device():
            return {"device": str(value)}
        case torch.layout():
            return {"layout": str(value).removeprefix("torch.")}
        case torch.memory_format():
            return {"memory_format": str(value).removeprefix("torch.")}
    raise ValueError(f"an argument of type {type(value).__name__}")
