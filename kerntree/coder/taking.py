"""What the operators of a group become where only regions of their results are asked for."""

from collections.abc import Callable, Mapping, Sequence

from pydantic import JsonValue

from kerntree.coder.errors import CannotLowerError
from kerntree.coder.operators.pointwise import POINTWISE
from kerntree.coder.regions import (
    Region,
    Run,
    StraddlesError,
    before_view,
    broadcast_to,
    run,
    shape_of,
    whole,
)
from kerntree.plans.graph import Node, OperatorGraph, TensorSpec, contiguous


class Taken:
    """The operators that compute the regions taken so far; each region is computed once."""

    def __init__(self, inside: Mapping[str, Node], specs: Mapping[str, TensorSpec]) -> None:
        """`inside` are the operators of the group, `specs` those of all values of the graph."""
        self.inside = inside
        self.specs = specs
        self.nodes: list[Node] = []
        self._known: dict[tuple[str, Region], str] = {}

    def anew(self) -> "Taken":
        """The same operators, of which nothing has been taken yet."""
        return Taken(self.inside, self.specs)

    def take(self, name: str, region: Region) -> str:
        """The name of the value that lies in a region of another."""
        key = (name, region)
        if key not in self._known:
            node = self.inside.get(name)
            if node is None:
                self._known[key] = self._read(name, region)
            else:
                take = _TAKERS.get(node.target, _take_whole)
                self._known[key] = take(self, node, region)
        return self._known[key]

    def put(self, node: Node, region: Region, **changed: object) -> str:
        """Adds an operator that computes what lies in a region of a node's result."""
        own = f"{node.name} at {len(self.nodes)}"
        name = node.name if region == whole(node.outputs[0].shape) else own
        spec = contiguous(shape_of(region), node.outputs[0].dtype)
        fields = {"name": name, "outputs": (spec,), **changed}
        self.nodes.append(node.model_copy(update=fields))
        return name

    def _read(self, name: str, region: Region) -> str:
        """Slices of what is in memory, dimension by dimension."""
        shape, dtype = list(self.specs[name].shape), self.specs[name].dtype
        for d, r in enumerate(region):
            if r.count == shape[d]:
                continue
            shape[d] = r.count
            args: tuple[JsonValue, ...] = ({"ref": name}, d, r.start, r.last + 1, r.step)
            name = f"{name} at {len(self.nodes)}"
            spec = contiguous(tuple(shape), dtype)
            node = Node(name=name, target="aten.slice.Tensor", args=args, outputs=(spec,))
            self.nodes.append(node)
        return name


def none_taken(graph: OperatorGraph, nodes: Sequence[str]) -> Taken:
    """The operators of a group, of which nothing has been taken yet."""
    inside = set(nodes)
    specs = {entry.name: entry.spec for entry in graph.inputs}
    specs |= {node.name: node.outputs[0] for node in graph.nodes if node.outputs}
    return Taken({node.name: node for node in graph.nodes if node.name in inside}, specs)


Taker = Callable[[Taken, Node, Region], str]


def _with_refs(value: JsonValue, name: Callable[[str], str]) -> JsonValue:
    if isinstance(value, dict) and isinstance(value.get("ref"), str):
        return {"ref": name(str(value["ref"]))}
    if isinstance(value, list):
        return [_with_refs(item, name) for item in value]
    return value


def _put(taken: Taken, node: Node, region: Region, operand: Callable[[TensorSpec], Region]) -> str:
    """The same operator on regions of its operands."""

    def name(ref: str) -> str:
        return taken.take(ref, operand(taken.specs[ref]))

    args = tuple(_with_refs(arg, name) for arg in node.args)
    kwargs = {key: _with_refs(arg, name) for key, arg in node.kwargs.items()}
    return taken.put(node, region, args=args, kwargs=kwargs)


def _source(node: Node, position: int = 0) -> str:
    source = node.args[position]
    if isinstance(source, dict) and isinstance(source.get("ref"), str):
        return str(source["ref"])
    raise CannotLowerError(f"{node.target} without its tensor operand")


def _whole_number(node: Node, position: int, default: int) -> int:
    value = node.args[position] if position < len(node.args) else None
    return value if isinstance(value, int) else default


def _take_whole(taken: Taken, node: Node, region: Region) -> str:
    if region != whole(node.outputs[0].shape):
        raise CannotLowerError(f"a part of what {node.name} ({node.target}) computes as a whole")
    return _put(taken, node, region, lambda spec: whole(spec.shape))


def _take_point(taken: Taken, node: Node, region: Region) -> str:
    return _put(taken, node, region, lambda spec: broadcast_to(region, spec.shape))


def _take_copy(taken: Taken, node: Node, region: Region) -> str:
    """The old tensor gives its shape alone."""
    source = _source(node, 1)
    piece = taken.take(source, broadcast_to(region, taken.specs[source].shape))
    return taken.put(node, region, args=({"ref": piece}, {"ref": piece}))


