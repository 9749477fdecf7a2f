"""Diagonal LDA against a formula in NumPy and scikit-learn's naive Bayes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

from circle.heads import DiagonalLDAConfig, SLDAConfig


@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_equals_the_formula(sample: Any, scored: Any, ridge: float) -> None:
    values, labels = sample(1, [30, 50, 12], 8)
    queries = sample(2, [20, 20, 20], 8)[0].astype(float)
    found = scored(DiagonalLDAConfig(ridge=ridge), values, labels, queries.astype(np.int8))
    means = np.stack([values[labels == c].mean(0) for c in range(3)])
    variances = ((values - means[labels]) ** 2).sum(0) / (92 - 3)
    variances += ridge * variances.mean()
    gaussian = -((queries[:, None] - means) ** 2 / variances).sum(2) / 2 + np.log(np.array([30, 50, 12]) / 92)
    assert np.abs(softmax(found, 1) - softmax(gaussian, 1)).max() < 1e-6
    assert np.abs((found - found[:, :1]) - (gaussian - gaussian[:, :1])).max() < 1e-6


def test_equals_slda_where_features_are_independent(scored: Any) -> None:
    """On a full grid of points all correlations are exactly zero."""
    grid = np.stack(np.meshgrid([-9, 0, 9], [-20, 0, 20]), -1).reshape(-1, 2)
    values = np.concatenate([grid, grid + np.array([50, 30])]).astype(np.int8)
    labels = np.repeat([0, 1], 9)
    found = scored(DiagonalLDAConfig(ridge=0.1), values, labels, values)
    assert np.abs(found - scored(SLDAConfig(ridge=0.1, ridge_rule="relative"), values, labels, values)).max() < 1e-6


def test_a_constant_feature_tells_nothing(scored: Any) -> None:
    values = np.array([[1, 7], [3, 7], [11, 7], [13, 7]], np.int8)
    scores = scored(
        DiagonalLDAConfig(ridge=0.0), values, np.array([0, 0, 1, 1]), np.array([[2, 99], [12, -99]], np.int8)
    )
    assert np.isfinite(scores).all()
    assert scores.argmax(1).tolist() == [0, 1]
