"""LwF, learning without forgetting: the network is trained on, and distillation holds it to the previous network."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from circle.baselines.optimisers import Training
from circle.baselines.trainer import Stage, TaskData, TrainedMethod, TrainerConfig
from circle.config import option
from circle.registry import register


@dataclass(frozen=True)
class LwFConfig(TrainerConfig):
    """Settings of LwF; defaults as in PyCIL. The paper gives no milestones, so PyCIL's constants stay."""

    name: ClassVar[str] = "lwf"
    published_names: ClassVar[dict[str, str]] = {
        "lambda": "distillation_weight",
        "init_milestones": "initial_milestones",
    }

    batch_size: int = option(128, "images per step")
    initial_epochs: int = option(200, "passes over the first task's images")
    initial_learning_rate: float = option(0.1, "step size in the first task")
    initial_learning_rate_decay: float = option(0.1, "factor of it at every milestone of the first task")
    initial_milestones: tuple[int, ...] = option((60, 120, 160), "epochs of the first task at which it falls")
    initial_weight_decay: float = option(5e-4, "in the first task")
    epochs: int = option(250, "passes over each later task's images")
    learning_rate: float = option(0.1, "step size in later tasks")
    learning_rate_decay: float = option(0.1, "factor of it at every milestone of a later task")
    milestones: tuple[int, ...] = option((60, 120, 180, 220), "epochs of a later task at which it falls")
    weight_decay: float = option(2e-4, "in later tasks")
    distillation_weight: float = option(3.0, "lambda: weight of the distillation loss")
    temperature: float = option(2.0, "tau: logits are divided by it in the distillation loss")

    def check(self) -> None:
        super().check()
        self.require(self.distillation_weight >= 0, "distillation_weight", "zero or a positive number")
        self.require(self.temperature > 0, "temperature", "a positive number")


DistilledSettings = TypeVar("DistilledSettings", bound=LwFConfig)


class DistilledMethod(TrainedMethod[DistilledSettings]):
    """First task: cross-entropy. Later, with K_t classes before the task and the network z_old as it was:

        L = CE(z[K_t:], y - K_t) + lambda KD(z[:K_t], z_old)

    over all weights, batch norm in training mode; z_old sees the same augmented images in evaluation mode.
    With one class in a task its cross-entropy is zero: only distillation and weight decay are left.
    """

    def extras(self, data: TaskData, generator: torch.Generator) -> dict[str, nn.Module]:
        """The network as it is now; rows of the head for this task's classes are there, but not asked."""
        return {"network": self.previous_network(), "head": copy.deepcopy(self.head)} if self.tasks else {}

    def stages(self) -> Sequence[Stage]:
        return [("train", self._train)]

    def _train(self, data: TaskData) -> None:
        config, present, local = self.config, data.present.to(self.device), data.local.to(self.device)

        def losses(batch: Tensor) -> dict[str, Tensor]:
            images = self.inputs(data.pixels[batch], augmented=True)
            logits = self.head(self.network.train()(images))
            terms = {"cross entropy": functional.cross_entropy(logits[:, present], local[batch])}
            if self.tasks:
                old = data.classes_before
                with torch.no_grad():
                    before = self.extra["head"](self.extra["network"](images))[:, :old]
                distance = distillation(logits[:, :old], before, config.temperature)
                terms["distillation"] = config.distillation_weight * distance
            return terms

        self.fit(losses, len(data), self.parameters(), self.training())

    def training(self) -> Training:
        """The schedule of the first task, or that of the others."""
        config = self.config
        if self.tasks == 0:
            return Training(
                epochs=config.initial_epochs,
                batch_size=config.batch_size,
                learning_rate=config.initial_learning_rate,
                weight_decay=config.initial_weight_decay,
                milestones=config.initial_milestones,
                decay=config.initial_learning_rate_decay,
            )
        return Training(
            epochs=config.epochs,
            batch_size=config.batch_size,
            learning_rate=config.learning_rate,
            weight_decay=config.weight_decay,
            milestones=config.milestones,
            decay=config.learning_rate_decay,
        )


def distillation(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KD = - mean_i sum_j softmax(teacher / tau)_ij log softmax(logits / tau)_ij, both [B, K]; no factor tau^2."""
    targets = torch.softmax(teacher / temperature, 1)
    return -(targets * torch.log_softmax(logits / temperature, 1)).sum(1).mean()


@register("method", LwFConfig)
class LwF(DistilledMethod[LwFConfig]):
    """Learning without forgetting: the loss above, and the largest logit wins.

    >>> import numpy as np
    >>> from circle.method import Task
    >>> pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 8), dtype=np.uint8)
    >>> method = LwF(LwFConfig(network="convnet", width=4, initial_epochs=1, epochs=1))
    >>> for labels in (["cat", "dog"], ["emu", "fox"]):
    ...     method.learn(Task(pixels, np.array(labels * 4)))
    >>> method.scores(pixels).shape
    torch.Size([8, 4])
    """

    config_type = LwFConfig
