"""Factorisation, jitter and its limits."""

from __future__ import annotations

import logging

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


def test_spectral_radius() -> None:
    assert linalg.spectral_radius(torch.tensor([[0.0, 2.0], [-2.0, 0.0]])) == pytest.approx(2.0)
    assert linalg.spectral_radius(torch.zeros(0, 0)) == 0.0
