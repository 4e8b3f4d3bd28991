"""A candidate: source code that realizes a plan."""

from typing import Literal

from pydantic import JsonValue

from kerntree.cache.digest import digest
from kerntree.plans.frozen import Frozen

Config = dict[str, int]
Tunables = dict[str, tuple[int, ...]]


class Candidate(Frozen):
    """A Python module with `class ModelNew`, and what its coder remembers of it.

    `tunables` lists the admissible values of each number that the module leaves open, `config`
    the values it has by itself (both as the module states them). `case_tunables` names those that
    matter to one case alone, by case. `program` is the sketch coder's
    program in canonical form, or None for text that a model or a person wrote. `torch_calls`
    names the operators that the plan leaves to torch; `kernels` those of its own.
    """

    source: str
    language: Literal["torch", "cpp", "triton", "python"]
    tunables: Tunables = {}
    config: Config = {}
    case_tunables: dict[str, tuple[str, ...]] = {}
    program: JsonValue = None
    kernels: tuple[str, ...] = ()
    torch_calls: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """The node this candidate belongs to: the digest of its program, or of its source."""
        return digest({"source": self.source} if self.program is None else self.program)
