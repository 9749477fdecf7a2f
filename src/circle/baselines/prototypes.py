"""What PASS and IL2A share: Adam with a stepwise rate, features held where they were, prototype rehearsal."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn

from circle.baselines.optimisers import Training
from circle.baselines.trainer import EvenConfig, Stage, TaskData, TrainedMethod
from circle.config import option


@dataclass(frozen=True)
class PrototypeConfig(EvenConfig):
    """Settings of methods that rehearse old classes by their means; defaults as in PyCIL."""

    published_names: ClassVar[dict[str, str]] = {"gamma": "learning_rate_decay", "step_size": "learning_rate_step"}
    inert: ClassVar[dict[str, str]] = {"temperature": "PyCIL never reads it; softmax_temperature is what counts"}

    batch_size: int = option(64, "images per step, before copies are made of them")
    epochs: int = option(101, "passes over each task's images")
    learning_rate: float = option(1e-3, "step size of Adam")
    learning_rate_step: int = option(45, "epochs after which the step size falls, again and again")
    learning_rate_decay: float = option(0.1, "factor of it then")
    weight_decay: float = option(2e-4, "added to the gradient, times the weights")
    softmax_temperature: float = option(0.1, "that logits are divided by")
    feature_distillation_weight: float = option(10.0, "of the distance to the previous network's features")
    prototype_weight: float = option(10.0, "of the cross-entropy of old classes, rehearsed as prototypes")

    def check(self) -> None:
        super().check()
        self.require(self.learning_rate_step >= 1, "learning_rate_step", "1 or more")
        self.require(self.softmax_temperature > 0, "softmax_temperature", "a positive number")
        self.require(self.feature_distillation_weight >= 0, "feature_distillation_weight", "zero or more")
        self.require(self.prototype_weight >= 0, "prototype_weight", "zero or more")


PrototypeSettings = TypeVar("PrototypeSettings", bound=PrototypeConfig)


class PrototypeMethod(TrainedMethod[PrototypeSettings]):
    """Every task: train all weights, then describe the new classes. What is kept of old ones never follows a drift."""

    def extras(self, data: TaskData, generator: torch.Generator) -> dict[str, nn.Module]:
        return {"network": self.previous_network()} if self.tasks else {}

    def stages(self) -> Sequence[Stage]:
        return [("train", self.train), ("statistics", self._describe)]

    @abstractmethod
    def train(self, data: TaskData) -> None:
        """Minimise the method's loss over a task."""

    def _describe(self, data: TaskData) -> None:
        self.bank.describe(data.columns, self.features(data.pixels))

    def distance(self, images: Tensor, features: Tensor) -> Tensor:
        """The weighted distance of features [B, d] to what the previous network makes of the same images."""
        with torch.no_grad():
            before = self.extra["network"](images)
        return self.config.feature_distillation_weight * feature_norm(features, before)

    def old_classes(self, count: int, data: TaskData) -> Tensor:
        """Columns of old classes [count], drawn alike."""
        return torch.randint(data.classes_before, (count,), generator=self.generator)

    def training(self) -> Training:
        """Adam with a rate that falls every few epochs; in a first task of other length at the same shares of it."""
        config = self.config
        epochs = config.epochs if self.tasks else config.first_epochs
        step = max(1, round(config.learning_rate_step * epochs / max(1, config.epochs)))
        return Training(
            epochs=epochs,
            batch_size=config.batch_size,
            learning_rate=config.learning_rate,
            optimiser="adam",
            weight_decay=config.weight_decay,
            milestones=tuple(range(step, epochs, step)),
            decay=config.learning_rate_decay,
        )


def feature_norm(features: Tensor, teacher: Tensor) -> Tensor:
    """|F - F_old|_F over the whole batch [B, d], not squared: it grows with the square root of the batch size."""
    return torch.linalg.vector_norm(features - teacher)
