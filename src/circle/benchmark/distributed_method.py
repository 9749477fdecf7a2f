"""CIRCLE run through the benchmark by several processes: the same rows, and the same model, as by one.

The first process has the runner, the record and the clock; to the runner its method is one like any other. Each call
that the others have a part in is told to them, which :meth:`JointCircle.follow`. What each of them holds is said by
:class:`circle.benchmark.distributed_data.DataCircle` and :class:`circle.benchmark.distributed_groups.GroupCircle`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from circle.data.datasets import Dataset
from circle.data.images import Subset
from circle.distributed.team import Team
from circle.errors import CircleError
from circle.learner import CircleClassifier
from circle.method import CircleMethod, Task, TaskImages


class JointCircle(CircleMethod, ABC):
    """This process's part of CIRCLE."""

    def __init__(self, classifier: CircleClassifier, team: Team, dataset: Dataset) -> None:
        super().__init__(classifier)
        self.team = team
        self._sets = {"train": dataset.train, "test": dataset.test}

    # -- the first process, driven by the runner -------------------------------------------------------------

    def learn(self, task: Task) -> None:
        self._learn(*self._tell("learn", task.images))

    def scores(self, images: TaskImages) -> Tensor:
        return self._scores(*self._tell("scores", images))

    def end(self, *, stopped: bool) -> None:
        """Let the others go."""
        self.team.broadcast({"call": "end", "stopped": stopped})

    def _tell(self, call: Literal["learn", "scores"], images: TaskImages) -> tuple[str, np.ndarray]:
        if not isinstance(images, Subset):
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
            self._obey(order)

    def _obey(self, order: dict[str, Any]) -> None:
        """This process's part in one call."""
        indices = self.team.receive(0)["indices"].numpy()
        (self._learn if order["call"] == "learn" else self._scores)(order["set"], indices)

    # -- all -------------------------------------------------------------------------------------------------

    @abstractmethod
    def _learn(self, name: str, indices: np.ndarray) -> None:
        """Learn images of a set, by their positions in it."""

    @abstractmethod
    def _scores(self, name: str, indices: np.ndarray) -> Tensor:
        """Scores [N, C] of images of a set in the first process; the others have what is their part of them."""
