"""Data sets: what every one promises, and the rules they share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import circle
from circle.data.datasets import Dataset, load_dataset, number_classes
from circle.data.decode import ImageConfig
from circle.data.hold_out import hold_out
from circle.data.images import ArrayImages, Subset
from circle.errors import CircleError

SHAPE = ImageConfig(height=4, width=4, channels=3)


@pytest.fixture
def pixels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (20, 4, 4, 3), dtype=np.uint8)


@pytest.fixture
def images(pixels: np.ndarray) -> ArrayImages:
    return ArrayImages(pixels, np.arange(20) % 4, SHAPE, "pixels")


def test_all_data_sets_are_registered() -> None:
    assert circle.list_datasets() == [
        *("cifar100", "digits", "fashion_mnist", "folder", "imagenet1k", "imagenet_subset", "omniglot", "tinyimagenet"),
    ]


def test_images_come_in_the_order_asked_for(images: ArrayImages, pixels: np.ndarray) -> None:
    asked = np.array([7, 0, 7, 19])
    assert np.array_equal(images[asked], pixels[asked])
    assert images[asked].dtype == np.uint8
    assert images[np.array([], dtype=np.int64)].shape == (0, 4, 4, 3)
    images[asked][:] = 0
    assert np.array_equal(images[asked], pixels[asked]), "the caller's array is its own"


def test_indices_as_of_an_array(images: ArrayImages, pixels: np.ndarray) -> None:
    assert np.array_equal(images[7], pixels[7])
    assert np.array_equal(images[[3, 5]], pixels[[3, 5]])
    assert np.array_equal(images[2:9:3], pixels[2:9:3])
    assert np.array_equal(np.asarray(images), pixels)
    assert images.shape == pixels.shape and images.dtype == pixels.dtype
    assert [sample.name for sample in images][:2] == ["pixels[0]", "pixels[1]"]
    assert images.counts == dict.fromkeys(range(4), 5)


def test_shards_make_up_the_whole(images: ArrayImages, pixels: np.ndarray) -> None:
    assert images.shard(0, 1) is images
    parts = [images.shard(rank, 3) for rank in range(3)]
    assert [len(part) for part in parts] == [7, 7, 6]
    assert all(np.array_equal(parts[i % 3][np.array([i // 3])][0], pixels[i]) for i in range(20))
    assert [part.labels.tolist() for part in parts] == [images.labels[number::3].tolist() for number in range(3)]
    assert len({part.fingerprint for part in (images, *parts)}) == 4


def test_batches_are_the_images(images: ArrayImages, pixels: np.ndarray) -> None:
    asked = np.arange(19, 8, -1)
    batches = list(images.batches(asked, 4))
    assert [len(batch) for batch in batches] == [4, 4, 3]
    assert np.array_equal(np.concatenate(batches), pixels[asked])


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        (np.array([20]), "index 20 of 20 images"),
        (np.array([-1]), "index -1"),
        (np.array([True, False]), "expected integers"),
        (np.array([0.0]), "expected integers"),
        (np.array([[0]]), "expected integers"),
    ],
)
def test_wrong_indices_are_refused(images: ArrayImages, indices: np.ndarray, message: str) -> None:
    with pytest.raises(CircleError, match=message):
        images[indices]


def test_batches_of_no_images_are_refused(images: ArrayImages) -> None:
    with pytest.raises(CircleError, match="batches of 0"):
        images.batches(np.arange(3), 0)


def test_fingerprint_tells_pixels_labels_and_shape_apart(images: ArrayImages, pixels: np.ndarray) -> None:
    assert ArrayImages(pixels.copy(), images.labels, SHAPE, "elsewhere").fingerprint == images.fingerprint
    changed = pixels.copy()
    changed[19, 3, 3, 2] ^= 1
    others = [
        ArrayImages(changed, images.labels, SHAPE, "pixels"),
        ArrayImages(pixels, images.labels[::-1], SHAPE, "pixels"),
        ArrayImages(pixels, images.labels, SHAPE.replace(height=5), "pixels"),
        Subset(images, np.arange(19)),
        Subset(images, np.arange(20)[::-1]),
    ]
    assert len({images.fingerprint, *(other.fingerprint for other in others)}) == 6


def test_selection(images: ArrayImages, pixels: np.ndarray) -> None:
    selection = Subset(images, np.array([5, 3, 8]))
    assert selection.labels.tolist() == [1, 3, 0]
    assert np.array_equal(selection[np.array([2, 0])], pixels[[8, 5]])
    assert np.array_equal(np.concatenate(list(selection.batches(np.arange(3), 2))), pixels[[5, 3, 8]])


def test_arrays_of_another_shape_are_resized() -> None:
    grey = np.full((3, 8, 8), 77, np.uint8)
    resized = ArrayImages(grey, np.zeros(3), SHAPE, "grey")[np.arange(3)]
    assert resized.shape == (3, 4, 4, 3)
    assert (resized == 77).all()


def test_hold_out_is_stratified_and_always_the_same() -> None:
    labels = np.repeat([0, 1, 2], [50, 11, 2])
    train, test = hold_out(labels, 0.2, classes=["a", "b", "c"], where=Path("here"), need_both=True)
    assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(63))
    assert np.bincount(labels[test]).tolist() == [10, 2, 1]
    assert np.array_equal(test, hold_out(labels, 0.2)[1])
    with pytest.raises(CircleError, match="here: class c has one image"):
        hold_out(labels[:-1], 0.2, classes=["a", "b", "c"], where=Path("here"), need_both=True)


def test_classes_must_agree() -> None:
    classes, train, test = number_classes([10, 2, 2], [2, 10], Path("here"))
    assert (classes, train.tolist(), test.tolist()) == (["2", "10"], [1, 0, 0], [0, 1])
    with pytest.raises(CircleError, match="here: train has cat, cow, dog and 1 more, test does not"):
        number_classes(["ant", "cat", "cow", "dog", "elk"], ["ant"], Path("here"))
    with pytest.raises(CircleError, match="here: test has bee, train does not"):
        number_classes(["ant"], ["ant", "bee"], Path("here"))


def test_every_class_needs_images_in_both_parts(images: ArrayImages) -> None:
    with pytest.raises(CircleError, match="test has no image of d;"):
        Dataset("mine", list("abcd"), SHAPE, images, Subset(images, np.array([0, 1, 2])))
    with pytest.raises(CircleError, match="holds class 3 of 3"):
        Dataset("mine", list("abc"), SHAPE, images, images)


def test_names_and_settings() -> None:
    assert load_dataset({"name": "digits", "image_size": 16}).image == ImageConfig(height=16, width=16, channels=1)
    assert load_dataset("digits", image_size=8).test[np.arange(2)].shape == (2, 8, 8, 1)
    with pytest.raises(CircleError, match="unknown dataset 'cifar': did you mean 'cifar100'"):
        load_dataset("cifar")
    with pytest.raises(CircleError, match="unknown digits setting 'path'"):
        load_dataset("digits", path="here")
    with pytest.raises(CircleError, match="cifar100.image_size = 0"):
        load_dataset("cifar100", image_size=0)
    with pytest.raises(CircleError, match="workers = -1"):
        load_dataset("digits", workers=-1)


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("name", "path", "classes", "train", "test", "side", "channels"),
    [
        ("cifar100", "cifar-100-binary", 100, 50_000, 10_000, 32, 3),
        ("omniglot", "omniglot.npz", 1623, 24_345, 8_115, 32, 1),
        ("tinyimagenet", "tinyimagenet-sample", 200, 10_000, 2_000, 64, 3),
        ("folder", "caltech101-sample", 101, 1_010, 505, 32, 3),
    ],
)
def test_real_data_sets(
    real_data: Path, name: str, path: str, classes: int, train: int, test: int, side: int, channels: int
) -> None:
    dataset = load_dataset(name, path=real_data / path)
    assert (len(dataset.classes), len(dataset.train), len(dataset.test)) == (classes, train, test)
    assert len(set(np.bincount(dataset.train.labels).tolist())) == 1
    asked = np.array([train - 1, 0, train // 2])
    images = dataset.train[asked]
    assert images.shape == (3, side, side, channels)
    assert images.std() > 10
    assert np.array_equal(np.concatenate(list(dataset.train.batches(asked, 2))), images)
    again = load_dataset(name, path=real_data / path)
    assert again.train.fingerprint == dataset.train.fingerprint != dataset.test.fingerprint
