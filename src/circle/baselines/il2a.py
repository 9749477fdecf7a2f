"""IL2A: mixed images as classes of their own, and prototype rehearsal with covariances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from circle.baselines.augmentation import MIXING_ROUNDS, mixed_pairs
from circle.baselines.networks import LinearHead
from circle.baselines.prototypes import PrototypeConfig, PrototypeMethod
from circle.baselines.trainer import TaskData
from circle.config import option
from circle.registry import register


@dataclass(frozen=True)
class IL2AConfig(PrototypeConfig):
    """Settings of :class:`IL2A`; defaults as in PyCIL."""

    name: ClassVar[str] = "il2a"
    published_names: ClassVar[dict[str, str]] = {
        **PrototypeConfig.published_names,
        "augmentation_ratio": "covariance_ratio",
    }

    covariance_ratio: float = option(2.5, "of the covariance by which the means are spread")

    def check(self) -> None:
        super().check()
        self.require(self.covariance_ratio >= 0, "covariance_ratio", "zero or a positive number")


@register("method", IL2AConfig)
class IL2A(PrototypeMethod[IL2AConfig]):
    """Mixtures of images of two new classes are a class of their own, with a row of a head that lasts for the task:

        L = CE([z, z_pairs] / temperature, y) + w_f |F - F_old|_F + w_p CE(z~(c) / temperature, c)
        z~_j(c) = w_j . mu_c + b_j + (ratio / 2) (w_j - w_c)^T S_c (w_j - w_c)

    with F the features of images and mixtures, and c drawn from the old classes, as many as a batch has images: what
    infinitely many draws from N(mu_c, ratio S_c) would cost at most. In the first task only the first term is there.

    >>> import numpy as np
    >>> from circle.method import Task
    >>> pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 8), dtype=np.uint8)
    >>> method = IL2A(IL2AConfig(network="convnet", width=4, epochs=1))
    >>> for labels in (["cat", "dog"], ["emu", "fox"]):
    ...     method.learn(Task(pixels, np.array(labels * 4)))
    >>> method.scores(pixels).shape
    torch.Size([8, 4])
    """

    config_type = IL2AConfig
    keeps = "covariances"
    copies = 1 + MIXING_ROUNDS

    def extras(self, data: TaskData, generator: torch.Generator) -> dict[str, nn.Module]:
        new = len(data.present)
        pairs = LinearHead(self.network.size)
        pairs.grow(new * (new - 1) // 2, generator)
        return {**super().extras(data, generator), "pairs": pairs}

    def train(self, data: TaskData) -> None:
        config, local, old = self.config, data.local, data.classes_before
        means, covariances = self.bank.means.to(torch.float32), self.covariances()

        def losses(batch: Tensor) -> dict[str, Tensor]:
            images = self.inputs(data.pixels[batch], augmented=True)
            mixed, pairs, _, _ = mixed_pairs(images, local[batch], self.generator, len(self.classes))
            images, labels = torch.cat([images, mixed]), torch.cat([data.columns[batch], pairs]).to(self.device)
            features = self.network.train()(images)
            logits = torch.cat([self.head(features), self.extra["pairs"](features)], 1)
            terms = {"cross entropy": functional.cross_entropy(logits / config.softmax_temperature, labels)}
            if old:
                terms["distillation"] = self.distance(images, features)
                columns, counts = self.old_classes(len(batch), data).unique(return_counts=True)
                columns, counts = columns.to(self.device), counts.to(self.device)
                head = self.head
                spread = spread_logits(
                    weight=head.weight,
                    bias=head.bias,  # pyright: ignore
                    means=means[columns],
                    covariances=covariances[columns],
                    columns=columns,
                    ratio=config.covariance_ratio,
                )
                each = functional.cross_entropy(spread / config.softmax_temperature, columns, reduction="none")
                terms["prototypes"] = config.prototype_weight * (each * counts).sum() / len(batch)
            return terms

        parameters = [*self.parameters(), *self.extra["pairs"].parameters()]
        self.fit(losses, len(data), parameters, self.training())

    def covariances(self) -> Tensor:
        """Of all classes so far, in the precision of the network [C, d, d]."""
        kept = self.bank.covariances
        return torch.zeros(0) if kept is None else kept.to(torch.float32)


def spread_logits(
    weight: Tensor, bias: Tensor, means: Tensor, covariances: Tensor, columns: Tensor, ratio: float
) -> Tensor:
    """z~_j(c) = w_j . mu_c + b_j + (ratio / 2) (w_j - w_c)^T S_c (w_j - w_c), [U, S], gradients through all w.

    weight [S, d], bias [S]; mean [U, d], covariance [U, d, d] and column [U] of each class c.
    """
    apart = weight[None] - weight[columns][:, None]  # [U, S, d]
    quadratic = (torch.bmm(apart, covariances) * apart).sum(2)
    return means @ weight.T + bias + ratio / 2 * quadratic
