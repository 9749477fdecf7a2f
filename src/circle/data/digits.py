"""Handwritten digits that come with scikit-learn: the smallest real data set, nothing to download.

>>> digits = load_digits(DigitsConfig())
>>> len(digits.classes), len(digits.train), len(digits.test), digits.train[0].shape
(10, 1257, 540, (32, 32, 1))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from PIL import Image

from circle.config import Config, option
from circle.data.datasets import Dataset
from circle.data.decode import ImageConfig
from circle.data.images import ArrayImages
from circle.registry import register

SIDE = 32  # pixels per side; the 8 x 8 originals are too small for the extractors' patches
LARGEST_VALUE = 16  # the originals count ink in 4 x 4 blocks: 0..16
# Which images are to be tested on is part of the data set, as published numbers rest on it: scikit-learn's own split.
TEST_FRACTION, SPLIT_SEED = 0.3, 0


@dataclass(frozen=True, eq=False)
class DigitsSplit:
    """Images uint8 [N, 32, 32] and their labels int64 [N] in 0..9, to learn from and held out."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load_digits_images() -> DigitsSplit:
    """The 1,797 digits, 0..16 scaled to 0..255, enlarged bilinearly to 32 x 32, split 70 : 30 by class.

    >>> digits = load_digits_images()
    >>> digits.train_images.shape, digits.test_images.shape
    ((1257, 32, 32), (540, 32, 32))
    """
    from sklearn import datasets, model_selection  # these take a while to import

    originals, labels = datasets.load_digits(return_X_y=True)
    grey = np.rint(originals * (255 / LARGEST_VALUE)).astype(np.uint8).reshape(-1, 8, 8)
    images = np.stack([_enlarge(image) for image in grey])
    labels = labels.astype(np.int64)
    train, test = map(
        np.asarray,
        model_selection.train_test_split(
            np.arange(len(labels)), test_size=TEST_FRACTION, stratify=labels, random_state=SPLIT_SEED
        ),
    )
    return DigitsSplit(images[train], labels[train], images[test], labels[test])


def _enlarge(image: np.ndarray) -> np.ndarray:
    """uint8 [8, 8] to uint8 [32, 32]."""
    return np.asarray(Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BILINEAR))


@dataclass(frozen=True)
class DigitsConfig(Config):
    """Handwritten digits: 10 classes, 1,257 + 540 images, 8 x 8 enlarged to 32 x 32, grey."""

    name: ClassVar[str] = "digits"

    image_size: int = option(32, "height and width of the images in pixels")

    def check(self) -> None:
        self.require(1 <= self.image_size <= 4096, "image_size", "1 to 4096")


@register("dataset", DigitsConfig)
def load_digits(config: DigitsConfig, workers: int = 0) -> Dataset:
    """The split of :func:`load_digits_images` as a data set."""
    split = load_digits_images()
    shape = ImageConfig(height=config.image_size, width=config.image_size, channels=1)
    classes = [str(digit) for digit in range(10)]
    train = ArrayImages(split.train_images, split.train_labels, shape, "digits train", classes)
    test = ArrayImages(split.test_images, split.test_labels, shape, "digits test", classes)
    return Dataset("digits", classes, shape, train, test)
