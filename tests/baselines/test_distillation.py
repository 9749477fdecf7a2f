"""Distances between a network and its former self, against plain formulas. That of the answers: test_lwf.py."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from circle.baselines.distillation import FeatureMap, feature_norm, quadratic_distance

RANDOM = np.random.default_rng(0)
NOW, BEFORE = RANDOM.normal(size=(2, 7, 4))


def test_feature_norm_is_one_norm_over_the_whole_batch() -> None:
    now = torch.tensor(NOW, requires_grad=True)
    value = feature_norm(now, torch.tensor(BEFORE))
    expected = np.sqrt(((NOW - BEFORE) ** 2).sum())
    assert np.isclose(value.item(), expected)
    (gradient,) = torch.autograd.grad(value, now)
    assert np.allclose(gradient.numpy(), (NOW - BEFORE) / expected)


def test_quadratic_distance_is_the_mean_of_the_forms() -> None:
    root = RANDOM.normal(size=(4, 4))
    matrix = root @ root.T
    now = torch.tensor(NOW, requires_grad=True)
    value = quadratic_distance(now, torch.tensor(BEFORE), torch.tensor(matrix))
    assert np.isclose(value.item(), np.mean([d @ matrix @ d for d in NOW - BEFORE]))
    (gradient,) = torch.autograd.grad(value, now)
    assert np.allclose(gradient.numpy(), 2 * (NOW - BEFORE) @ matrix / len(NOW))


def test_the_map_is_two_linear_layers_with_gelu_between() -> None:
    before = torch.get_rng_state()
    made = FeatureMap(6, torch.Generator().manual_seed(1), multiplier=5)
    assert torch.equal(torch.get_rng_state(), before)
    reference = nn.Sequential(nn.Linear(6, 30), nn.GELU(), nn.Linear(30, 6))
    with torch.no_grad():
        for layer, index in ((reference[0], 0), (reference[2], 1)):
            layer.weight.copy_(made.weights[index])  # pyright: ignore
            layer.bias.copy_(made.biases[index])  # pyright: ignore
    values = torch.randn(9, 6)
    assert torch.allclose(made(values), reference(values), atol=1e-6)
    assert (
        float(made.weights[0].detach().abs().max()) <= 6**-0.5
        and float(made.weights[1].detach().abs().max()) <= 30**-0.5
    )
    assert sum(parameter.numel() for parameter in made.parameters()) == 6 * 30 + 30 + 30 * 6 + 6
