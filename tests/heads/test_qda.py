"""QDA against scikit-learn and against a formula in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis

from circle.errors import CircleError
from circle.heads import QDA, QDAConfig, SLDAConfig
from circle.statistics import Statistics

COUNTS = [60, 45, 80]


def test_equals_scikit_learn(sample: Any, scored: Any) -> None:
    values, labels = sample(1, COUNTS, 6)
    queries = sample(2, [20, 20, 20], 6)[0]
    found = scored(QDAConfig(ridge=0.0, shrinkage=0.0), values, labels, queries)
    reference = QuadraticDiscriminantAnalysis(store_covariance=True).fit(values.astype(float), labels)
    for c, count in enumerate(COUNTS):
        # Versions of scikit-learn divide by n_c or by n_c - 1; the variances along the axes are brought to the latter.
        divisor = np.trace(np.cov(values[labels == c].T)) / np.trace(reference.covariance_[c])
        assert divisor == pytest.approx(1.0) or divisor == pytest.approx(count / (count - 1))
        reference.scalings_[c] = reference.scalings_[c] * divisor
    expected = reference.decision_function(queries.astype(float))
    assert np.abs(found - expected).max() < 1e-6


@pytest.mark.parametrize("rule", ["relative", "absolute"])
@pytest.mark.parametrize("shrinkage", [0.0, 0.4, 1.0])
def test_equals_the_density(sample: Any, scored: Any, shrinkage: float, rule: str) -> None:
    values, labels = sample(3, COUNTS, 5)
    queries = sample(4, [20, 20, 20], 5)[0]
    found = scored(QDAConfig(ridge=0.2, ridge_rule=rule, shrinkage=shrinkage), values, labels, queries)
    means = [values[labels == c].mean(0) for c in range(3)]
    own = [np.cov(values[labels == c].T) for c in range(3)]
    pooled = sum((n - 1) * covariance for n, covariance in zip(COUNTS, own, strict=True)) / (sum(COUNTS) - 3)
    amount = 0.2 * (np.trace(pooled) / 5 if rule == "relative" else 1.0)
    for c in range(3):
        covariance = (1 - shrinkage) * own[c] + shrinkage * pooled + amount * np.eye(5)
        density = multivariate_normal(means[c], covariance).logpdf(queries) + np.log(COUNTS[c] / sum(COUNTS))
        assert np.abs(found[:, c] + 5 / 2 * -np.log(2 * np.pi) - density).max() < 1e-6


def test_full_shrinkage_is_slda(sample: Any, scored: Any) -> None:
    values, labels = sample(5, COUNTS, 7)
    quadratic = scored(QDAConfig(ridge=0.1, shrinkage=1.0), values, labels, values)
    linear = scored(SLDAConfig(ridge=0.1, ridge_rule="relative"), values, labels, values)
    assert np.abs((quadratic - quadratic[:, :1]) - (linear - linear[:, :1])).max() < 1e-6


def test_a_single_sample_takes_the_common_covariance(sample: Any, scored: Any) -> None:
    values, labels = sample(6, [50, 1, 40], 4)
    found = scored(QDAConfig(ridge=0.0, shrinkage=0.0), values, labels, values)
    means = np.stack([values[labels == c].mean(0) for c in range(3)])
    centred = values - means[labels]
    pooled = centred.T @ centred / (91 - 3)
    expected = multivariate_normal(means[1], pooled).logpdf(values) + np.log(1 / 91) + 2 * np.log(2 * np.pi)
    assert np.abs(found[:, 1] - expected).max() < 1e-6


def test_needs_class_moments_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Statistics(2)
    plain.update(torch.ones(3, 2, dtype=torch.int8), ["a"] * 3)
    with pytest.raises(CircleError, match="'qda' needs second moments of each class"):
        QDA(QDAConfig()).materialise(plain)
    kept = Statistics(2, parts=("class_triangles",))
    kept.update(torch.eye(2, dtype=torch.int8), ["a", "a"])
    monkeypatch.setattr("circle.machine.available_memory", lambda: 100)
    with pytest.raises(CircleError, match="covariances of 1 class with 2 features: needs .* GB .*slda"):
        QDA(QDAConfig()).materialise(kept)


def test_settings_are_checked() -> None:
    with pytest.raises(CircleError, match="qda.shrinkage = 1.5: expected 0 to 1"):
        QDAConfig(shrinkage=1.5)
    with pytest.raises(CircleError, match="ridge"):
        QDAConfig(ridge=-1.0)


def test_only_slda_has_a_ridge_that_follows_the_samples() -> None:
    with pytest.raises(CircleError, match="relative or absolute for this head"):
        QDAConfig(ridge_rule="shrinkage")