def _take_where(taken: Taken, node: Node, region: Region) -> str:
    """Where a comparison of positions is the same all over a region, one branch is left."""
    condition = _source(node, 0)
    there = broadcast_to(region, taken.specs[condition].shape)
    known = _compared_positions(taken, condition, there)
    if known is None:
        return _take_point(taken, node, region)
    branch = node.args[1 if known[0] else 2]
    if len(set(known)) > 1:
        raise StraddlesError("a piece lies across the boundary of two parts")
    if not (isinstance(branch, dict) and "ref" in branch):
        return _take_point(taken, node, region)
    args: tuple[JsonValue, ...] = (branch, branch)
    chosen = node.model_copy(update={"target": "aten.copy.default", "args": args})
    return _take_copy(taken, chosen, region)


def _compared_positions(taken: Taken, name: str, region: Region) -> list[bool] | None:
    """What `arange(n).view(...) == number` is in a region; None for any other value."""
    node = taken.inside.get(name)
    if node is None or node.target != "aten.eq.Scalar" or not isinstance(node.args[1], int):
        return None
    below = taken.inside.get(_source(node))
    while below is not None and below.target in _VIEWS:
        shape = taken.specs[_source(below)].shape
        region = before_view(region, below.outputs[0].shape, shape)
        below = taken.inside.get(_source(below))
    if below is None or below.target != "aten.arange.start_step":
        return None
    start, step = _whole_number(below, 0, 0), _whole_number(below, 2, 1)
    (r,) = region
    return [start + step * (r.start + r.step * k) == node.args[1] for k in range(r.count)]


def _take_view(taken: Taken, node: Node, region: Region) -> str:
    shape = node.outputs[0].shape
    return _put(taken, node, region, lambda spec: before_view(region, shape, spec.shape))


def _take_permuted(taken: Taken, node: Node, region: Region) -> str:
    rank = len(region)
    order = list(range(rank))
    if node.target == "aten.permute.default":
        listed = node.args[1]
        assert isinstance(listed, list)
        order = [int(str(d)) % rank for d in listed]
    elif node.target == "aten.t.default":
        order.reverse()
    else:
        i, j = (_whole_number(node, k, 0) % rank for k in (1, 2))
        order[i], order[j] = order[j], order[i]
    before = tuple(region[order.index(d)] for d in range(rank))
    return _put(taken, node, region, lambda _: before)


