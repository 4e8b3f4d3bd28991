"""The text of one function as it grows."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class Lines:
    """Lines, each level `indent` deeper, and the helpers and mathematical functions they call."""

    def __init__(self, *, indent: str = "  ") -> None:
        self.helpers: set[str] = set()
        self.math: set[str] = set()
        self._indent = indent
        self._lines: list[str] = []
        self._depth = 1

    @property
    def text(self) -> str:
        """All lines so far."""
        return "\n".join(self._lines)

    def put(self, line: str) -> None:
        """Adds a line at the present depth."""
        self._lines.append(self._indent * self._depth + line)

    @contextmanager
    def inside(self, *heads: str, end: str = "}") -> Iterator[None]:
        """Opens a block for each head, one in the other; each closes with `end`, if any."""
        for head in heads:
            self.put(head)
            self._depth += 1
        yield
        for _ in heads:
            self._depth -= 1
            if end:
                self.put(end)

    def scoped(self, statements: Sequence[str]) -> None:
        """Adds statements, in braces where there are several: the first may declare names."""
        with self.inside(*["{"] * (len(statements) > 1)):
            for statement in statements:
                self.put(statement)

    @contextmanager
    def lanes(self) -> Iterator[None]:
        """A loop over the lanes of a block, which the compiler turns into vector instructions."""
        self.put("#pragma omp simd")
        with self.inside("for (int l = 0; l < lanes; ++l) {"):
            yield
