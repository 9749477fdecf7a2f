"""Shared by the tests of heads: labelled int8 features of Gaussian classes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from circle.config import Config
from circle.heads import build_head
from circle.statistics import Statistics

Sample = Callable[[int, list[int], int], tuple[np.ndarray, np.ndarray]]
Scored = Callable[[Config, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


@pytest.fixture(scope="session")
def sample() -> Sample:
    """Makes features int8 [N, size] and labels [N] with so many samples of each class, from a seed."""

    def make(seed: int, counts: list[int], size: int) -> tuple[np.ndarray, np.ndarray]:
        random = np.random.default_rng(seed)
        labels = np.repeat(np.arange(len(counts)), counts)
        centres = random.normal(0, 20, (len(counts), size))
        values = centres[labels] + random.normal(0, 25, (len(labels), size)) @ random.normal(0, 0.7, (size, size))
        return np.clip(np.round(values), -127, 127).astype(np.int8), labels

    return make


@pytest.fixture(scope="session")
def scored() -> Scored:
    """Scores [Q, C] of queries by a head that has learned values and labels."""

    def score(config: Config, values: np.ndarray, labels: np.ndarray, queries: np.ndarray) -> np.ndarray:
        statistics = Statistics(values.shape[1], parts=("class_triangles", "unit_sums"))
        statistics.update(torch.from_numpy(values), labels.tolist())
        return build_head(config).materialise(statistics)(torch.from_numpy(queries)).numpy()

    return score
