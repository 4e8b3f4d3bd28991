"""The sketch: an operator as groups of operators, each with a schedule. Immutable and canonical.

A program is a state, not a history: two orders of commuting rewrites give the same program, and so
the same digest.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How a kernel of ours runs. The default is the plain loop nest of the operators' definition.

    - `order`: `"reduce_inner"` walks the reduced dimensions in the innermost loop; `"reduce_outer"`
      keeps a block of kept positions as lanes and walks the reduced dimensions around it (for
      reductions over dimensions that are not contiguous).
    - `vectorize`: lanes of a block are computed together, with the vector math library.
    - `parallel`: the outermost kept loop (or, where it is too short, the reduced one, with partial
      results) is shared among the threads.
    - `tile`: the block length and unroll factor are tunables rather than fixed numbers.
    - `one_pass`: maximum and sum of exponentials, mean and variance, in one pass over a row.
    - `keep_row`: a row's point values that a later pass needs again are kept in a thread's scratch
      memory rather than read and computed again.
    - `stream`: outputs that are not read again are written past the caches.
    - `huge_pages`: the kernel asks for huge pages under its large fresh outputs, which otherwise
      cost a page fault for every 4 KiB.
    - `split`: several programs share a row, hand partial results over through memory and wait for
      each other.
    - `persist`: as many programs as the device holds, each of which walks over many tiles.
    - `pipeline`: the loop over a row loads tiles ahead of their use.

    `vectorize`, `parallel` and `huge_pages` are for a CPU, the last three for a GPU, where the
    others mean: `order`, a tile of few kept and many reduced positions or the other way round;
    `tile`, its sizes are tunables; `keep_row`, a row stays in a program's registers; `stream`,
    what is used once does not stay in the caches.
    """

    order: Literal["reduce_inner", "reduce_outer"] = "reduce_inner"
    vectorize: bool = False
    parallel: bool = False
    tile: bool = False
    one_pass: bool = False
    keep_row: bool = False
    stream: bool = False
    huge_pages: bool = False
    split: bool = False
    persist: bool = False
    pipeline: bool = False

    def joined(self, other: Self) -> Self:
        """The schedule of two fused groups: what either has, so that fusing commutes."""
        inner = self.order == other.order == "reduce_inner"
        return replace(
            self,
            order="reduce_inner" if inner else "reduce_outer",
            vectorize=self.vectorize or other.vectorize,
            parallel=self.parallel or other.parallel,
            tile=self.tile or other.tile,
            one_pass=self.one_pass or other.one_pass,
            keep_row=self.keep_row or other.keep_row,
            stream=self.stream or other.stream,
            huge_pages=self.huge_pages or other.huge_pages,
            split=self.split or other.split,
            persist=self.persist or other.persist,
            pipeline=self.pipeline or other.pipeline,
        )


PLAIN = Schedule()


@dataclass(frozen=True, kw_only=True)
class Group:
    """Operators that run together: one torch call, or one kernel of ours (`lowered`).

    `nodes` are names of graph nodes in graph order. A group is named after its last node.
    """

    nodes: tuple[str, ...]
    lowered: bool = False
    schedule: Schedule = field(default=PLAIN)

    @property
    def name(self) -> str:
        return self.nodes[-1]


@dataclass(frozen=True, kw_only=True)
class Program:
    """Groups in an order in which they can run. Covers every live node of the graph once."""

    target: Literal["cpp", "triton"]
    groups: tuple[Group, ...]

    def group(self, name: str) -> Group:
        """The group of that name; raises `KeyError`."""
        for group in self.groups:
            if group.name == name:
                return group
        raise KeyError(name)

    def with_group(self, name: str, changed: Group) -> Self:
        """The same program with one group replaced."""
        return replace(self, groups=tuple(changed if g.name == name else g for g in self.groups))


def to_json(program: Program) -> dict[str, Any]:
    """The canonical JSON form; `from_json` reads it back. Defaults are left out."""
    groups = []
    for group in program.groups:
        entry: dict[str, Any] = {"nodes": list(group.nodes)}
        if group.lowered:
            entry["lowered"] = True
            entry["schedule"] = {
                key: value
                for key, value in vars(group.schedule).items()
                if value != getattr(PLAIN, key)
            }
        groups.append(entry)
    return {"target": program.target, "groups": groups}


def from_json(data: dict[str, Any]) -> Program:
    """The program of a canonical form; raises `TypeError` or `KeyError` if it is not one."""
    return Program(
        target=data["target"],
        groups=tuple(
            Group(
                nodes=tuple(entry["nodes"]),
                lowered=entry.get("lowered", False),
                schedule=Schedule(**entry.get("schedule", {})),
            )
            for entry in data["groups"]
        ),
    )
