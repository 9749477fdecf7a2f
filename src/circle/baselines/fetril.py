"""FeTrIL: pseudo-features of old classes, features of new ones moved to the old means, on a frozen network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from circle.baselines.frozen import FrozenConfig, FrozenMethod
from circle.baselines.networks import unit_rows
from circle.baselines.optimisers import Training
from circle.baselines.trainer import Stage, TaskData
from circle.config import option
from circle.registry import register


@dataclass(frozen=True)
class FeTrILConfig(FrozenConfig):
    """Settings of :class:`FeTrIL`. PyCIL also fits a support vector machine, for its log only."""

    name: ClassVar[str] = "fetril"
    rehearsals: ClassVar[dict[str, str]] = {"head": "epochs"}
    inert: ClassVar[dict[str, str]] = {"temperature": "the official code never reads it"}
    by_dataset: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar100": {},
        "tinyimagenet": {"first_kernel": 7, "max_pool": True},
        "imagenet_subset": {"first_kernel": 7, "max_pool": True},
    }

    augmentations: tuple[str, ...] = option(
        ("crop", "flip", "auto_augment", "cutout"), "of training images, in this order"
    )
    epochs: int = option(50, "passes over real and made features in every later task")
    learning_rate: float = option(0.05, "step size of the head in later tasks")
    weight_decay: float = option(5e-4, "of the head in later tasks")


@register("method", FeTrILConfig)
class FeTrIL(FrozenMethod[FeTrILConfig]):
    """Keeps one mean per class. In later tasks an old class p borrows the features of the new class q most like it:

        q = argmax_q cos(mu_p, mu_q)        f~_i = f_qi - mu_q + mu_p    for all samples i of q

    and the linear head, which has grown and keeps its weights, is trained on the real features of the new and the
    made ones of the old classes: cross-entropy over all classes, SGD, cosine annealing.

    >>> import numpy as np
    >>> from circle.method import Task
    >>> pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 8), dtype=np.uint8)
    >>> method = FeTrIL(FeTrILConfig(network="convnet", width=4, initial_epochs=1, epochs=1))
    >>> for labels in (["cat", "dog"], ["emu", "fox"]):
    ...     method.learn(Task(pixels, np.array(labels * 4)))
    >>> method.scores(pixels).shape
    torch.Size([8, 4])
    """

    config_type = FeTrILConfig
    keeps = "means"

    def stages(self) -> Sequence[Stage]:
        return super().stages() if self.tasks == 0 else [*super().stages(), ("head", self._train_head)]

    def update(self, data: TaskData, features: Tensor) -> None:
        self.bank.describe(data.columns, features)

    def _train_head(self, data: TaskData) -> None:
        features, config = self.features(data.pixels), self.config
        samples, columns, shifts = pseudo_features(data.columns, self.bank.means)
        columns, shifts = columns.to(self.device), shifts.to(features)

        def losses(batch: Tensor) -> dict[str, Tensor]:
            targets = columns[batch]
            values = features[samples[batch]] + shifts[targets]
            return {"cross entropy": functional.cross_entropy(self.head(values), targets)}

        training = Training(
            epochs=config.epochs,
            batch_size=config.batch_size,
            learning_rate=config.learning_rate,
            weight_decay=config.weight_decay,
            cosine=True,
        )
        self.fit(losses, len(samples), list(self.head.parameters()), training)


def pseudo_features(columns: Tensor, means: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What to train the head on, as a recipe: sample i [M], its class c [M], and shifts s_c [C, d]; feature f_i + s_c.

    ``columns`` [N] are the classes of the task's samples, ``means`` [C, d] those of all classes. New classes come as
    they are, s_c = 0; an old class p takes the samples of q, s_p = mu_p - mu_q.
    """
    new = columns.unique()
    alike = unit_rows(means) @ unit_rows(means[new.to(means.device)]).T  # [C, new classes]
    donors = new[alike.argmax(1).cpu()]
    donors[new] = new
    samples = [(columns == each).nonzero()[:, 0] for each in donors.tolist()]
    rehearsed = torch.repeat_interleave(torch.arange(len(means)), torch.tensor([len(each) for each in samples]))
    return torch.cat(samples), rehearsed, means - means[donors.to(means.device)]
