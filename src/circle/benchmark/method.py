"""What the benchmark runs: anything that learns tasks in turn and scores images, CIRCLE among them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from circle.errors import CircleError
from circle.labels import ordered, plain_labels

if TYPE_CHECKING:
    from circle.learner import CircleClassifier


@dataclass(frozen=True, eq=False)
class Task:
    """What arrives at once: images uint8 [N, H, W] or [N, H, W, C], and one label for each, [N]."""

    images: np.ndarray
    labels: np.ndarray

    def __post_init__(self) -> None:
        if self.images.dtype != np.uint8 or self.images.ndim not in (3, 4):
            raise CircleError(
                f"task images {self.images.dtype} of shape {self.images.shape}: "
                "expected uint8 [N, H, W] or [N, H, W, C]"
            )
        if len(self.images) == 0 or len(self.images) != len(self.labels):
            raise CircleError(
                f"task of {len(self.images)} images and {len(self.labels)} labels: "
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

    def scores(self, images: np.ndarray) -> Tensor:
        """How well each class seen so far fits: [N, len(classes)], the largest wins."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that was learned."""
        ...


def predict(method: Method, images: np.ndarray) -> list[Hashable]:
    """The class with the largest score for each image, argmax_c scores[i, c], as labels [N]."""
    classes = list(method.classes)
    return [classes[column] for column in method.scores(images).argmax(dim=1).tolist()]


class CircleMethod:
    """CIRCLE as a benchmark method: scores are its class probabilities."""

    def __init__(self, classifier: CircleClassifier) -> None:
        self.classifier = classifier

    @property
    def classes(self) -> Sequence[Hashable]:
        return plain_labels(getattr(self.classifier, "classes_", ()))

    def learn(self, task: Task) -> None:
        self.classifier.partial_fit(task.images, task.labels)

    def scores(self, images: np.ndarray) -> Tensor:
        return torch.as_tensor(self.classifier.predict_proba(images))

    def state_dict(self) -> dict[str, Any]:
        return self.classifier.state_dict()
