"""Predict and evaluate images from files, a bounded number at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from circle.data.decode import ImageConfig
from circle.data.sources import Sample, Source
from circle.errors import CircleError, UnreadableImageError
from circle.learner import CircleClassifier
from circle.machinery import TILE


@dataclass
class Evaluation:
    """How a model did on labelled images: ``confusion[true, predicted]`` is the number of images."""

    confusion: Counter[tuple[Hashable, Hashable]] = field(default_factory=Counter)
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
        if len(tile) == TILE:
            yield from stacked()
    yield from stacked()


def probabilities(
    model: CircleClassifier, samples: Iterable[Sample], unreadable: Callable[[str], None]
) -> Iterator[tuple[Sample, np.ndarray]]:
    """Each readable sample with its probabilities [C]; the reason of each unreadable one goes to ``unreadable``."""
    for tile, pixels in readable_tiles(samples, model.input_config(), unreadable):
        yield from zip(tile, model.predict_proba(pixels), strict=True)


def evaluate(
    model: CircleClassifier, source: Source, report: Callable[[Evaluation], None] = lambda evaluation: None
) -> Evaluation:
    """Accuracy and confusions on labelled images. Classes that the model does not know count as wrong."""
    result = Evaluation()
    classes = model.classes_
    known = set(classes.tolist())
    result.unknown_classes = [label for label in source.labels if label not in known]
    for sample, values in probabilities(model, source, result.unreadable.append):
        predicted = classes[values.argmax()]
        result.confusion[sample.label, predicted.item() if isinstance(predicted, np.generic) else predicted] += 1
        report(result)
    if not result.total:
        raise CircleError(f"{source.path}: none of {len(source)} images is readable ({result.unreadable[0]})")
    return result
