"""LayerNorm of rows with weight and bias, in bfloat16."""

import torch

WIDTH = 4096
ROWS = (1, 16, 512, 8192)


class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width, dtype=torch.bfloat16)

    def forward(self, x):
        return self.norm(x)


def inputs(rows):
    return [torch.randn(rows, WIDTH, dtype=torch.bfloat16)]


def get_cases():
    return {f"rows_{rows}": lambda rows=rows: inputs(rows) for rows in ROWS}


def get_inputs():
    return inputs(ROWS[-1])


def get_init_inputs():
    return [WIDTH]
