"""Distillation: what holds a network to its teacher, the previous network: answers, features, or a map between them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


def distillation(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KD = - mean_i sum_j softmax(teacher / tau)_ij log softmax(logits / tau)_ij, both [B, K]; no factor tau^2."""
    targets = torch.softmax(teacher / temperature, 1)
    return -(targets * torch.log_softmax(logits / temperature, 1)).sum(1).mean()


def feature_norm(features: Tensor, teacher: Tensor) -> Tensor:
    """|F - F_old|_F over the whole batch [B, d], not squared: it grows with the square root of the batch size."""
    return torch.linalg.vector_norm(features - teacher)


def quadratic_distance(features: Tensor, teacher: Tensor, matrix: Tensor) -> Tensor:
    """mean_i d_i^T E d_i with d_i = f_i - f_old,i, features [B, d] and a symmetric matrix E [d, d]."""
    away = features - teacher
    return ((away @ matrix) * away).sum(1).mean()


class FeatureMap(nn.Module):
    """g(f) = W_2 gelu(W_1 f + b_1) + b_2, [B, d] -> [B, d] through ``multiplier`` d hidden units.

    It learns to lead from one network's features to another's. Weights and biases are uniform on +-1/sqrt(inputs).
    """

    def __init__(self, size: int, generator: torch.Generator, multiplier: int = 32) -> None:
        super().__init__()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for inputs, outputs in ((size, multiplier * size), (multiplier * size, size)):
            bound = 1.0 / math.sqrt(inputs)
            for kept, shape in ((self.weights, (outputs, inputs)), (self.biases, (outputs,))):
                kept.append(nn.Parameter(torch.empty(shape).uniform_(-bound, bound, generator=generator)))

    def forward(self, features: Tensor) -> Tensor:
        hidden = functional.gelu(functional.linear(features, self.weights[0], self.biases[0]))
        return functional.linear(hidden, self.weights[1], self.biases[1])
