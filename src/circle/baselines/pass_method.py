"""PASS: rotated images as classes of their own, and prototype rehearsal: old classes as means with noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from circle.baselines.augmentation import ROTATIONS, rotated
from circle.baselines.prototypes import PrototypeConfig, PrototypeMethod
from circle.baselines.trainer import TaskData
from circle.config import option
from circle.registry import register


@dataclass(frozen=True)
class PASSConfig(PrototypeConfig):
    """Settings of :class:`PASS`; defaults as in PyCIL."""

    name: ClassVar[str] = "pass"

    prototype_count: Literal["ratio", "batch"] = option(
        "ratio",
        "means a step: the batch size times old classes per new one, as in PyCIL, or the batch size, as originally",
    )
    radius_of: Literal["all", "first"] = option(
        "all",
        "classes whose spread gives the noise: all so far, as in PyCIL, or those of the first task, as originally",
    )


@register("method", PASSConfig)
class PASS(PrototypeMethod[PASSConfig]):
    """The head has four rows for each class, 4 y + k for images turned k times; with z = head(f) / temperature,

        L = CE(z(turned x), 4 y + k) + w_f |F - F_old|_F + w_p CE(z(mu_c + r e), 4 c)

    over all rows so far; F are the features of all turned images of a batch, c is drawn from the old classes, e is
    standard normal, and r = sqrt(mean over classes of tr(S_c) / d). In the first task only the first term is there.
    Rows 0, 4, 8, ... score an image.

    >>> import numpy as np
    >>> from circle.method import Task
    >>> pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 8), dtype=np.uint8)
    >>> method = PASS(PASSConfig(network="convnet", width=4, epochs=1))
    >>> for labels in (["cat", "dog"], ["emu", "fox"]):
    ...     method.learn(Task(pixels, np.array(labels * 4)))
    >>> method.scores(pixels).shape
    torch.Size([8, 4])
    """

    config_type = PASSConfig
    keeps = "means"
    rows_per_class = copies = ROTATIONS

    def __init__(self, config: PASSConfig | None = None, seed: int = 0) -> None:
        super().__init__(config, seed)
        self.first_radius = 0.0

    @property
    def turns_images(self) -> bool:
        return True

    def train(self, data: TaskData) -> None:
        config, targets, old = self.config, data.columns.to(self.device), data.classes_before
        per_image = max(1, old // len(data.present)) if config.prototype_count == "ratio" else 1
        means, radius = self.bank.means.to(torch.float32), self.radius()

        def losses(batch: Tensor) -> dict[str, Tensor]:
            images = self.inputs(data.pixels[batch], augmented=True)
            images, labels = rotated(images, targets[batch], lambda each, turns: ROTATIONS * each + turns)
            features = self.network.train()(images)
            logits = self.head(features) / config.softmax_temperature
            terms = {"cross entropy": functional.cross_entropy(logits, labels)}
            if old:
                terms["distillation"] = self.distance(images, features)
                columns = self.old_classes(len(batch) * per_image, data)
                noise = torch.randn(len(columns), means.shape[1], generator=self.generator).to(self.device)
                logits = self.head(means[columns.to(self.device)] + radius * noise) / config.softmax_temperature
                entropy = functional.cross_entropy(logits, ROTATIONS * columns.to(self.device))
                terms["prototypes"] = config.prototype_weight * entropy
            return terms

        self.fit(losses, len(data), self.parameters(), self.training())

    def _describe(self, data: TaskData) -> None:
        super()._describe(data)
        if self.tasks == 0:
            self.first_radius = self.bank.radius()

    def radius(self) -> float:
        """How far a feature lies from its class mean, per direction; zero before there are classes."""
        if not len(self.bank):
            return 0.0
        return self.first_radius if self.config.radius_of == "first" else self.bank.radius()

    def scores_of(self, features: Tensor) -> Tensor:
        return self.head(features)[:, ::ROTATIONS]

    def own_state(self) -> dict[str, Any]:
        return {"first_radius": self.first_radius}

    def load_own_state(self, state: dict[str, Any]) -> None:
        self.first_radius = state["first_radius"]
