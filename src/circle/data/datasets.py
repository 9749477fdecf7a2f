"""Data sets by name: images to learn from and to be tested on, which stay where they are until they are asked for.

>>> digits = load_dataset("digits")
>>> digits.classes[:3], len(digits.train), len(digits.test)
(['0', '1', '2'], 1257, 540)
>>> digits.test[[5, 0]].shape
(2, 32, 32, 1)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from circle import registry
from circle.config import Config, option
from circle.data.decode import ImageConfig
from circle.data.images import Images, listed
from circle.errors import CircleError, counted, printable


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set: images to learn from and images to be tested on, of the same classes.

    Attributes
    ----------
    name
        What results are kept under.
    classes
        The names of the classes; labels of both parts are indices into it.
    image
        The shape of the images of both parts.
    train, test
        The images.
    path
        Where the files are.
    note
        What one should know of this copy, such as a test part that had to be held back; often empty.
    origin
        The name of the data set that this is a part of; empty where it is none.

    Examples
    --------
    >>> few = load_dataset("digits").balanced_part(20)
    >>> few.name, few.origin, len(few.train), len(few.test)
    ('digits-20', 'digits', 200, 540)
    """

    name: str
    classes: list[str]
    image: ImageConfig
    train: Images
    test: Images
    path: Path | None = None
    note: str = ""
    origin: str = ""

    def balanced_part(self, images_of_each: int) -> Dataset:
        """The same with the first so many training images of each class; the test images stay."""
        counts = np.bincount(self.train.labels, minlength=len(self.classes))
        if not 1 <= images_of_each <= counts.min():
            raise CircleError(
                f"{counted(images_of_each, 'image')} of each class: {self.name} has 1 to {counts.min()} of every class"
            )
        positions = [np.flatnonzero(self.train.labels == label)[:images_of_each] for label in range(len(self.classes))]
        train = self.train.subset(np.sort(np.concatenate(positions)))
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
