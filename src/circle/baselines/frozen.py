"""Methods that train a network on the first task, freeze it, and go on with its features alone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from circle.baselines.settings import FrozenConfig
from circle.baselines.trainer import Stage, TaskData, TrainedMethod
from circle.data.images import Images, Subset
from circle.method import TaskImages

FrozenSettings = TypeVar("FrozenSettings", bound=FrozenConfig)


class FrozenMethod(TrainedMethod[FrozenSettings]):
    """First task: cross-entropy over its classes. Then the features f(x) never change, and every task only updates
    what is kept of them, in ``update``.

    With one class in the first task its cross-entropy is zero: the network stays random, but for weight decay and
    batch norm. Features of test images are kept between evaluations: no image passes the network twice.
    """

    def __init__(self, config: FrozenSettings | None = None, seed: int = 0) -> None:
        super().__init__(config, seed)
        self._kept: list[tuple[Images, Tensor, Tensor]] = []  # set, features [N, d], which are known [N]

    @abstractmethod
    def update(self, data: TaskData, features: Tensor) -> None:
        """Learn from the features of a task's images as they are, [N, d]."""

    def stages(self) -> Sequence[Stage]:
        rest = [("update", self._update)]
        return [("train", self._train), *rest] if self.tasks == 0 else rest

    def _train(self, data: TaskData) -> None:
        self.fit(self.cross_entropy(data), len(data), self.parameters(), self.config.initial_training())
        self._kept.clear()

    def _update(self, data: TaskData) -> None:
        self.update(data, self.features(data.pixels))

    def image_features(self, images: TaskImages, part: slice) -> Tensor:
        if not isinstance(images, Subset):
            return super().image_features(images, part)
        features, known = self._memory(images.source)
        indices = torch.from_numpy(images.indices[part])
        if not bool(known[indices].all()):
            features[indices] = super().image_features(images, part)
            known[indices] = True
        return features[indices]

    def _memory(self, source: Images) -> tuple[Tensor, Tensor]:
        for kept, features, known in self._kept:
            if kept is source:
                return features, known
        features = torch.zeros(len(source), self.network.size, device=self.device)
        known = torch.zeros(len(source), dtype=torch.bool)
        self._kept.append((source, features, known))
        return features, known

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        self._kept.clear()
