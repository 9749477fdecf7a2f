"""Images to advise by: the training part of whatever the user has, split into what is learned and what is held back."""

from __future__ import annotations

import abc
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from circle.data.datasets import Dataset
from circle.data.decode import ImageConfig
from circle.data.sources import Label, Source
from circle.errors import CircleError, UnreadableImageError

TILE = 256  # images read together
UNUSED, LEARNED, HELD_BACK = 0, 1, 2


class Tile(NamedTuple):
    """Some images with their labels, and which of them are held back."""

    pixels: np.ndarray  # uint8 [B, channels, height, width]
    labels: list[Label]
    held_back: np.ndarray  # bool [B]


@dataclass
class LabelledImages(abc.ABC):
    """Images to learn from and to judge by, wherever they are; ``counts`` has the number of images of each class."""

    name: str
    counts: Mapping[Label, int]
    image: ImageConfig
    unreadable: list[str] = field(default_factory=list, init=False)

    @abc.abstractmethod
    def tiles(self, roles: Mapping[Label, np.ndarray]) -> Iterator[Tile]:
        """The images that have a role; ``roles`` says which, for each class in the order in which its images come."""


class SourceImages(LabelledImages):
    """Class folders, zip archives and npz files; images that cannot be read are left out and named."""

    def __init__(self, source: Source, image: ImageConfig) -> None:
        super().__init__(str(source.path), source.counts, image)
        self._source = source

    def tiles(self, roles: Mapping[Label, np.ndarray]) -> Iterator[Tile]:
        seen: Counter[Label] = Counter()
        found: list[tuple[np.ndarray, Label, bool]] = []
        for sample in self._source:
            assert sample.label is not None
            role = roles[sample.label][seen[sample.label]]
            seen[sample.label] += 1
            if role == UNUSED:
                continue
            try:
                found.append((sample.pixels(self.image), sample.label, role == HELD_BACK))
            except UnreadableImageError as error:
                self.unreadable.append(str(error))
            if len(found) == TILE:
                yield self._tile(found)
                found = []
        if found:
            yield self._tile(found)

    @staticmethod
    def _tile(found: list[tuple[np.ndarray, Label, bool]]) -> Tile:
        pixels, labels, held_back = zip(*found, strict=True)
        return Tile(np.stack(pixels), list(labels), np.array(held_back))


class DatasetImages(LabelledImages):
    """The training part of a registered data set; no image of its test part is ever read."""

    def __init__(self, dataset: Dataset) -> None:
        counts = np.bincount(dataset.train.labels, minlength=len(dataset.classes)).tolist()
        super().__init__(dataset.name, dict(zip(dataset.classes, counts, strict=True)), dataset.image)
        self._images, self._classes = dataset.train, dataset.classes

    def tiles(self, roles: Mapping[Label, np.ndarray]) -> Iterator[Tile]:
        role = np.zeros(len(self._images), dtype=np.int8)
        for number, label in enumerate(self._classes):
            role[self._images.labels == number] = roles[label]
        used = np.flatnonzero(role)
        for start, pixels in zip(range(0, len(used), TILE), self._images.batches(used, TILE), strict=True):
            part = used[start : start + TILE]
            labels: list[Label] = [self._classes[number] for number in self._images.labels[part]]
            yield Tile(pixels.transpose(0, 3, 1, 2), labels, role[part] == HELD_BACK)


def assign_roles(images: LabelledImages, validation: float, limit: int | None, seed: int) -> dict[Label, np.ndarray]:
    """For every class, which of its images are learned, held back for validation, or left out by the limit.

    Depends on the numbers of images, the share ``validation``, the limit and the seed alone. The limit keeps the
    proportions of the classes, but leaves at least two images in each: one to learn, one to judge by.
    """
    counts = images.counts
    limit = sum(counts.values()) if limit is None else limit
    if len(counts) < 2:
        raise CircleError(f"{images.name}: {len(counts)} class; expected at least 2 to tell apart")
    lonely = [label for label, count in counts.items() if count < 2]
    if lonely:
        raise CircleError(f"{images.name}: class {lonely[0]!r} has one image; expected two, one of them to judge by")
    if limit < 2 * len(counts):
        raise CircleError(f"limit = {limit}: expected at least {2 * len(counts)}, two images of each class")
    spare = sum(counts.values()) - 2 * len(counts)
    share = min(1.0, (limit - 2 * len(counts)) / spare) if spare else 1.0
    random = np.random.Generator(np.random.PCG64([seed, 0]))
    roles = {}
    for label, count in counts.items():
        used = 2 + int(share * (count - 2))
        held = min(max(1, round(validation * used)), used - 1)
        role = np.repeat(np.array([HELD_BACK, LEARNED, UNUSED], dtype=np.int8), [held, used - held, count - used])
        roles[label] = random.permutation(role)
    return roles
