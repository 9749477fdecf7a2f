"""Predict and evaluate images from files, a bounded number at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from circle.data.decode import ImageConfig
from circle.data.sources import Sample, Source
from circle.ensemble import IMAGES_PER_TILE
from circle.errors import CircleError, UnreadableImageError, counted
from circle.labels import ordered
from circle.predictor import ImageClassifier


@dataclass
class Evaluation:
    """How a model did on labelled images.

    Attributes
    ----------
    confusion
        ``confusion[true, predicted]`` is the number of images.
    top_k
        An image counts in ``near`` if its class is among this many most probable ones.
    near
        Number of such images of each class.
    unreadable
        Why images were left out, one reason each.
    unknown_classes
        Classes in the data that the model never learned.
    """

    confusion: Counter[tuple[Hashable, Hashable]] = field(default_factory=Counter)
    top_k: int = 1
    near: Counter[Hashable] = field(default_factory=Counter)
    unreadable: list[str] = field(default_factory=list)
    unknown_classes: list[Hashable] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.confusion.total()

    @property
    def correct(self) -> int:
        return sum(count for (true, predicted), count in self.confusion.items() if true == predicted)

    @property
    def accuracy(self) -> float:
        """Share of the readable images whose most probable class is the right one."""
        return self.correct / self.total

    @property
    def top_k_accuracy(self) -> float:
        """Share of the readable images whose class is among the ``top_k`` most probable ones."""
        return self.near.total() / self.total

    def confusion_matrix(self) -> tuple[list[Hashable], np.ndarray]:
        """Labels in the data or in predictions, in order, and the images int64 [true, predicted] of each pair."""
        labels = ordered({label for pair in self.confusion for label in pair})
        place = {label: index for index, label in enumerate(labels)}
        matrix = np.zeros((len(labels), len(labels)), np.int64)
        for (true, predicted), count in self.confusion.items():
            matrix[place[true], place[predicted]] = count
        return labels, matrix

    def per_class(self) -> list[tuple[Hashable, int, int]]:
        """(label, correct, total) of every class in the data, worst first."""
        total: Counter[Hashable] = Counter()
        correct: Counter[Hashable] = Counter()
        for (true, predicted), count in self.confusion.items():
            total[true] += count
            correct[true] += count if true == predicted else 0
        return sorted(((label, correct[label], n) for label, n in total.items()), key=lambda row: row[1] / row[2])

    def worst_pairs(self, number: int) -> list[tuple[Hashable, Hashable, int]]:
        """(true, predicted, images) of the most frequent confusions."""
        wrong = [(*pair, count) for pair, count in self.confusion.items() if pair[0] != pair[1]]
        return sorted(wrong, key=lambda row: (-row[2], str(row[0]), str(row[1])))[:number]


def readable_tiles(
    samples: Iterable[Sample], image: ImageConfig, unreadable: Callable[[str], None]
) -> Iterator[tuple[list[Sample], torch.Tensor]]:
    """Readable samples with their pixels, uint8 [B, C, H, W]; the reason of each unreadable one goes elsewhere."""
    tile: list[tuple[Sample, np.ndarray]] = []

    def stacked() -> Iterator[tuple[list[Sample], torch.Tensor]]:
        if tile:
            yield [sample for sample, _ in tile], torch.from_numpy(np.stack([pixels for _, pixels in tile]))
            tile.clear()

    for sample in samples:
        try:
            tile.append((sample, sample.pixels(image)))
        except UnreadableImageError as error:
            unreadable(str(error))
        if len(tile) == IMAGES_PER_TILE:
            yield from stacked()
    yield from stacked()


def probabilities(
    model: ImageClassifier, samples: Iterable[Sample], unreadable: Callable[[str], None]
) -> Iterator[tuple[Sample, np.ndarray]]:
    """Each readable sample with its probabilities [C]; the reason of each unreadable one goes to ``unreadable``."""
    for tile, pixels in readable_tiles(samples, model.input_config(), unreadable):
        yield from zip(tile, model.predict_proba(pixels), strict=True)


def most_probable(labels: Sequence[Hashable], values: np.ndarray, number: int) -> list[tuple[Hashable, float]]:
    """The classes of largest probability, largest first, with it; of equal ones the first in the model's order.

    >>> most_probable(["ant", "bee", "cow"], np.array([0.25, 0.5, 0.25]), 2)
    [('bee', 0.5), ('ant', 0.25)]
    """
    best: list[int] = [int(values.argmax())] if number == 1 else np.argsort(-values, kind="stable")[:number].tolist()
    return [(labels[index], float(values[index])) for index in best]


def evaluate(
    model: ImageClassifier,
    source: Source,
    report: Callable[[Evaluation], None] = lambda evaluation: None,
    *,
    top_k: int = 1,
) -> Evaluation:
    """Accuracy and confusions on labelled images. Classes that the model does not know count as wrong."""
    result = Evaluation(top_k=top_k)
    labels = model.classes_.tolist()
    known = set(labels)
    result.unknown_classes = [label for label in source.labels if label not in known]
    for sample, values in probabilities(model, source, result.unreadable.append):
        best = [label for label, _ in most_probable(labels, values, top_k)]
        result.confusion[sample.label, best[0]] += 1
        result.near[sample.label] += sample.label in best
        report(result)
    if not result.total:
        raise CircleError(
            f"{source.path}: none of {counted(len(source), 'image')} is readable ({result.unreadable[0]})"
        )
    return result
