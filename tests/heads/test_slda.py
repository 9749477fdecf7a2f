"""SLDA against scikit-learn, and its corners."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax
from sklearn.covariance import EmpiricalCovariance, oas
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from circle.errors import CircleError
from circle.heads import SLDAConfig
from circle.heads.covariance import class_means, pooled_covariance, pooled_variances, shrinkage_intensity
from circle.statistics import Statistics


@pytest.fixture(scope="session")
def posterior(scored: Any) -> Any:
    """Class probabilities [Q, C] of queries, by the posterior of Gaussian classes."""

    def probabilities(values: np.ndarray, labels: np.ndarray, config: SLDAConfig, queries: np.ndarray) -> np.ndarray:
        return softmax(scored(config.replace(calibrated=False), values, labels, queries), 1)

    return probabilities


@pytest.mark.parametrize("ridge_rule", ["absolute", "relative"])
@pytest.mark.parametrize("ridge", [0.0, 0.05, 2.0])
@pytest.mark.parametrize("counts", [[40, 40, 40], [10, 80, 33, 5], [60, 25]])
def test_equals_scikit_learn(sample: Any, posterior: Any, counts: list[int], ridge: float, ridge_rule: str) -> None:
    values, labels = sample(1, counts, 7)
    queries = sample(2, counts, 7)[0]
    total, classes = len(labels), len(counts)
    centred = values - np.stack([values[labels == c].mean(0) for c in range(classes)])[labels]
    pooled = centred.T @ centred / (total - classes)
    amount = ridge * (np.trace(pooled) / 7 if ridge_rule == "relative" else 1.0)

    reference = LinearDiscriminantAnalysis(solver="lsqr", covariance_estimator=_Given(pooled + amount * np.eye(7)))
    expected = reference.fit(values.astype(np.float64), labels).predict_proba(queries.astype(np.float64))
    found = posterior(values, labels, SLDAConfig(ridge=ridge, ridge_rule=ridge_rule), queries)
    assert np.abs(found - expected).max() < 1e-6


@pytest.mark.parametrize(("samples", "size"), [(50, 7), (9, 20), (400, 30), (500, 300)])
def test_shrinkage_is_that_of_scikit_learn(sample: Any, samples: int, size: int) -> None:
    values = sample(3, [samples], size)[0].astype(np.float64)
    covariance = torch.from_numpy(np.cov(values.T, bias=True))
    standardised = (values - values.mean(0)) / values.std(0)
    assert shrinkage_intensity(covariance, samples) == pytest.approx(oas(standardised)[1], rel=1e-9)
    # A feature that never varies changes nothing.
    wider = torch.zeros(size + 1, size + 1, dtype=torch.float64)
    wider[:size, :size] = covariance
    assert shrinkage_intensity(wider, samples) == pytest.approx(oas(standardised)[1], rel=1e-9)


def test_no_structure_is_shrunk_all_the_way() -> None:
    assert shrinkage_intensity(torch.eye(5, dtype=torch.float64) * 3.0, 10**6) == 1.0


def test_the_ridge_falls_as_samples_arrive(sample: Any, posterior: Any) -> None:
    """Equal to scikit-learn's LDA with every variance raised by the share ridge rho (1 + 500 C / N)."""
    shares = []
    for count in (20, 200, 2000):
        values, labels = sample(1, [count, count], 7)
        queries = sample(2, [5, 5], 7)[0]
        centred = values - np.stack([values[labels == c].mean(0) for c in range(2)])[labels]
        pooled = centred.T @ centred / (2 * count - 2)
        shares.append(4.0 * shrinkage_intensity(torch.from_numpy(pooled), 2 * count - 2) * (1 + 500 / count))
        raised = pooled + np.diag(np.diag(pooled)) * shares[-1]
        reference = LinearDiscriminantAnalysis(solver="lsqr", covariance_estimator=_Given(raised))
        expected = reference.fit(values.astype(np.float64), labels).predict_proba(queries.astype(np.float64))
        found = posterior(values, labels, SLDAConfig(ridge=4.0, ridge_rule="shrinkage"), queries)
        assert np.abs(found - expected).max() < 1e-6
    assert shares[0] > 5 * shares[1] > 25 * shares[2] > 0


