"""SwiGLU of the two halves of one projection, in bfloat16."""

import torch

WIDTH = 11008
ROWS = (1, 16, 512, 8192)


class Model(torch.nn.Module):
    def forward(self, x):
        gate, up = x.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up


def inputs(rows):
    return [torch.randn(rows, 2 * WIDTH, dtype=torch.bfloat16)]


def get_cases():
    return {f"rows_{rows}": lambda rows=rows: inputs(rows) for rows in ROWS}


def get_inputs():
    return inputs(ROWS[-1])


def get_init_inputs():
    return []
