"""Methods that train a network on the first task, freeze it, and go on with its features alone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor

from circle.baselines.optimisers import Training
from circle.baselines.trainer import Stage, TaskData, TrainedMethod, TrainerConfig
from circle.config import option
from circle.data.images import Images, Subset
from circle.method import TaskImages


@dataclass(frozen=True)
class FrozenConfig(TrainerConfig):
    """Settings of methods that train on the first task and then freeze the network."""

    batch_size: int = option(128, "images per step of the first task")
    initial_epochs: int = option(200, "passes over the first task's images")
    initial_learning_rate: float = option(0.1, "step size in the first task")
    initial_weight_decay: float = option(5e-4, "in the first task")
    scheduler: Literal["multi_step", "cosine"] = option("cosine", "how the step size falls in the first task")
    learning_rate_milestones: tuple[int, ...] = option((), "epochs at which multi_step lets it fall")
    decay: float = option(0.1, "factor of the step size at every milestone")
    warmup_epochs: int = option(0, "in which the step size rises from a thousandth")

    def initial_training(self) -> Training:
        """How the first task is trained."""
        return Training(
            epochs=self.initial_epochs,
            batch_size=self.batch_size,
            learning_rate=self.initial_learning_rate,
            weight_decay=self.initial_weight_decay,
            milestones=self.learning_rate_milestones if self.scheduler == "multi_step" else (),
            decay=self.decay,
            cosine=self.scheduler == "cosine",
            warmup_epochs=self.warmup_epochs,
        )


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
