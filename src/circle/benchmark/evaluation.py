"""Predict and evaluate images from files, a bounded number at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from circle.benchmark.metrics import Reliability
from circle.data.images import DuplicateFinder, Images, Sample
from circle.ensemble import IMAGES_PER_TILE
from circle.errors import CircleError, UnreadableImageError, counted
from circle.labels import ordered
from circle.predictor import ImageClassifier
from circle.runtime.predictor import most_probable


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
    reliability
        Whether answers are right as often as their probabilities say.
    unreadable
        Why images were left out, one reason each.
    unknown_classes
        Classes in the data that the model never learned.
    duplicates
        Pictures that are in two classes.
    """

    confusion: Counter[tuple[Hashable, Hashable]] = field(default_factory=Counter)
    top_k: int = 1
    near: Counter[Hashable] = field(default_factory=Counter)
    reliability: Reliability = field(default_factory=Reliability)
    unreadable: list[str] = field(default_factory=list)
    unknown_classes: list[Hashable] = field(default_factory=list)
    duplicates: DuplicateFinder = field(default_factory=DuplicateFinder)

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


def probabilities(
    model: ImageClassifier,
    images: Images,
    unreadable: Callable[[str], None],
    inspect: Callable[[Sample], None] | None = None,
) -> Iterator[tuple[int, np.ndarray]]:
    """The position of each readable image with its probabilities [C]; the reason of each other to ``unreadable``."""
    batches = images.readable_batches(model.input_config(), IMAGES_PER_TILE, unreadable, inspect=inspect)
    for positions, pixels in batches:
        yield from zip(positions.tolist(), model.predict_proba(torch.from_numpy(pixels)), strict=True)


def evaluate(
    model: ImageClassifier,
    images: Images,
    report: Callable[[Evaluation], None] = lambda evaluation: None,
    *,
    top_k: int = 1,
    strict: bool = False,
) -> Evaluation:
    """Accuracy, confusions and reliability on labelled images. Classes that the model does not know count as wrong.

    With ``strict`` an image that cannot be read, and a picture that is in two classes, is an error.
    """
    result = Evaluation(top_k=top_k)
    labels = model.classes_.tolist()
    known = set(labels)
    result.unknown_classes = [label for label in images.counts if label not in known]

    def unreadable(why: str) -> None:
        if strict:
            raise UnreadableImageError(why)
        result.unreadable.append(why)

    for position, values in probabilities(model, images, unreadable, result.duplicates.add):
        answers = most_probable(labels, values, top_k)
        best = [label for label, _ in answers]
        true = images.label(position)
        result.reliability.add(answers[0][1], true == best[0])
        result.confusion[true, best[0]] += 1
        result.near[true] += true in best
        report(result)
    if not result.total:
        raise CircleError(
            f"{images.path}: none of {counted(len(images), 'image')} is readable ({result.unreadable[0]})"
        )
    if strict:
        result.duplicates.check()
    return result
