"""Data sets of images that stay where they are: labels in memory, pixels only when asked for.

>>> digits = load_dataset("digits")
>>> digits.classes[:3], len(digits.train), len(digits.test)
(['0', '1', '2'], 1257, 540)
>>> digits.test.images(np.array([5, 0])).shape
(2, 32, 32, 1)
"""

from __future__ import annotations

import abc
import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from circle import registry
from circle.config import Config, option
from circle.data.decode import ImageConfig
from circle.data.guard import printable
from circle.errors import CircleError

TEST_SHARE = 5  # where a data set has no test part, one image in five of every class is held back


class ImageSet(abc.ABC):
    """Labelled images, read or decoded when asked for.

    ``labels`` is int64 ``[N]``: for every image the index of its class in :attr:`Dataset.classes`.
    """

    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def images(self, indices: np.ndarray) -> np.ndarray:
        """uint8 ``[B, height, width, channels]`` of the images at ``indices``, in their order; a fresh array.

        Raises:
            CircleError: an index that does not exist, or an image that cannot be read, by its name.
        """
        return self._read(self._checked(indices))

    def batches(self, indices: np.ndarray, size: int) -> Iterator[np.ndarray]:
        """The images at ``indices`` in their order, ``size`` at a time; the last batch may be smaller."""
        if size < 1:
            raise CircleError(f"batches of {size} images: expected at least 1")
        return self._batches(self._checked(indices), size)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Equal for equal images and labels, wherever they are kept; other data, or another size, has another one.

        Found when first asked for. Arrays are hashed whole, and so are image files of up to 64 MB in all. Larger sets
        of files are told by names, sizes, labels and an archive's own checksums, because reading a million files
        takes longer than most uses of a cache would save.
        """
        return self._fingerprint()

    @abc.abstractmethod
    def _read(self, indices: np.ndarray) -> np.ndarray: ...

    @abc.abstractmethod
    def _fingerprint(self) -> str: ...

    def _batches(self, indices: np.ndarray, size: int) -> Iterator[np.ndarray]:
        for start in range(0, len(indices), size):
            yield self._read(indices[start : start + size])

    def _checked(self, indices: np.ndarray) -> np.ndarray:
        values = np.asarray(indices)
        # An empty list is an array of floats to NumPy; a mask of bools would silently become zeros and ones.
        if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
            raise CircleError(f"indices {values.dtype} of shape {list(values.shape)}: expected integers [B]")
        values = values.astype(np.int64)
        wrong = (values < 0) | (values >= len(self))
        if wrong.any():
            raise CircleError(f"index {values[wrong][0]} of {len(self)} images: expected 0 to {len(self) - 1}")
        return values


class Selection(ImageSet):
    """Some images of another set, by their positions in it."""

    def __init__(self, images: ImageSet, positions: np.ndarray, labels: np.ndarray | None = None) -> None:
        self._images = images
        self._positions = np.asarray(positions, dtype=np.int64)
        self.labels = images.labels[self._positions] if labels is None else np.asarray(labels, dtype=np.int64)

    def _read(self, indices: np.ndarray) -> np.ndarray:
        return self._images.images(self._positions[indices])

    def _batches(self, indices: np.ndarray, size: int) -> Iterator[np.ndarray]:
        return self._images.batches(self._positions[indices], size)

    def _fingerprint(self) -> str:
        return digest(self._images.fingerprint.encode(), self._positions.tobytes(), self.labels.tobytes())


def shares(images: ImageSet, count: int) -> list[ImageSet]:
    """The set cut into ``count`` sets: image i is in that of number i mod ``count``, at position i // ``count``."""
    if count == 1:
        return [images]
    return [Selection(images, np.arange(number, len(images), count)) for number in range(count)]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set: images to learn from and images to be tested on, of the same classes.

    ``image`` is the shape of what both sets' ``images`` return, ``path`` where the files are, and ``note`` what
    one should know of this copy, such as a test part that had to be held back; often empty.
    """

    name: str
    classes: list[str]
    image: ImageConfig
    train: ImageSet
    test: ImageSet
    path: Path | None = None
    note: str = ""
    origin: str = ""  # name of the data set that this is a part of

    def balanced_part(self, images_of_each: int) -> Dataset:
        """The same with the first so many training images of each class; the test images stay."""
        counts = np.bincount(self.train.labels, minlength=len(self.classes))
        if not 1 <= images_of_each <= counts.min():
            raise CircleError(
                f"{images_of_each} images of each class: {self.name} has 1 to {counts.min()} of every class"
            )
        positions = [np.flatnonzero(self.train.labels == label)[:images_of_each] for label in range(len(self.classes))]
        train = Selection(self.train, np.sort(np.concatenate(positions)))
        return replace(self, name=f"{self.name}-{images_of_each}", train=train, origin=self.origin or self.name)

    def __post_init__(self) -> None:
        for part, images in (("train", self.train), ("test", self.test)):
            counts = np.bincount(images.labels, minlength=len(self.classes))
            if len(counts) > len(self.classes):
                raise CircleError(f"{self.name}: {part} holds class {len(counts) - 1} of {len(self.classes)}")
            empty = [label for label, count in zip(self.classes, counts, strict=True) if not count]
            if empty:
                raise CircleError(f"{self.name}: {part} has no image of {listed(empty)}; expected some of every class")


@dataclass(frozen=True)
class DatasetConfig(Config):
    """What every data set that is kept in files can be asked for."""

    path: str | None = option(None, "where its files are; by default the cache folder (CIRCLE_DATA)")
    image_size: int | None = option(None, "height and width of the images in pixels; by default the data set's own")

    def check(self) -> None:
        self.require(self.image_size is None or 1 <= self.image_size <= 4096, "image_size", "1 to 4096")

    def shape(self, side: int, channels: int) -> ImageConfig:
        """The shape of images that are ``side`` pixels high and wide unless ``image_size`` says otherwise."""
        side = self.image_size or side
        return ImageConfig(height=side, width=side, channels=channels)


def load_dataset(
    choice: str | Mapping[str, Any] | Config,
    *,
    path: Path | str | None = None,
    image_size: int | None = None,
    workers: int = 0,
) -> Dataset:
    """A data set by its name, as in ``circle.list_datasets()``, or by its config.

    ``path`` says where the files are, if not in the cache folder; ``image_size`` has them resized; ``workers``
    processes decode image files (0: this one does). The images are the same for any number of workers.

    Raises:
        CircleError: unknown name or setting, files missing (and where to get them) or damaged.
    """
    config = registry.resolve("dataset", choice)
    given = {"path": None if path is None else os.fspath(path), "image_size": image_size}
    config = config.replace(**{key: value for key, value in given.items() if value is not None})
    if workers < 0:
        raise CircleError(f"workers = {workers}: expected 0 or more")
    load: Callable[[Config, int], Dataset] = registry.entry("dataset", config.name).part
    return load(config, workers)


def number_classes(
    train: Sequence[str | int], test: Sequence[str | int], where: Path
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The sorted classes by name, and the index of each label of the two parts among them.

    Raises:
        CircleError: a class that only one of the parts has.
    """
    only_train, only_test = set(train) - set(test), set(test) - set(train)
    for has, lacks, labels in (("train", "test", only_train), ("test", "train", only_test)):
        if labels:
            names = listed(sorted(map(str, labels)))
            raise CircleError(
                f"{printable(where)}: {has} has {names}, {lacks} does not; expected the same classes in both"
            )
    classes = sorted(set(train), key=lambda label: (isinstance(label, str), label))  # numbers as numbers: 2, then 10
    index = {label: number for number, label in enumerate(classes)}
    train_labels, test_labels = (np.array([index[label] for label in part], dtype=np.int64) for part in (train, test))
    return [str(label) for label in classes], train_labels, test_labels


def hold_back(labels: np.ndarray, classes: Sequence[str], where: Path) -> tuple[np.ndarray, np.ndarray]:
    """Positions to learn from and to test on: of every class one fifth, at least one, is drawn for testing.

    Depends on the labels alone, so that every run and every machine holds back the same images.
    """
    random = np.random.Generator(np.random.PCG64(0))
    held: list[np.ndarray] = []
    for number, label in enumerate(classes):
        positions = np.flatnonzero(labels == number)
        if len(positions) < 2:
            raise CircleError(
                f"{printable(where)}: class {printable(label)} has one image; expected two or a test part"
            )
        held.append(random.permutation(positions)[: max(1, round(len(positions) / TEST_SHARE))])
    test = np.sort(np.concatenate(held))
    return np.setdiff1d(np.arange(len(labels)), test), test


def listed(names: Sequence[str], shown: int = 3) -> str:
    """The first few of many names, for one line."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return printable(", ".join(names[:shown])) + more


def digest(*parts: bytes) -> str:
    """A hash of byte strings that tells where one ends and the next begins."""
    total = hashlib.blake2b(digest_size=16)
    for part in parts:
        total.update(len(part).to_bytes(8, "little"))
        total.update(part)
    return total.hexdigest()
