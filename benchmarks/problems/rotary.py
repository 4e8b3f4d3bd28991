"""Rotary embedding of queries in place: bfloat16, turned in float32, one angle for two elements."""

import torch

HEADS, WIDTH = 32, 128
TOKENS = (1, 16, 512, 8192)


def rotate_half(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


class Model(torch.nn.Module):
    def forward(self, q, cos, sin):
        wide = q.float()
        q.copy_(wide * cos + rotate_half(wide) * sin)
        return q


def inputs(tokens):
    angles = torch.rand(tokens, 1, WIDTH // 2) * 6.28
    angles = torch.cat((angles, angles), dim=-1)
    q = torch.randn(tokens, HEADS, WIDTH, dtype=torch.bfloat16)
    return [q, angles.cos().bfloat16(), angles.sin().bfloat16()]


def get_cases():
    return {f"tokens_{tokens}": lambda tokens=tokens: inputs(tokens) for tokens in TOKENS}


def get_inputs():
    return inputs(TOKENS[-1])


def get_init_inputs():
    return []
