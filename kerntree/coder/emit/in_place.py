"""Which results of a kernel may be written straight into the inputs that they replace."""

from collections.abc import Sequence

from kerntree.coder.kernel import Kernel, Store
from kerntree.coder.lowering import build_kernel, can_store_in_place
from kerntree.coder.program import Group
from kerntree.plans.graph import OperatorGraph, operands
from kerntree.plans.roofline import FREE


def replaced_inputs(
    graph: OperatorGraph, groups: Sequence[Group], position: int, language: str
) -> dict[str, str]:
    """Values that the kernel of a group may write straight into the inputs that they replace."""
    group = groups[position]
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
        views = _views_of(graph, tensor.name)
        if views & (read_later | returned) or (views - {tensor.name}).intersection(kernel.reads):
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
