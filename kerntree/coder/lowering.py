"""A closed group of operators as one kernel, or the reason why they do not fit one."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from pydantic import JsonValue

from kerntree.coder.assembly import assemble
from kerntree.coder.builder import Builder, Value
from kerntree.coder.errors import CannotLowerError
from kerntree.coder.kernel import At, Index, Kernel, Load, LoadIndexed, Store
from kerntree.coder.operators import OPERATORS, Call
from kerntree.coder.passes import point_values, results, uses
from kerntree.coder.pieces import Form, in_pieces, moves_pieces, unchanged
from kerntree.plans.graph import ITEM_BYTES, GraphInput, Node, OperatorGraph, operands

_SMALL_CONSTANT = 1  # elements: larger ones are read from memory like a parameter


def build_kernel(graph: OperatorGraph, nodes: Sequence[str], *, name: str) -> Kernel:
    """The loop nest of these nodes (names in graph order).

    What the rest of the graph reads of them is written to fresh contiguous tensors, piece by piece
    where it is put together; the rest stays in registers. Tensors from outside are taken as
    contiguous. Raises `CannotLowerError`.
    """
    return _build(_Hashed(graph), tuple(nodes), name)


class _Hashed:
    """A graph that is equal only to itself, so that the cache need not digest it."""

    def __init__(self, graph: OperatorGraph) -> None:
        self.graph = graph

    def __hash__(self) -> int:
        return id(self.graph)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Hashed) and other.graph is self.graph


@lru_cache(maxsize=8192)
def _outcome(hashed: _Hashed, nodes: tuple[str, ...], name: str) -> Kernel | CannotLowerError:
    try:
        return _lower(hashed.graph, nodes, name)
    except CannotLowerError as error:
        return error


def _build(hashed: _Hashed, nodes: tuple[str, ...], name: str) -> Kernel:
    outcome = _outcome(hashed, nodes, name)
    if isinstance(outcome, CannotLowerError):
        raise CannotLowerError(str(outcome))
    return outcome


def escaping(graph: OperatorGraph, nodes: Sequence[str]) -> list[str]:
    """The values of a group that the rest of the graph, or the caller, reads; in graph order."""
    inside = set(nodes)
    used = {output.value for output in graph.outputs}
    for node in graph.nodes:
        if node.name not in inside:
            used.update(operands(node))
    return [name for name in nodes if name in used]


def can_store_in_place(kernel: Kernel, value: str, tensor: str) -> bool:
    """Whether `value` may be written into the memory of `tensor`, which the kernel reads.

    It may if every read of the tensor is at an element that the same point of the domain writes,
    and the write comes after all reading passes (as writes do). An element that is gathered from
    the tensor is another point's, which may have been written before it is read.
    """
    if any(tensor in _gathered_from(kernel, i) for i in kernel.body if isinstance(i, At)):
        return False
    stores = [i for i in kernel.body if isinstance(i, Store) and i.access.tensor == value]
    written = {(store.access.strides, store.access.offset) for store in stores}
    for instruction in kernel.body:
        if isinstance(instruction, LoadIndexed) and instruction.access.tensor == tensor:
            return False
        if isinstance(instruction, Load) and instruction.access.tensor == tensor:
            place = (instruction.access.strides, instruction.access.offset)
            if place not in written or instruction.dtype != stores[0].dtype:
                return False
    return bool(stores)


def _gathered_from(kernel: Kernel, at: At) -> set[str]:
    """The tensors that are read anew at the gathered position."""
    needed = {at.operand} & point_values(kernel)
    tensors = set()
    for instruction in reversed(kernel.body):
        if needed.intersection(results(instruction)):
            needed.update(name for name in uses(instruction) if name in point_values(kernel))
            if isinstance(instruction, Load | LoadIndexed):
                tensors.add(instruction.access.tensor)
    return tensors


def _lower(graph: OperatorGraph, nodes: tuple[str, ...], name: str) -> Kernel:
    written = escaping(graph, nodes)
    if not written:
        raise CannotLowerError("nothing reads what these operators compute")
    by_name = {node.name: node for node in graph.nodes}
    own = [by_name[n] for n in nodes]
    try:
        return _lower_form(graph, unchanged(own, written), name)
    except CannotLowerError as error:
        if not moves_pieces(own):
            raise
        reason = error
    for form in in_pieces(graph, nodes, written):
        try:
            return _lower_form(graph, form, name)
        except CannotLowerError as error:
            reason = error
    raise reason


def _lower_form(graph: OperatorGraph, form: Form, name: str) -> Kernel:
    builder = Builder()
    value = _values(builder, graph, form)
    # all is read before anything is written, which may be in place of what is read
    pieces = [
        (r, [(builder.cast(value(n), r.spec.dtype), region) for n, region in r.pieces])
        for r in form.results
    ]
    for result, registers in pieces:
        builder.store(result.tensor, registers, result.spec)
    kernel = assemble(builder, name=name)
    if not any(isinstance(i, Load | LoadIndexed | Index) for i in kernel.body):
        raise CannotLowerError("a constant needs no kernel")
    return kernel


def _values(builder: Builder, graph: OperatorGraph, form: Form) -> Callable[[str], Value]:
    """Lowers the operators; gives their values, and those of tensors outside, by name."""
    inside = {node.name for node in form.nodes}
    known: dict[str, Value] = {}
    several: dict[str, tuple[Value | None, ...]] = {}
    inputs = {entry.name: entry for entry in graph.inputs}
    by_name = {node.name: node for node in graph.nodes}

    def value(ref: str) -> Value:
        if ref in known:
            return known[ref]
        if ref in inside:
            raise CannotLowerError(f"{ref} has several results and is read as one")
        known[ref] = (
            _from_input(builder, inputs[ref])
            if ref in inputs
            else builder.external(ref, _checked(by_name[ref]).outputs[0])
        )
        return known[ref]

    for node in form.nodes:
        if node.target == "getitem":
            known[node.name] = _item(node, several)
            continue
        if node.target not in OPERATORS:
            raise CannotLowerError(f"{node.target} has no loop nest of ours")
        result = OPERATORS[node.target](Call(builder, _checked(node), value, graph))
        if isinstance(result, tuple):
            several[node.name] = result
        else:
            known[node.name] = result
    return value


def _item(node: Node, several: Mapping[str, tuple[Value | None, ...]]) -> Value:
    source, item = _getitem(node)
    if source not in several:
        raise CannotLowerError(f"{node.name} takes a result of a torch call")
    taken = several[source][item] if item < len(several[source]) else None
    if taken is None:
        raise CannotLowerError(f"{node.name}: this result of {source} has no loop nest")
    return taken


def _from_input(builder: Builder, entry: GraphInput) -> Value:
    if entry.kind == "constant" and entry.spec.elements <= _SMALL_CONSTANT and entry.values:
        constant = builder.constant(entry.values[0], entry.spec.dtype)
        return builder.reshaped_constant(constant, entry.spec.shape)
    if entry.spec.dtype not in ITEM_BYTES or entry.spec.dtype.startswith("complex"):
        raise CannotLowerError(f"{entry.name} has type {entry.spec.dtype}")
    return builder.external(entry.name, entry.spec)


def _checked(node: Node) -> Node:
    for spec in node.outputs:
        if spec.dtype not in ITEM_BYTES or spec.dtype.startswith("complex"):
            raise CannotLowerError(f"{node.name} has type {spec.dtype}")
    if node.outputs[0].elements == 0:
        raise CannotLowerError(f"{node.name} is empty")
    return node


def _getitem(node: Node) -> tuple[str, int]:
    source: JsonValue = node.args[0]
    item = node.args[1]
    if isinstance(source, dict) and isinstance(item, int):
        return str(source["ref"]), item
    raise CannotLowerError(f"{node.name} takes no plain result")
