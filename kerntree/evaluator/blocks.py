"""Output blocks: memory that a child fills and the oracle reads."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kerntree.evaluator.tensor_block import Layout, create_block, layout_of
from kerntree.plans.graph import TensorSpec, contiguous
from kerntree.plans.problem import Case, Problem


@dataclass
class OutputBlock:
    """A poisoned block for the outputs of one call, then mutated inputs, then mutated buffers.

    Shared memory of the supervisor's; on a GPU (`fd` is -1) memory that the child lends, whose
    `handle` it says after the call.
    """

    fd: int
    layout: Layout
    handle: str = ""


def output_layout(problem: Problem, case: Case) -> Layout:
    """Where the results of one call lie in a block; contents are contiguous."""
    buffers = {entry.name: entry.tensor for entry in problem.state}
    inputs = {entry.path: entry.tensor for entry in case.inputs}
    specs: list[TensorSpec] = [output.tensor for output in case.outputs]
    specs += [spec for path in case.mutated_inputs if (spec := inputs[path]) is not None]
    specs += [buffers[name] for name in case.mutated_buffers]
    return layout_of([contiguous(spec.shape, spec.dtype) for spec in specs])


@contextmanager
def output_block(layout: Layout, *, lent: bool = False) -> Iterator[OutputBlock]:
    """A fresh block, filled so that what nobody wrote cannot pass for a result; closed after.

    A `lent` one is the child's to make.
    """
    if lent:
        yield OutputBlock(-1, layout)
        return
    descriptor = create_block(layout, poison=True)
    try:
        yield OutputBlock(descriptor, layout)
    finally:
        os.close(descriptor)
