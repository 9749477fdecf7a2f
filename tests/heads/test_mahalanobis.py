"""The FeCAM-style head against a formula in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import mahalanobis

from circle.errors import CircleError
from circle.heads import MahalanobisConfig


def shrunk(covariance: np.ndarray, first: float, second: float) -> np.ndarray:
    size = len(covariance)
    diagonal = np.eye(size, dtype=bool)
    return covariance + np.where(diagonal, first * covariance[diagonal].mean(), second * covariance[~diagonal].mean())


@pytest.mark.parametrize("correlation", [False, True])
@pytest.mark.parametrize("rounds", [0, 1, 2])
@pytest.mark.parametrize("first, second", [(1.0, 1.0), (0.2, 0.0), (3.0, 0.5)])
def test_equals_the_formula(
    sample: Any, scored: Any, first: float, second: float, rounds: int, correlation: bool
) -> None:
    values, labels = sample(1, [40, 30, 50], 6)
    queries = sample(2, [8, 8, 8], 6)[0]
    config = MahalanobisConfig(
        shrink_diagonal=first, shrink_off_diagonal=second, shrink_rounds=rounds, correlation=correlation
    )
    found = scored(config, values, labels, queries)
    for c in range(3):
        own = values[labels == c].astype(float)
        covariance = np.cov(own.T)
        for _ in range(rounds):
            covariance = shrunk(covariance, first, second)
        if correlation:
            deviation = np.sqrt(covariance.diagonal())
            covariance = covariance / deviation[:, None] / deviation[None, :]
        precision = np.linalg.inv(covariance)
        expected = [-(mahalanobis(query, own.mean(0), precision) ** 2) for query in queries.astype(float)]
        assert found[:, c] == pytest.approx(expected, rel=1e-9)


def test_a_single_sample_takes_the_pooled_covariance(sample: Any, scored: Any) -> None:
    values, labels = sample(3, [40, 1], 5)
    config = MahalanobisConfig(shrink_rounds=1, shrink_off_diagonal=0.0, correlation=False)
    found = scored(config, values, labels, values)
    covariance = shrunk(np.cov(values[labels == 0].T), 1.0, 0.0)
    precision = np.linalg.inv(covariance)
    alone = values[labels == 1][0].astype(float)
    assert found[:, 1] == pytest.approx(
        [-(mahalanobis(query, alone, precision) ** 2) for query in values.astype(float)]
    )


def test_without_scatter_distances_are_euclidean(scored: Any) -> None:
    values = np.array([[10, 0], [0, 10]], np.int8)
    found = scored(MahalanobisConfig(), values, np.array([0, 1]), np.array([[9, 2]], np.int8))
    assert found.tolist() == [[-5.0, -145.0]]


def test_dead_features_are_rescued(sample: Any, scored: Any) -> None:
    values, labels = sample(4, [20, 20], 4)
    values[:, 2] = 5
    assert np.isfinite(scored(MahalanobisConfig(), values, labels, values)).all()
    unshrunk = MahalanobisConfig(shrink_diagonal=0.0, shrink_off_diagonal=0.0)
    assert np.isfinite(scored(unshrunk, values, labels, values)).all(), "by jitter, which is counted"


def test_what_is_not_definite_is_refused(sample: Any, scored: Any) -> None:
    values, labels = sample(4, [20, 20], 4)
    values[:, 2] = 5
    with pytest.raises(CircleError, match="not positive definite .* shrinkage"):
        scored(MahalanobisConfig(shrink_diagonal=0.0, shrink_off_diagonal=3.0), values, labels, values)


def test_settings_are_checked() -> None:
    with pytest.raises(CircleError, match="shrink_diagonal = -1"):
        MahalanobisConfig(shrink_diagonal=-1.0)
    with pytest.raises(CircleError, match="shrink_rounds = -1"):
        MahalanobisConfig(shrink_rounds=-1)
