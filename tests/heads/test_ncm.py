"""Nearest class mean against scikit-learn."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.neighbors import NearestCentroid

from circle.heads import NCM, NCMConfig
from circle.statistics import Statistics


def test_equals_scikit_learn() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, 5, 200)
    values = np.clip(random.normal(0, 25, (5, 9))[labels] + random.normal(0, 30, (200, 9)), -127, 127).astype(np.int8)
    queries = random.integers(-100, 100, (300, 9)).astype(np.int8)
    statistics = Statistics(9)
    statistics.update(torch.from_numpy(values), labels.tolist())
    scores = NCM(NCMConfig()).materialise(statistics)(torch.from_numpy(queries)).numpy()
    reference = NearestCentroid().fit(values.astype(float), labels)
    assert (scores.argmax(1) == reference.predict(queries.astype(float))).all()
    squared = ((queries[:, None, :].astype(float) - reference.centroids_) ** 2).sum(2)
    assert np.abs((scores - (queries.astype(float) ** 2).sum(1, keepdims=True)) + squared).max() < 1e-6
