"""Omniglot: 1,623 handwritten characters of 50 alphabets, drawn by 20 people each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from circle.data.datasets import Dataset, DatasetConfig
from circle.data.decode import ImageConfig, to_pixels
from circle.data.download import locate
from circle.data.folders import FileImages, list_images
from circle.data.images import Images, digest
from circle.data.npz import NpzImages
from circle.errors import CircleError, printable
from circle.registry import register

NATIVE = 105
SIDE = 32
TRAIN = 15  # of a character's 20 drawings, in the order of their file names
PARTS = ("images_background", "images_evaluation")


@dataclass(frozen=True)
class OmniglotConfig(DatasetConfig):
    """Omniglot: 1,623 classes of 15 + 5 drawings, 105 x 105 shrunk to 32 x 32, grey."""

    name: ClassVar[str] = "omniglot"


@register("dataset", OmniglotConfig)
def load_omniglot(config: OmniglotConfig, workers: int = 0) -> Dataset:
    """The two official parts together, as folders or zip archives, or one npz file of all drawings.

    A class is ``alphabet/character``. Its first 15 drawings are to learn from and the last 5 to be tested on:
    different people drew them, the same ones for all characters of an alphabet. Ink is white on black, unlike in
    the files.
    """
    path = locate("omniglot", config.path)
    shape = config.shape(SIDE, 1)
    if path.suffix.lower() == ".npz":
        images: Images = NpzImages(path, ("x", "images"), ("y", "labels"), shape)
        named = [_class_name(str(label)) for label in images.classes]
        classes, images.labels = _number([named[label] for label in images.labels])
        images.classes = classes
    else:
        images, classes = _from_files(path, shape, workers)
    train = _ranks(images.labels) < TRAIN
    return Dataset(
        "omniglot",
        classes,
        shape,
        images.subset(np.flatnonzero(train)),
        images.subset(np.flatnonzero(~train)),
        path=path,
        note="" if len(classes) == 1623 else f"{len(classes):,} classes instead of 1,623",
    )


def _from_files(path: Path, shape: ImageConfig, workers: int) -> tuple[Images, list[str]]:
    found: list[str] = []
    for part in PARTS:
        place = next((each for each in (path / part, path / f"{part}.zip") if each.exists()), None)
        if place is None:
            raise CircleError(f"{printable(path)}: no {part} in it; expected {' and '.join(PARTS)}, folders or .zip")
        root, names = list_images(place).files()
        # Below the folder of both parts, whether unpacked or not.
        found += [f"{part}/{name}" for name in names] if root == place else names
    if not found:
        raise CircleError(f"{printable(path)}: no drawings in it; expected {' and '.join(PARTS)}")
    classes, labels = _number([_class_name(name.rpartition("/")[0]) for name in found])
    native = ImageConfig(height=NATIVE, width=NATIVE, channels=1)
    return InvertedImages(FileImages(path, found, labels, native, workers, classes), shape), classes


class InvertedImages(Images):
    """Drawings with black and white exchanged at their own size, then brought to ``image``'s.

    In this order, because shrinking rounds: exchanging first gives the same pixels as the npz file.
    """

    def __init__(self, drawings: Images, image: ImageConfig) -> None:
        self._drawings = drawings
        self.image = image
        self.labels, self.classes = drawings.labels, drawings.classes

    def _read(self, positions: np.ndarray) -> np.ndarray:
        pixels = 255 - self._drawings[positions]
        shrunk = [to_pixels(each, self.image, "drawing").transpose(1, 2, 0) for each in pixels]
        return np.stack(shrunk) if shrunk else np.empty((0, self.image.height, self.image.width, 1), np.uint8)

    def _fingerprint(self) -> str:
        return digest(b"negative", self._drawings.fingerprint.encode(), repr(self.image.to_dict()).encode())


def _class_name(place: str) -> str:
    """``.../Alphabet_of_the_Magi/character01``, the last two."""
    return "/".join(place.split("/")[-2:])


def _number(names: list[str]) -> tuple[list[str], np.ndarray]:
    classes, labels = np.unique(np.array(names), return_inverse=True)
    return classes.tolist(), labels.astype(np.int64)


def _ranks(labels: np.ndarray) -> np.ndarray:
    """For every image, how many of its class come before it."""
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], labels[order])
    ranks = np.empty(len(labels), np.int64)
    ranks[order] = np.arange(len(labels)) - starts
    return ranks
