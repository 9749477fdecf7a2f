"""The bundled digits: values, shapes and a split that is the same everywhere."""

import hashlib

import numpy as np
from sklearn.datasets import load_digits

from circle.data.digits import load_digits_images


def test_shapes_types_and_range() -> None:
    digits = load_digits_images()
    for images, labels, count in [
        (digits.train_images, digits.train_labels, 1257),
        (digits.test_images, digits.test_labels, 540),
    ]:
        assert images.shape == (count, 32, 32) and images.dtype == np.uint8
        assert labels.shape == (count,) and labels.dtype == np.int64
        assert images.min() == 0 and images.max() == 255


def test_split_is_stratified() -> None:
    digits = load_digits_images()
    train, test = np.bincount(digits.train_labels), np.bincount(digits.test_labels)
    np.testing.assert_allclose(test / (train + test), 0.3, atol=0.005)


def test_every_original_is_on_one_side_with_its_own_label() -> None:
    digits = load_digits_images()
    originals, labels = load_digits(return_X_y=True)
    images = np.concatenate([digits.train_images, digits.test_images]).astype(float)
    images = images.reshape(len(images), -1)
    expected = _bilinear(originals.reshape(-1, 8, 8) * 255 / 16).reshape(len(images), -1)
    distance = (images**2).sum(1)[:, None] - 2 * images @ expected.T + (expected**2).sum(1)
    nearest = distance.argmin(axis=1)
    assert len(set(nearest.tolist())) == len(originals)
    assert abs(images - expected[nearest]).max() < 1.5  # values and both passes of the enlargement are rounded
    np.testing.assert_array_equal(labels[nearest], np.concatenate([digits.train_labels, digits.test_labels]))


def _bilinear(images: np.ndarray) -> np.ndarray:
    """[N, 8, 8] to [N, 32, 32]: pixel i lies at (i + 0.5) / 4 - 0.5 of the input, edges repeated."""
    position = np.clip((np.arange(32) + 0.5) / 4 - 0.5, 0, 7)
    weights = np.maximum(0, 1 - abs(position[:, None] - np.arange(8)))
    return weights @ images @ weights.T


def test_the_split_never_moves() -> None:
    """Published numbers rest on which images are held out."""
    assert hashlib.sha256(load_digits_images().test_labels.tobytes()).hexdigest()[:16] == "12f9e0d92f950d5f"
    np.testing.assert_array_equal(load_digits_images().test_images, load_digits_images().test_images)
