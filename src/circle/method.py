"""What the benchmark runs: anything that learns tasks in turn and scores images, CIRCLE among them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from circle.data.images import Subset
from circle.errors import CircleError, counted
from circle.extractors import ParameterCount
from circle.labels import ordered, plain_labels

if TYPE_CHECKING:
    from circle.data.datasets import Dataset
    from circle.data.images import Images
    from circle.learner import CircleClassifier

MAX_BATCH = 1024  # images learned or scored at a time


TaskImages = np.ndarray | Subset


@dataclass(frozen=True, eq=False)
class Task:
    """What arrives at once.

    Parameters
    ----------
    images : array or view
        uint8 [N, H, W] or [N, H, W, C]; a view reads them when sliced, and ``np.asarray`` brings all into memory.
    labels : ndarray [N]
        One for each image.

    Examples
    --------
    >>> Task(np.zeros((3, 8, 8), np.uint8), np.array(["dog", "cat", "dog"])).classes
    ['cat', 'dog']
    """

    images: TaskImages
    labels: np.ndarray

    def __post_init__(self) -> None:
        if self.images.dtype != np.uint8 or self.images.ndim not in (3, 4):
            raise CircleError(
                f"task images {self.images.dtype} of shape {self.images.shape}: "
                "expected uint8 [N, H, W] or [N, H, W, C]"
            )
        if len(self.images) == 0 or len(self.images) != len(self.labels):
            raise CircleError(
                f"task of {counted(len(self.images), 'image')} and {counted(len(self.labels), 'label')}: "
                "expected at least one image and one label for each"
            )

    @property
    def classes(self) -> list[Hashable]:
        """The classes of this task, in canonical order."""
        return ordered(set(plain_labels(self.labels)))


@runtime_checkable
class Method(Protocol):
    """Learns one task after another and may never look back at an earlier one."""

    @property
    def classes(self) -> Sequence[Hashable]:
        """The classes seen so far, in the order of the columns of ``scores``."""
        ...

    def learn(self, task: Task) -> None:
        """Learn from this task's images; they are gone afterwards."""
        ...

    def scores(self, images: TaskImages) -> Tensor:
        """How well each class seen so far fits: [N, len(classes)], the largest wins."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that was learned and all that decides how learning goes on: tensors and plain data, nested."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where :meth:`state_dict` was taken, as if nothing had happened."""
        ...

    def parameter_count(self) -> ParameterCount:
        """Learnable, fixed and generated numbers, once something was learned."""
        ...


@dataclass(frozen=True)
class Step:
    """A step of training within a task: where it is, counted from 1, and the terms of the loss there."""

    task: int
    stage: str
    epoch: int
    epochs: int
    step: int
    steps: int
    losses: dict[str, float]


@runtime_checkable
class Steps(Protocol):
    """A method that learns a task in many steps and can be left after any of them.

    ``on_step`` is called after each; what it raises ends ``learn``, and the state that it may save goes on from there.
    """

    on_step: Callable[[Step], None] | None


def batches(count: int) -> list[slice]:
    """Slices of at most ``MAX_BATCH`` that make up ``count`` images."""
    return [slice(start, start + MAX_BATCH) for start in range(0, count, MAX_BATCH)]


def predict(method: Method, images: TaskImages) -> list[Hashable]:
    """The class with the largest score for each image, argmax_c scores[i, c], as labels [N]."""
    classes = list(method.classes)
    return [classes[column] for column in method.scores(images).argmax(dim=1).tolist()]


class CircleMethod:
    """CIRCLE as a benchmark method: scores are its class probabilities.

    What it has learned does not depend on how the stream was cut, so one pass serves all splits
    into tasks. Features that were computed before (:meth:`use_features`) are taken from there instead of anew.

    Parameters
    ----------
    classifier : CircleClassifier
        The model; prepared for the shape of the images where features are used that were computed before.

    Attributes
    ----------
    cached_seconds : float
        What the features of all learned images, where they came from a cache, once took to compute.

    Examples
    --------
    >>> from circle import CircleClassifier
    >>> pixels = np.random.default_rng(0).integers(0, 256, (8, 16, 16), dtype=np.uint8)
    >>> method = CircleMethod(CircleClassifier())
    >>> method.learn(Task(pixels, np.array(["cat", "dog"] * 4)))
    >>> method.scores(pixels).shape
    torch.Size([8, 2])
    """

    def __init__(self, classifier: CircleClassifier) -> None:
        self.classifier = classifier
        self.cached_seconds = 0.0
        self._features: dict[int, list[list[np.ndarray]]] = {}
        self._seconds: dict[int, float] = {}

    @property
    def classes(self) -> Sequence[Hashable]:
        return plain_labels(getattr(self.classifier, "classes_", ()))

    def own_images(self, dataset: Dataset) -> tuple[Images, Images]:
        """The training and the test images whose features this method will want."""
        return dataset.train, dataset.test

    def use_features(self, images: Images, features: list[list[np.ndarray]], seconds: float = 0.0) -> None:
        """Features of all images of a set: for each group, for each member, integers [N, size]; and what they took."""
        self._features[id(images)] = features
        self._seconds[id(images)] = seconds / len(images)

    def learn(self, task: Task) -> None:
        labels = plain_labels(task.labels)
        if isinstance(task.images, Subset):
            self.cached_seconds += len(labels) * self._seconds.get(id(task.images.source), 0.0)
        for part in batches(len(labels)):
            features = self._cached(task.images, part)
            if features is None:
                self.classifier.partial_fit(task.images[part], labels[part])
            else:
                self.classifier.learn_features(features, labels[part])
        for statistics in self.classifier.statistics_:
            statistics.flush()  # so that the work of learning is not put down to the evaluation that follows

    def scores(self, images: TaskImages) -> Tensor:
        return torch.cat([self._head_probabilities(images, part).mean(0) for part in batches(len(images))])

    def _head_probabilities(self, images: TaskImages, part: slice) -> Tensor:
        """Probabilities [k, B, C] that each group gives to a part of the images."""
        features = self._cached(images, part)
        if features is None:
            features = self.classifier.features(images[part])
        return self.classifier.head_probabilities(features)

    def _cached(self, images: TaskImages, part: slice) -> list[Tensor] | None:
        """Features of a part of a view for each group, where there are any."""
        features = self._features.get(id(images.source)) if isinstance(images, Subset) else None
        if features is None or isinstance(images, np.ndarray):
            return None
        indices = images.indices[part]
        return [torch.cat([torch.from_numpy(member[indices]) for member in group], 1) for group in features]

    def state_dict(self) -> dict[str, Any]:
        return self.classifier.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.classifier.load_state_dict(state)

    def parameter_count(self) -> ParameterCount:
        return self.classifier.parameter_count()
