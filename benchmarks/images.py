"""Photographs to learn: CIFAR-100 where it is installed (`CIRCLE_DATA`), else noise of its size."""

from __future__ import annotations

import numpy as np

from circle.data.datasets import Dataset, load_dataset
from circle.data.decode import ImageConfig
from circle.data.images import ArrayImages
from circle.errors import CircleError

CLASSES, LEARNED, TESTED, SIDE = 100, 50_000, 10_000, 32  # of CIFAR-100


def cifar_or_noise() -> tuple[Dataset, str]:
    """The data set, and what it is in words. Work is the same for any values of the pixels, accuracy is not."""
    try:
        return load_dataset("cifar100"), "CIFAR-100, read from disk"
    except CircleError:
        return noise(), "noise of the size of CIFAR-100, in memory"


def noise() -> Dataset:
    """As many images of as many classes, without a meaning."""
    random, shape = np.random.default_rng(0), ImageConfig(height=SIDE, width=SIDE, channels=3)

    def part(count: int, name: str) -> ArrayImages:
        pixels = random.integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)
        return ArrayImages(pixels, np.arange(count) % CLASSES, shape, name)

    names = [f"{label:02}" for label in range(CLASSES)]
    return Dataset("noise", names, shape, part(LEARNED, "train"), part(TESTED, "test"))


def few_classes(dataset: Dataset, classes: int, learned: int, tested: int) -> tuple[np.ndarray, ...]:
    """Images and labels to learn and to be tested on: so many of the first classes in all."""
    found: list[np.ndarray] = []
    for images, count in ((dataset.train, learned), (dataset.test, tested)):
        of_each = [np.flatnonzero(images.labels == label)[: count // classes] for label in range(classes)]
        chosen = np.sort(np.concatenate(of_each))
        found += [images[chosen], images.labels[chosen]]
    return tuple(found)
