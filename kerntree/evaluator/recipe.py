"""What supervisor and oracle call a set of inputs; torch-free."""

from typing import Literal

from pydantic import JsonValue

from kerntree.evaluator.distributions import Distribution
from kerntree.evaluator.tensor_block import Layout
from kerntree.plans.frozen import Frozen


class Subject(Frozen):
    """Which problem a request is about; `digest` is the SHA-256 of its text."""

    path: str
    digest: str
    mode: Literal["as_is", "eval"]


class Recipe(Frozen):
    """All that makes one set of inputs and the results expected of it.

    `state` is the seed of the module, `seed` that of the inputs. `inputs` and `buffers` are what
    the reference writes to; `layout` and `tree` are the form of the results as described: outputs,
    changed inputs, changed buffers.
    """

    subject: Subject
    state: int
    case: str
    seed: int
    distribution: Distribution
    inputs: tuple[str, ...]
    buffers: tuple[str, ...]
    layout: Layout
    tree: JsonValue

    @property
    def key(self) -> str:
        """The recipe as text."""
        return self.model_dump_json()
