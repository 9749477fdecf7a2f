"""Nearest class means against scikit-learn, and by angle against a formula in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestCentroid

from circle.errors import CircleError
from circle.heads import CosineNCM, CosineNCMConfig, NCMConfig
from circle.statistics import Statistics


def test_equals_scikit_learn(sample: Any, scored: Any) -> None:
    values, labels = sample(0, [60, 20, 50, 30, 40], 9)
    queries = np.random.default_rng(1).integers(-100, 100, (300, 9)).astype(np.int8)
    scores = scored(NCMConfig(), values, labels, queries)
    reference = NearestCentroid().fit(values.astype(float), labels)
    assert (scores.argmax(1) == reference.predict(queries.astype(float))).all()
    squared = ((queries[:, None, :].astype(float) - reference.centroids_) ** 2).sum(2)
    assert np.abs((scores - (queries.astype(float) ** 2).sum(1, keepdims=True)) + squared).max() < 1e-6


def test_cosines_equal_the_formula(sample: Any, scored: Any) -> None:
    values, labels = sample(2, [40, 7, 60], 300)
    queries = sample(3, [10, 10, 10], 300)[0]
    scores = scored(CosineNCMConfig(), values, labels, queries)
    units = values / np.linalg.norm(values.astype(float), axis=1, keepdims=True)
    means = np.stack([units[labels == c].mean(0) for c in range(3)])
    expected = (queries / np.linalg.norm(queries.astype(float), axis=1, keepdims=True)) @ (
        means / np.linalg.norm(means, axis=1, keepdims=True)
    ).T
    assert np.abs(scores - expected).max() < 1e-9, "fixed point is finer than any use of it"


def test_cosines_ignore_length(sample: Any, scored: Any) -> None:
    values, labels = sample(4, [30, 30], 12)
    short = np.clip(values, -63, 63)
    assert (
        np.abs(
            scored(CosineNCMConfig(), short * 2, labels, short) - scored(CosineNCMConfig(), short, labels, short)
        ).max()
        < 1e-9
    )


def test_zero_has_no_direction(scored: Any) -> None:
    values = np.array([[0, 0], [3, 4], [10, 0], [-10, 0]], np.int8)
    scores = scored(CosineNCMConfig(), values, np.array([0, 0, 1, 1]), np.array([[0, 0], [30, 40]], np.int8))
    assert scores[0].tolist() == [0.0, 0.0]
    assert scores[1] == pytest.approx([1.0, 0.0]), "a zero adds nothing; vectors that cancel out leave nothing"


def test_needs_unit_sums() -> None:
    statistics = Statistics(2)
    statistics.update(torch.ones(3, 2, dtype=torch.int8), ["a"] * 3)
    with pytest.raises(CircleError, match="'cosine_ncm' needs sums of unit vectors"):
        CosineNCM(CosineNCMConfig()).materialise(statistics)
