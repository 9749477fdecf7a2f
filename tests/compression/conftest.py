"""Two small models, learned once: two groups of two members with nine parts each, 16 values a part.

One has the head whose statistics can be cut to fewer features, the other the presets' head, whose cannot.
"""

from __future__ import annotations

import numpy as np
import pytest

from circle import CircleClassifier
from circle.extractors import LocalContrastConfig
from circle.heads import SubspaceQDAConfig

SMALL = LocalContrastConfig(filters=(4, 3), kernels=(3, 2), reductions=(1, 2), colours=2, grid=2)


def images(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """uint8 [N, 16, 16, 3] of four classes that differ in colour so little that some are mistaken."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 4, count)
    base = np.array([[135, 120, 120], [120, 135, 120], [120, 120, 135], [130, 130, 110]])[labels][:, None, None, :]
    tint = random.normal(0, 8, (count, 1, 1, 3))
    return np.clip(base + tint + random.normal(0, 50, (count, 16, 16, 3)), 0, 255).astype(np.uint8), labels


@pytest.fixture(scope="session")
def learned() -> CircleClassifier:
    model = CircleClassifier(extractor=SMALL, head="slda", groups=2, members=2)
    return model.partial_fit(*images(300, 0))


@pytest.fixture(scope="session")
def with_subspace() -> CircleClassifier:
    """32 coordinates, 20 directions of each class."""
    head = SubspaceQDAConfig(dimension=32, rank=20)
    return CircleClassifier(extractor=SMALL, head=head, groups=2, members=2).partial_fit(*images(300, 0))


@pytest.fixture(scope="session")
def held_back() -> tuple[np.ndarray, np.ndarray]:
    return images(200, 1)
