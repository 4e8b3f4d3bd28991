"""A problem as the main process knows it: plain data that a child described once."""

from typing import Literal

from pydantic import JsonValue

from kerntree.plans.frozen import Frozen
from kerntree.plans.graph import OperatorGraph, TensorSpec

Precision = Literal["strict", "tf32", "half"]


class InputSpec(Frozen):
    """One leaf of the arguments: a tensor, or a plain value (`tensor is None`).

    `path` is the position in `get_inputs()`, with dotted keys for what is nested (`"0"`,
    `"1.mask"`); `name` is the parameter name in `Model.forward` where there is one.
    """

    path: str
    name: str
    tensor: TensorSpec | None = None
    value: JsonValue = None


class OutputSpec(Frozen):
    """One tensor that the reference returns, and where it stands (`""` for a lone tensor)."""

    path: str
    tensor: TensorSpec


class StateSpec(Frozen):
    """A parameter or buffer of the reference, by qualified name."""

    name: str
    kind: Literal["parameter", "buffer"]
    tensor: TensorSpec


class Case(Frozen):
    """One set of inputs: a shape or a distribution.

    A case without weight is not `searched`: kernels must be right on it, and are not timed.

    `output_tree` nests as the reference's result does, with leaf indices in place of tensors:
    an int, or `{"tuple": […]}`, `{"list": […]}`, `{"dict": {…}}`, or `{"value": …}` for a plain
    value. `mutated_inputs` are input paths, `mutated_buffers` qualified names. `aliased_outputs`
    are paths of outputs that share memory with an input or with the module's state in the
    reference, so that a candidate's may as well.
    """

    name: str
    weight: float = 1.0
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    output_tree: JsonValue
    mutated_inputs: tuple[str, ...] = ()
    mutated_buffers: tuple[str, ...] = ()
    aliased_outputs: tuple[str, ...] = ()
    graph: OperatorGraph | None = None
    graph_error: str = ""

    @property
    def searched(self) -> bool:
        return self.weight > 0


class Problem(Frozen):
    """The operator to optimize.

    `source` is the problem file's text, `folder` the directory it imports siblings from.
    `parameter_order` and `keyword_inputs` are what a candidate needs to be called alike.
    `mode` is the mode the module is judged in. `warnings` are findings the reports repeat.
    """

    name: str
    path: str
    folder: str
    source: str
    mode: Literal["as_is", "eval"] = "as_is"
    state: tuple[StateSpec, ...] = ()
    cases: tuple[Case, ...]
    warnings: tuple[str, ...] = ()

    @property
    def timed_cases(self) -> tuple[Case, ...]:
        """The cases with a share in the reward; the others are for checks alone."""
        return tuple(case for case in self.cases if case.searched)
