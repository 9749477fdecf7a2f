"""Handwritten digits that come with scikit-learn: the smallest real stream, no download."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

SIZE = 32  # pixels per side; the 8 x 8 originals are too small for the extractors' patches
LARGEST_VALUE = 16  # the originals count ink in 4 x 4 blocks: 0..16
TEST_SHARE = 0.3
SPLIT_SEED = 0  # which images are held out is part of the data set, hence no seed of the caller's


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
    originals, labels = load_digits(return_X_y=True)
    grey = np.rint(originals * (255 / LARGEST_VALUE)).astype(np.uint8).reshape(-1, 8, 8)
    images = np.stack([_enlarge(image) for image in grey])
    labels = labels.astype(np.int64)
    train, test = map(
        np.asarray,
        train_test_split(np.arange(len(labels)), test_size=TEST_SHARE, stratify=labels, random_state=SPLIT_SEED),
    )
    return DigitsSplit(images[train], labels[train], images[test], labels[test])


def _enlarge(image: np.ndarray) -> np.ndarray:
    """uint8 [8, 8] to uint8 [32, 32]."""
    return np.asarray(Image.fromarray(image).resize((SIZE, SIZE), Image.Resampling.BILINEAR))
