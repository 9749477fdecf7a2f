"""CIRCLE run through the benchmark by several processes: the same rows, and the same model, as by one.

The first process has the runner, the record and the clock; to the runner its method is one like any other. Each call
of ``learn`` or ``scores`` is told to the others, which :meth:`JointCircle.follow`. Image i of a set belongs to process
i mod R for good: it extracts the image's features, keeps them in its own cache, learns the image and scores it.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from circle.benchmark.method import CircleMethod, Images, Task
from circle.benchmark.views import ImageView
from circle.distributed import Team, require_exact
from circle.errors import CircleError
from circle.learner import CircleClassifier
from circle.streams.datasets import Dataset, ImageSet, shares


class JointCircle(CircleMethod):
    """This process's part of CIRCLE; after every task all processes hold the statistics of all images."""

    def __init__(self, classifier: CircleClassifier, team: Team, dataset: Dataset) -> None:
        require_exact(classifier)
        super().__init__(classifier)
        self.team = team
        self._sets = {"train": dataset.train, "test": dataset.test}
        self._own = {name: shares(images, team.size)[team.rank] for name, images in self._sets.items()}
        for name, images in self._own.items():
            if not len(images):
                raise CircleError(f"{dataset.name}: {len(self._sets[name])} {name} images for {team.size} processes")

    def own_images(self, dataset: Dataset) -> tuple[ImageSet, ImageSet]:
        return self._own["train"], self._own["test"]

    # -- the first process, driven by the runner -------------------------------------------------------------

    def learn(self, task: Task) -> None:
        self._learn(*self._tell("learn", task.images))

    def scores(self, images: Images) -> Tensor:
        return self._scores(*self._tell("scores", images))

    def end(self, *, stopped: bool) -> None:
        """Let the others go."""
        self.team.broadcast({"call": "end", "stopped": stopped})

    def _tell(self, call: Literal["learn", "scores"], images: Images) -> tuple[str, np.ndarray]:
        if not isinstance(images, ImageView):
            raise CircleError("images that are in no data set: several processes share those of the data set alone")
        name = next(name for name, each in self._sets.items() if each is images.source)
        self.team.broadcast({"call": call, "set": name})
        for rank in range(1, self.team.size):
            self.team.send({"indices": torch.from_numpy(images.indices)}, rank)
        return name, images.indices

    # -- the others ------------------------------------------------------------------------------------------

    def follow(self) -> bool:
        """Do what the first process is asked to, until it is done; whether that was because somebody stopped it."""
        while True:
            order = self.team.broadcast(None)
            if order["call"] == "end":
                return order["stopped"]
            indices = self.team.receive(0)["indices"].numpy()
            (self._learn if order["call"] == "learn" else self._scores)(order["set"], indices)

    # -- all -------------------------------------------------------------------------------------------------

    def _share(self, name: str, indices: np.ndarray) -> tuple[ImageView, np.ndarray]:
        own = indices[indices % self.team.size == self.team.rank] // self.team.size
        return ImageView(self._own[name], own), self._own[name].labels[own]

    def _learn(self, name: str, indices: np.ndarray) -> None:
        view, labels = self._share(name, indices)
        if not self.team.first:  # the first one's count for all
            self.classifier._replace_statistics([*map(self.classifier._new_statistics, self.classifier.groups_)])
        learn = super().learn
        self.team.together(lambda: learn(Task(view, labels)) if len(labels) else None)
        self.classifier._replace_statistics(self.team.summed(self.classifier.statistics_))

    def _scores(self, name: str, indices: np.ndarray) -> Tensor:
        """Scores [N, C] of all images in the first process; the others have those of their own images."""
        view, labels = self._share(name, indices)
        score, none = super().scores, torch.zeros(0, len(self.classes), dtype=torch.float64)
        mine = self.team.together(lambda: score(view) if len(labels) else none)
        if not self.team.first:
            self.team.send({"scores": mine}, 0)
            return mine
        result = torch.empty(len(indices), len(self.classes), dtype=mine.dtype)
        for rank in range(self.team.size):
            rows = torch.from_numpy(np.flatnonzero(indices % self.team.size == rank))
            result[rows] = mine.cpu() if rank == 0 else self.team.receive(rank)["scores"]
        return result
