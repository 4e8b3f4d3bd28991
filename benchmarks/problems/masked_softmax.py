"""Softmax of attention scores under a mask that all heads share, in bfloat16."""

import torch

HEADS, LENGTH = 16, 1024
BATCHES = (1, 4, 16)


class Model(torch.nn.Module):
    def forward(self, scores, mask):
        scores = scores.masked_fill(~mask, float("-inf"))
        return torch.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)


def inputs(batch):
    mask = torch.rand(batch, 1, LENGTH, LENGTH) > 0.3
    mask[..., 0] = True  # a row without any position has no softmax
    return [torch.randn(batch, HEADS, LENGTH, LENGTH, dtype=torch.bfloat16), mask]


def get_cases():
    return {f"batch_{batch}": lambda batch=batch: inputs(batch) for batch in BATCHES}


def get_inputs():
    return inputs(BATCHES[-1])


def get_init_inputs():
    return []
