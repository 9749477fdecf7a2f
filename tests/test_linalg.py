"""Factorisation, jitter and its limits."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from circle import linalg
from circle.errors import CircleError


def test_solves_without_jitter() -> None:
    root = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    matrix, right = root @ root.T + torch.eye(6, dtype=torch.float64), torch.ones(6, 2, dtype=torch.float64)
    factor = linalg.cholesky(matrix.clone())
    assert factor.tries == 0
    assert torch.allclose(matrix @ factor.solve(right), right)


def test_jitter_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    singular = torch.ones(4, 4, dtype=torch.float64)
    singular[0, 0] -= 1e-5
    with caplog.at_level(logging.WARNING):
        factor = linalg.cholesky(singular.clone())
    assert factor.tries == len(caplog.records) > 0
    assert factor.jitter == pytest.approx(1e-6 * 10 ** (factor.tries - 1) * float(singular.diagonal().mean()))
    assert torch.allclose(
        factor.lower @ factor.lower.T, singular + factor.jitter * torch.eye(4, dtype=torch.float64), atol=1e-10
    )


def test_hopeless_matrices_are_refused() -> None:
    with pytest.raises(CircleError, match="not positive definite"):
        linalg.cholesky(torch.tensor([[1.0, 0.0], [0.0, -5.0]], dtype=torch.float64))
    with pytest.raises(CircleError, match="not finite"):
        linalg.cholesky(torch.full((2, 2), torch.nan, dtype=torch.float64))


def weighted_sum(root: np.ndarray, less: float, added: float, weights: np.ndarray) -> float:
    """sum_ij W_ij L_ij of the factor L of A A^T - less e_1 e_1^T + added I."""
    matrix = root @ root.T + added * np.eye(len(root))
    matrix[0, 0] -= less
    return float((weights * np.linalg.cholesky(matrix)).sum())


@pytest.mark.parametrize(
    ("columns", "less", "tries", "step"),
    [
        pytest.param(7, 0.0, 0, 1e-5, id="definite"),
        pytest.param(1, 1e-5, 2, 1e-7, id="mended"),
    ],
)
def test_gradient_of_a_factor(
    columns: int, less: float, tries: int, step: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Against differences, with the same jitter; the matrix itself is left as it is."""
    random = np.random.default_rng(0)
    root, weights = random.uniform(0.5, 1.5, size=(4, columns)), random.normal(size=(4, 4))
    variable = torch.tensor(root, requires_grad=True)
    matrix = variable @ variable.T - less * torch.diag(torch.tensor([1.0, 0, 0, 0], dtype=torch.float64))
    before = matrix.detach().clone()
    with caplog.at_level(logging.INFO):
        factor = linalg.cholesky_with_gradient(matrix)
    assert not caplog.records, "the caller tells"
    assert torch.equal(matrix.detach(), before)
    assert factor.tries == tries
    jitter = 1e-6 * 10 ** (tries - 1) * float(before.diagonal().mean()) if tries else 0.0
    assert factor.jitter == pytest.approx(jitter)
    lower = factor.lower.detach()
    assert torch.equal(lower, lower.tril())
    assert torch.allclose(lower @ lower.T, before + jitter * torch.eye(4), atol=1e-12)
    (gradient,) = torch.autograd.grad((factor.lower * torch.tensor(weights)).sum(), variable)
    expected = np.zeros_like(root)
    for place in np.ndindex(root.shape):
        values = []
        for sign in (1, -1):
            moved = root.copy()
            moved[place] += sign * step
            values.append(weighted_sum(moved, less, jitter, weights))
        expected[place] = (values[0] - values[1]) / (2 * step)
    assert np.allclose(gradient.numpy(), expected, atol=1e-4 * np.abs(expected).max())


def test_hopeless_matrices_are_refused_with_a_gradient_too() -> None:
    with pytest.raises(CircleError, match="not positive definite"):
        linalg.cholesky_with_gradient(torch.diag(torch.tensor([1.0, -5.0], dtype=torch.float64)))


def test_spectral_radius() -> None:
    assert linalg.spectral_radius(torch.tensor([[0.0, 2.0], [-2.0, 0.0]])) == pytest.approx(2.0)
    assert linalg.spectral_radius(torch.zeros(0, 0)) == 0.0
