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
    reorder,
    stream,
    tile,
    vectorize,
)
from kerntree.coder.rewrites.rewrite import ALL, Rewrite

_CATALOGUE: tuple[Rewrite, ...] = (
    lower,
    fuse,
    vectorize,
    parallelize,
    one_pass,
    keep_row,
    reorder,
    tile,
    stream,
    huge_pages,
)
REWRITES: Mapping[str, Rewrite] = MappingProxyType({entry.KIND: entry for entry in _CATALOGUE})

__all__ = ["ALL", "REWRITES", "Rewrite"]
