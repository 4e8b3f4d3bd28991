"""A linear layer and a ReLU: the matrix product stays with the library, the tail is ours."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, in_features: int, out_features: int):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


def get_inputs():
    return [torch.randn(1024, 1024)]


def get_init_inputs():
    return [1024, 2048]
