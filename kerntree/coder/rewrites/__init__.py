"""The catalogue of rewrites: what the sketch coder can do to a program, one module a kind."""

from collections.abc import Mapping
from types import MappingProxyType

from kerntree.coder.rewrites import (
    fuse,
    huge_pages,
    keep_row,
    lower,
    one_pass,
    parallelize,
    persist,
    pipeline,
    reorder,
    split,
    stream,
    tile,
    vectorize,
)
from kerntree.coder.rewrites.rewrite import ALL, Rewrite

_CATALOGUE: tuple[Rewrite, ...] = (
    lower,
    fuse,
    vectorize.REWRITE,
    parallelize.REWRITE,
    one_pass.REWRITE,
    reorder.REWRITE,
    split.REWRITE,
    keep_row.REWRITE,
    tile.REWRITE,
    pipeline.REWRITE,
    persist.REWRITE,
    stream.REWRITE,
    huge_pages.REWRITE,
)
REWRITES: Mapping[str, Rewrite] = MappingProxyType({entry.kind: entry for entry in _CATALOGUE})


def kinds_for(target: str) -> tuple[str, ...]:
    """The kinds of rewrites that mean something for a target, in the catalogue's order."""
    return tuple(entry.kind for entry in _CATALOGUE if target in entry.targets)


__all__ = ["ALL", "REWRITES", "Rewrite", "kinds_for"]