def test_units_do_not_matter_to_the_rule(sample: Any, posterior: Any) -> None:
    values, labels = sample(1, [40, 40, 40], 7)
    values = np.clip(values, -30, 30)
    stretched = values.copy()
    stretched[:, 2] *= 4
    config = SLDAConfig(ridge=4.0, ridge_rule="shrinkage")
    found, expected = posterior(stretched, labels, config, stretched), posterior(values, labels, config, values)
    assert np.abs(found - expected).max() < 1e-9


def test_features_that_never_vary_are_harmless(sample: Any, posterior: Any) -> None:
    values, labels = sample(1, [40, 40, 40], 7)
    config = SLDAConfig(ridge=4.0, ridge_rule="shrinkage")
    wider = np.concatenate([values, np.full_like(values[:, :1], 5)], 1)
    found, expected = posterior(wider, labels, config, wider), posterior(values, labels, config, values)
    assert np.abs(found - expected).max() < 1e-9


def test_one_sample_per_class_has_nothing_to_shrink(sample: Any, posterior: Any) -> None:
    values, labels = sample(1, [1, 1, 1], 7)
    found = posterior(values, labels, SLDAConfig(ridge=4.0, ridge_rule="shrinkage"), values)
    assert found.argmax(1).tolist() == labels.tolist()


class _Given(EmpiricalCovariance):
    """A covariance estimator that answers with a given matrix.

    scikit-learn averages the estimator's answer over the classes, weighted by their priors, which add up to one.
    """

    def __init__(self, matrix: np.ndarray | None = None) -> None:
        super().__init__()
        self.matrix = matrix

    def fit(self, X: np.ndarray, y: object = None) -> _Given:
        self.covariance_ = self.matrix
        return self


def test_differs_from_scikit_learns_own_covariance_by_its_divisor_only(sample: Any) -> None:
    """The svd solver estimates the covariance by itself, over N instead of N - C."""
    values, labels = sample(3, [50, 70, 30], 6)
    reference = LinearDiscriminantAnalysis(solver="svd", store_covariance=True).fit(values.astype(float), labels)
    statistics = Statistics(6)
    statistics.update(torch.from_numpy(values), labels.tolist())
    ours = pooled_covariance(statistics, class_means(statistics)).numpy()
    assert np.allclose(ours * (150 - 3) / 150, reference.covariance_, rtol=1e-10)
    assert np.allclose(pooled_variances(statistics, class_means(statistics)).numpy(), ours.diagonal(), rtol=1e-10)


@given(seed=st.integers(0, 500), shift=st.integers(-40, 40))
def test_translation_does_not_matter(sample: Any, posterior: Any, seed: int, shift: int) -> None:
    values, labels = sample(seed, [12, 9, 15], 4)
    values = np.clip(values, -80, 80)
    config = SLDAConfig(ridge=0.1)
    moved = (values + np.int8(shift)).astype(np.int8)
    assert np.abs(posterior(values, labels, config, values) - posterior(moved, labels, config, moved)).max() < 1e-6


def test_one_sample_per_class_is_the_nearest_mean(posterior: Any) -> None:
    values = np.array([[100, 0], [0, 100], [-100, 0]], np.int8)
    queries = np.array([[90, 10], [5, 60], [-30, -29]], np.int8)
    found = posterior(values, np.arange(3), SLDAConfig(), queries)
    assert found.argmax(1).tolist() == [0, 1, 2]


def test_one_class_is_certain(posterior: Any) -> None:
    assert posterior(np.ones((5, 3), np.int8), np.zeros(5, int), SLDAConfig(), np.zeros((2, 3), np.int8)).tolist() == [
        [1.0],
        [1.0],
    ]


def test_more_values_than_samples(sample: Any, posterior: Any) -> None:
    values, labels = sample(5, [4, 4], 30)
    found = posterior(values, labels, SLDAConfig(ridge=0.1), values)
    assert (found.argmax(1) == labels).all()


def test_settings_are_checked() -> None:
    with pytest.raises(CircleError, match="ridge = -1"):
        SLDAConfig(ridge=-1)
    with pytest.raises(CircleError, match="temperature"):
        SLDAConfig(temperature=0)
    with pytest.raises(CircleError, match="relative, absolute"):
        SLDAConfig(ridge_rule="both")  # pyright: ignore[reportArgumentType]
