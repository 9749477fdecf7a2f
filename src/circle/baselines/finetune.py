"""Plain fine-tuning: a network trained on each task in turn. The one that forgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from circle.baselines.networks import GrowingHead, LinearHead
from circle.baselines.optimisers import Training
from circle.baselines.trainer import EvenConfig, Stage, TaskData, TrainedMethod
from circle.config import option
from circle.registry import register


@dataclass(frozen=True)
class FineTuneConfig(EvenConfig):
    """Settings of :class:`FineTune`."""

    name: ClassVar[str] = "finetune"
    network: Literal["resnet18", "convnet"] = option("convnet", "ResNet-18, or two strided convolutions")
    width: int = option(16, "channels of the first layer; 64 is the published ResNet-18, 16 suits a CPU")
    augmentations: tuple[str, ...] = option((), "of training images, in this order")
    epochs: int = option(10, "passes over each task's images")
    batch_size: int = option(16, "images per step")
    learning_rate: float = option(0.003, "step size")
    optimiser: Literal["sgd", "adam"] = option("adam", "rule of the steps: SGD with momentum 0.9, or Adam")
    weight_decay: float = option(0.0, "added to the gradient, times the weights")

    def check(self) -> None:
        super().check()
        self.require(self.epochs >= 1, "epochs", "1 or more")


@register("method", FineTuneConfig)
class FineTune(TrainedMethod[FineTuneConfig]):
    """For each task, minimise over all weights w, on that task's images alone,

        - mean_i log softmax(W f_w(x_i) + b)[y_i]        (softmax over all classes seen so far)

    Nothing holds the weights where earlier tasks left them, so earlier classes are forgotten.

    >>> import numpy as np
    >>> from circle.method import Task
    >>> method = FineTune(FineTuneConfig(epochs=1), seed=0)
    >>> method.learn(Task(np.zeros((4, 8, 8), dtype=np.uint8), np.array(["cat", "dog", "cat", "dog"])))
    >>> method.scores(np.zeros((3, 8, 8), dtype=np.uint8)).shape
    torch.Size([3, 2])
    """

    config_type = FineTuneConfig

    @property
    def parameter_bytes(self) -> int:
        """Size of the weights."""
        return 4 * self.parameter_count().learnable

    def new_head(self, size: int) -> GrowingHead:
        return LinearHead(size, gain=0.02)  # small rows: large ones would begin with confident mistakes

    def stages(self) -> Sequence[Stage]:
        return [("train", self._train)]

    def _train(self, data: TaskData) -> None:
        config = self.config
        training = Training(
            epochs=config.epochs if self.tasks else config.first_epochs,
            batch_size=config.batch_size,
            learning_rate=config.learning_rate,
            optimiser=config.optimiser,
            weight_decay=config.weight_decay,
        )
        self.fit(self.cross_entropy(data), len(data), self.parameters(), training)
