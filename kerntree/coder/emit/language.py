"""What a module asks of the language that its kernels are printed in."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from kerntree.coder.kernel import Kernel
from kerntree.coder.program import Program, Schedule
from kerntree.plans.candidate import Config, Tunables

F = TypeVar("F")


@dataclass(frozen=True)
class Printed:
    """One group's kernel as it is printed for one case: its place among them, and its label.

    A case that is not `searched` has nothing to tune.
    """

    group: str
    place: int
    case: str
    function: Any
    searched: bool = True


@dataclass(frozen=True)
class TunableNames:
    """How a size of one kernel, for one case, is named among the module's tunables."""

    by_kernel: bool
    by_case: bool

    def name(self, size: str, *, kernel: str, case: str) -> str:
        """The name; `kernel` and `case` are identifiers, and left out where there is one alone."""
        parts = [size, *([kernel] if self.by_kernel else []), *([case] if self.by_case else [])]
        return "_".join(parts)


class Language(Protocol[F]):
    """How kernels are printed in one language, and what the module holds beside them."""

    @property
    def name(self) -> Literal["cpp", "triton"]: ...

    def function(
        self, kernel: Kernel, schedule: Schedule, *, name: str, in_place: Mapping[str, str]
    ) -> F:
        """One kernel as a function."""
        ...

    def launch(
        self,
        functions: Sequence[F],
        arguments: Sequence[str],
        *,
        device: str,
        extent: str,
        entry: Callable[[str], str],
    ) -> Sequence[str]:
        """Statements that run a function on tensors, by their names in order.

        `functions` is one function as it is printed for each case that it serves; `extent` is its
        outermost extent, where that is an argument; `entry` says where CONFIG holds a size.
        """
        ...

    def limit(self, function: F) -> int | None:
        """How far an outermost extent that is an argument may go; None: any."""
        ...

    def tunables(
        self, printed: Sequence[Printed], program: Program, names: TunableNames
    ) -> tuple[Tunables, Config]:
        """What the functions leave open, and the values to begin with."""
        ...

    def sections(self, functions: Sequence[F], program: Program) -> Sequence[str]:
        """The kernels as sections of the module's text."""
        ...

    def imports(self, functions: Sequence[F]) -> Sequence[str]:
        """Lines at the module's top, beside torch."""
        ...
