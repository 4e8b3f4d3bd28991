"""A group of operators in pieces: slices sink to what it reads, concatenations float to results.

Every result is cut into equal pieces, so that each needs one part of every concatenation alone, and
nothing inside is sliced or put together any more: `f(x)[a:b]` becomes `f(x[a:b])`, and
`f(cat(a, b))` the pieces `f(a)` and `f(b)`. A piece that several need is computed once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from math import prod

from kerntree.coder.errors import CannotLowerError
from kerntree.coder.regions import Region, StraddlesError, run, shape_of, whole
from kerntree.coder.taking import MOVES, Taken, none_taken
from kerntree.plans.graph import Node, OperatorGraph, TensorSpec

_MOST_PIECES = 8
_MOST_FORMS = 16  # ways to cut several results that are tried

Cut = tuple[Region, ...]


@dataclass(frozen=True)
class Result:
    """A tensor that a group writes: its pieces by name, each with its region of the tensor."""

    tensor: str
    spec: TensorSpec
    pieces: tuple[tuple[str, Region], ...]


@dataclass(frozen=True)
class Form:
    """Operators to lower in this order, and what is written of them."""

    nodes: tuple[Node, ...]
    results: tuple[Result, ...]


def unchanged(nodes: Sequence[Node], written: Sequence[str]) -> Form:
    """The operators as they are, their results whole."""
    specs = {node.name: node.outputs[0] for node in nodes}
    results = (Result(n, specs[n], ((n, whole(specs[n].shape)),)) for n in written)
    return Form(tuple(nodes), tuple(results))


def moves_pieces(nodes: Sequence[Node]) -> bool:
    """Whether some operator takes part of a tensor, or puts parts together."""
    return any(node.target in MOVES for node in nodes)


def in_pieces(graph: OperatorGraph, nodes: Sequence[str], written: Sequence[str]) -> Iterator[Form]:
    """Forms without slices of computed values and without concatenations, fewest pieces first.

    Where results are of different sizes, forms whose pieces are all of one size follow. Raises
    `CannotLowerError` if a result is none of at most eight equal pieces.
    """
    group = none_taken(graph, nodes)
    first = [_first_cut(group, name) for name in written]
    yield _form(group, dict(zip(written, first, strict=True)))
    size = min(_elements(cut) for cut in first)
    if all(_elements(cut) == size for cut in first):
        return
    alike = [
        [cut] if _elements(cut) == size else list(_cuts(group, name, size)) or [cut]
        for name, cut in zip(written, first, strict=True)
    ]
    for cuts in islice(product(*alike), _MOST_FORMS):
        yield _form(group, dict(zip(written, cuts, strict=True)))


def _first_cut(group: Taken, name: str) -> Cut:
    cut = next(_cuts(group, name), None)
    if cut is None:
        raise CannotLowerError(
            f"{name} is put together from parts that do not make up {_MOST_PIECES} equal pieces "
            "or fewer along one dimension"
        )
    return cut


def _elements(cut: Cut) -> int:
    return prod(shape_of(cut[0]))


def _cuts(group: Taken, name: str, size: int | None = None) -> Iterator[Cut]:
    """The cuts of one result, of that many elements a piece, that can be computed piece by piece.

    Raises `CannotLowerError` if there are none for a reason that more pieces would not mend.
    """
    reason: CannotLowerError | None = None
    for cut in _candidates(group.specs[name].shape):
        if size is not None and _elements(cut) != size:
            continue
        taken = group.anew()
        try:
            for region in cut:
                taken.take(name, region)
        except StraddlesError:
            continue
        except CannotLowerError as error:
            reason = reason or error
            continue
        yield cut
    if reason is not None and size is None:
        raise reason


def _candidates(shape: tuple[int, ...]) -> Iterator[Cut]:
    """Equal pieces of a tensor: blocks along a dimension, or every so many positions of it."""
    yield (whole(shape),)
    for count in range(2, _MOST_PIECES + 1):
        for blocks in (True, False):
            for d in reversed(range(len(shape))):
                each, rest = divmod(shape[d], count)
                if rest or not each or (each == 1 and not blocks):
                    continue
                runs = [
                    run(k * each, 1, each) if blocks else run(k, count, each) for k in range(count)
                ]
                yield tuple((*whole(shape[:d]), r, *whole(shape[d + 1 :])) for r in runs)


def _form(group: Taken, cuts: Mapping[str, Cut]) -> Form:
    taken = group.anew()
    results = tuple(
        Result(
            name,
            group.specs[name],
            tuple((taken.take(name, region), region) for region in cut),
        )
        for name, cut in cuts.items()
    )
    return Form(tuple(taken.nodes), results)
