"""CIRCLE by several processes that share the images.

Image i of a set belongs to process i mod R for good: it extracts the image's features, keeps them in its own cache,
learns the image and scores it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from circle.benchmark.distributed_method import JointCircle
from circle.data.datasets import Dataset, ImageSet, shares
from circle.data.views import ImageView
from circle.distributed.team import Team, require_exact
from circle.errors import CircleError
from circle.learner import CircleClassifier
from circle.method import CircleMethod, Task


class DataCircle(JointCircle):
    """A whole ensemble and some of the images; after every task all processes hold the statistics of all images."""

    def __init__(self, classifier: CircleClassifier, team: Team, dataset: Dataset) -> None:
        require_exact(classifier)
        super().__init__(classifier.prepare(dataset.image), team, dataset)
        self._own = {name: shares(images, team.size)[team.rank] for name, images in self._sets.items()}
        for name, images in self._own.items():
            if not len(images):
                raise CircleError(f"{dataset.name}: {len(self._sets[name])} {name} images for {team.size} processes")

    def own_images(self, dataset: Dataset) -> tuple[ImageSet, ImageSet]:
        return self._own["train"], self._own["test"]

    def _share(self, name: str, indices: np.ndarray) -> tuple[ImageView, np.ndarray]:
        own = indices[indices % self.team.size == self.team.rank] // self.team.size
        return ImageView(self._own[name], own), self._own[name].labels[own]

    def _learn(self, name: str, indices: np.ndarray) -> None:
        view, labels = self._share(name, indices)
        if not self.team.first:  # the first one's count for all
            self.classifier.replace_statistics(self.classifier.new_statistics())
        self.team.together(lambda: CircleMethod.learn(self, Task(view, labels)) if len(labels) else None)
        self.classifier.replace_statistics(self.team.summed(self.classifier.statistics_))

    def _scores(self, name: str, indices: np.ndarray) -> Tensor:
        view, labels = self._share(name, indices)
        none = torch.zeros(0, len(self.classes), dtype=torch.float64)
        mine = self.team.together(lambda: CircleMethod.scores(self, view) if len(labels) else none)
        if not self.team.first:
            self.team.send({"scores": mine}, 0)
            return mine
        result = torch.empty(len(indices), len(self.classes), dtype=mine.dtype)
        for rank in range(self.team.size):
            rows = torch.from_numpy(np.flatnonzero(indices % self.team.size == rank))
            result[rows] = mine.cpu() if rank == 0 else self.team.receive(rank)["scores"]
        return result