def _sliced(extent: int, node: Node, first: int) -> Run:
    """The positions of a slice whose start, end and step are arguments from `first` on."""
    start = _whole_number(node, first, 0)
    end = _whole_number(node, first + 1, extent)
    step = _whole_number(node, first + 2, 1)
    start, end = (min(max(k + extent if k < 0 else k, 0), extent) for k in (start, end))
    return run(start, step, max(0, -((start - end) // step)))


def _along(region: Region, d: int, r: Run) -> Region:
    return (*region[:d], r, *region[d + 1 :])


def _take_slice(taken: Taken, node: Node, region: Region) -> str:
    source = _source(node)
    d = _whole_number(node, 1, 0) % len(region)
    outer = _sliced(taken.specs[source].shape[d], node, 2)
    return taken.take(source, _along(region, d, region[d].within(outer)))


def _take_select(taken: Taken, node: Node, region: Region) -> str:
    source = _source(node)
    shape = taken.specs[source].shape
    d = _whole_number(node, 1, 0) % len(shape)
    position = _whole_number(node, 2, 0) % shape[d]
    part = taken.take(source, (*region[:d], Run(position, 1, 1), *region[d:]))
    return _viewed(taken, node, region, part)


def _viewed(taken: Taken, node: Node, region: Region, part: str) -> str:
    return taken.put(node, region, target="aten.view.default", args=({"ref": part},), kwargs={})


def _take_item(taken: Taken, node: Node, region: Region) -> str:
    """A part of a split tensor, or one result of an operator that has several."""
    split = taken.inside.get(_source(node))
    if split is None:
        raise CannotLowerError(f"{node.name} takes a result of a torch call")
    number = _whole_number(node, 1, 0)
    if split.target not in _SPLITS:
        return _take_result(taken, split, node, region)
    source = _source(split)
    rank = len(taken.specs[source].shape)
    if split.target == "aten.unbind.int":
        d = _whole_number(split, 1, 0) % rank
        part = taken.take(source, (*region[:d], Run(number, 1, 1), *region[d:]))
        return _viewed(taken, node, region, part)
    d = _whole_number(split, 2, 0) % rank
    start = sum(spec.shape[d] for spec in split.outputs[:number])
    outer = run(start, 1, split.outputs[number].shape[d])
    return taken.take(source, _along(region, d, region[d].within(outer)))


def _take_result(taken: Taken, source: Node, node: Node, region: Region) -> str:
    if region != whole(node.outputs[0].shape):
        raise CannotLowerError(f"a part of what {source.name} ({source.target}) computes")
    taken.take(source.name, whole(source.outputs[0].shape))
    return taken.put(node, region)


def _take_cat(taken: Taken, node: Node, region: Region) -> str:
    parts = node.args[0]
    assert isinstance(parts, list)
    d, start = _whole_number(node, 1, 0) % len(region), 0
    for part in parts:
        assert isinstance(part, dict)
        spec = taken.specs[str(part["ref"])]
        if spec.dtype != node.outputs[0].dtype:
            raise CannotLowerError(f"{node.name} puts together parts of several types")
        if len(spec.shape) != len(region):  # torch lets an empty part have any shape
            continue
        seen = region[d].seen_from(Run(start, 1, spec.shape[d])) if spec.shape[d] else None
        if seen is not None:
            return taken.take(str(part["ref"]), _along(region, d, seen))
        start += spec.shape[d]
    raise CannotLowerError(f"{node.name} has no such part")


def _take_stack(taken: Taken, node: Node, region: Region) -> str:
    parts = node.args[0]
    assert isinstance(parts, list)
    d = _whole_number(node, 1, 0) % len(region)
    if region[d].count > 1:
        raise StraddlesError("a piece lies across the boundary of two parts")
    part = parts[region[d].start]
    assert isinstance(part, dict)
    found = taken.take(str(part["ref"]), (*region[:d], *region[d + 1 :]))
    return _viewed(taken, node, region, found)


def _take_scattered(taken: Taken, node: Node, region: Region) -> str:
    """What was put into a slice, or what lies beside it of the old tensor."""
    old, new = _source(node, 0), _source(node, 1)
    shape = taken.specs[old].shape
    d = _whole_number(node, 2, 0) % len(shape)
    if node.target == "aten.select_scatter.default":
        where = Run(_whole_number(node, 3, 0) % shape[d], 1, 1)
    else:
        where = _sliced(shape[d], node, 3)
    seen = region[d].seen_from(where) if where.count else None
    if seen is None:
        return taken.take(old, region)
    if node.target == "aten.select_scatter.default":
        found = taken.take(new, (*region[:d], *region[d + 1 :]))
        return _viewed(taken, node, region, found)
    return taken.take(new, _along(region, d, seen))


def _take_reduced(taken: Taken, node: Node, region: Region) -> str:
    """A reduction needs all that it reduces, and of the other dimensions what is asked for."""
    listed = node.args[1] if len(node.args) > 1 else None
    shape = taken.specs[_source(node)].shape
    rank = len(shape)
    if region == whole(node.outputs[0].shape) or not isinstance(listed, int | list):
        return _take_whole(taken, node, region)
    dims = {int(str(d)) % rank for d in (listed if isinstance(listed, list) else [listed])}
    rest = list(region)
    before = []
    for d in range(rank):
        kept = d not in dims or len(region) == rank
        mine = rest.pop(0) if kept else None
        before.append(Run(0, 1, shape[d]) if d in dims or mine is None else mine)
    return _put(taken, node, region, lambda _: tuple(before))


def _take_softmax(taken: Taken, node: Node, region: Region) -> str:
    d = _whole_number(node, 1, 0) % max(len(region), 1)
    if region and region[d].count != node.outputs[0].shape[d]:
        raise CannotLowerError(f"a part of the rows of {node.name}")
    return _put(taken, node, region, lambda _: region)


def _take_positions(taken: Taken, node: Node, region: Region) -> str:
    (r,) = region
    start, step = _whole_number(node, 0, 0), _whole_number(node, 2, 1)
    args = (start + step * r.start, start + step * (r.last + 1), step * r.step)
    return taken.put(node, region, args=args)


_VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        "view.default", "_unsafe_view.default", "reshape.default", "unsqueeze.default",
        "squeeze.default", "squeeze.dim", "squeeze.dims", "flatten.default",
    )
)  # fmt: skip
_SPLITS = frozenset(
    {"aten.split_with_sizes.default", "aten.split.Tensor", "aten.chunk.default", "aten.unbind.int"}
)
MOVES: frozenset[str] = _SPLITS | {
    "aten.slice.Tensor", "aten.select.int", "aten.cat.default", "aten.stack.default",
    "aten.slice_scatter.default", "aten.select_scatter.default",
}  # fmt: skip
_TAKERS: Mapping[str, Taker] = {
    **dict.fromkeys(POINTWISE, _take_point),
    "aten.arange.default": _take_whole,
    "aten.arange.start_step": _take_positions,
    **{
        f"aten.{name}.default": _take_point
        for name in ("clone", "alias", "detach", "lift_fresh_copy", "expand")
    },
    **{
        f"aten.{name}": _take_reduced
        for name in (
            "sum.dim_IntList", "mean.dim", "prod.dim_int", "amax.default", "amin.default",
            "any.dim", "any.dims", "all.dim",
        )
    },
    "aten._softmax.default": _take_softmax,
    "aten._log_softmax.default": _take_softmax,
    "aten.where.self": _take_where,
    "aten.copy.default": _take_copy,
    **dict.fromkeys(_VIEWS, _take_view),
    "aten.permute.default": _take_permuted,
    "aten.transpose.int": _take_permuted,
    "aten.t.default": _take_permuted,
    "aten.slice.Tensor": _take_slice,
    "aten.select.int": _take_select,
    "getitem": _take_item,
    "aten.cat.default": _take_cat,
    "aten.stack.default": _take_stack,
    "aten.slice_scatter.default": _take_scattered,
    "aten.select_scatter.default": _take_scattered,
}  # fmt: skip
