"""Output blocks: shared memory that a child fills and the oracle reads."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kerntree.evaluator.tensor_block import Layout, create_block, layout_of
from kerntree.plans.graph import TensorSpec, contiguous
from kerntree.plans.problem import Case, Problem

_POISON = {0xFF}  # `create_block` writes it; no operator gives it everywhere


@dataclass(frozen=True)
class OutputBlock:
    """A poisoned block for the outputs of one call, then mutated inputs, then mutated buffers."""

    fd: int
    layout: Layout


def output_layout(problem: Problem, case: Case) -> Layout:
    """Where the results of one call lie in a block; contents are contiguous."""
    buffers = {entry.name: entry.tensor for entry in problem.state}
    inputs = {entry.path: entry.tensor for entry in case.inputs}
    specs: list[TensorSpec] = [output.tensor for output in case.outputs]
    specs += [spec for path in case.mutated_inputs if (spec := inputs[path]) is not None]
    specs += [buffers[name] for name in case.mutated_buffers]
    return layout_of([contiguous(spec.shape, spec.dtype) for spec in specs])


@contextmanager
def output_block(layout: Layout) -> Iterator[OutputBlock]:
    """A fresh block, filled so that what nobody wrote cannot pass for a result; closed after."""
    descriptor = create_block(layout, poison=True)
    try:
        yield OutputBlock(descriptor, layout)
    finally:
        os.close(descriptor)


def untouched(block: OutputBlock) -> bool:
    """Whether nobody wrote to some tensor of a block since it was poisoned."""
    return any(
        placed.spec.bytes > 0
        and set(os.pread(block.fd, placed.spec.bytes, placed.offset)) <= _POISON
        for placed in block.layout.tensors
    )
