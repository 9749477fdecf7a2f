"""FeCAM: Mahalanobis distances to class means, with a covariance for each class, on a frozen network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from circle.baselines.class_bank import covariance_of
from circle.baselines.frozen import FrozenConfig, FrozenMethod
from circle.baselines.networks import CosineHead, GrowingHead, unit_rows
from circle.baselines.trainer import TaskData
from circle.config import option
from circle.heads.mahalanobis import correlations, shrunk
from circle.registry import register

SHRINKAGES = 2


@dataclass(frozen=True)
class FeCAMConfig(FrozenConfig):
    """Settings of :class:`FeCAM`. On TinyImageNet the official code crops 32 of 64 pixels; here it is all 64."""

    name: ClassVar[str] = "fecam"
    by_dataset: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar100": {},
        "tinyimagenet": {"augmentations": ("crop", "flip")},
        "imagenet_subset": {"max_pool": True, "augmentations": ("resized_crop", "flip")},
    }

    augmentations: tuple[str, ...] = option(
        ("crop", "flip", "brightness", "auto_augment"), "of training images, in this order"
    )
    alpha1: float = option(1.0, "share of the mean variance added to the diagonal, twice")
    alpha2: float = option(1.0, "share of the mean covariance added off the diagonal, twice")
    beta: float = option(0.5, "power of the features (Tukey's transform)")

    def check(self) -> None:
        super().check()
        self.require(self.alpha1 >= 0, "alpha1", "zero or a positive number")
        self.require(self.alpha2 >= 0, "alpha2", "zero or a positive number")
        self.require(self.beta > 0, "beta", "a positive number")


@register("method", FeCAMConfig)
class FeCAM(FrozenMethod[FeCAMConfig]):
    """For each new class, of features f as they are (never negative) and of t = f^beta:

        mu_c = mean f        S_c = Sh(Sh(cov t))        R_c = the correlations of S_c
        Sh(S) = S + alpha_1 v I + alpha_2 o (1 1^T - I),  v and o the means on and off the diagonal

        score_c(x) = -(u - v_c)^T R_c^{-1} (u - v_c),    u = t / |t|,    v_c = mu_c^beta / |mu_c^beta|

    A class of a single image has no covariance; the identity takes its place.
    While there is one task only, the cosine head it was trained with decides: -|f / |f| - w_c / |w_c||^2.

    >>> import numpy as np
    >>> from circle.method import Task
    >>> pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 8), dtype=np.uint8)
    >>> method = FeCAM(FeCAMConfig(network="convnet", width=4, initial_epochs=1))
    >>> for labels in (["cat", "dog"], ["emu", "fox"]):
    ...     method.learn(Task(pixels, np.array(labels * 4)))
    >>> method.scores(pixels).shape
    torch.Size([8, 4])
    """

    config_type = FeCAMConfig
    keeps = "covariances"

    def new_head(self, size: int) -> GrowingHead:
        return CosineHead(size)

    def update(self, data: TaskData, features: Tensor) -> None:
        config, values = self.config, features.double()
        for column in data.present.tolist():
            own = values[(data.columns == column).to(self.device)]
            covariance = covariance_of(own**config.beta)
            if len(own) == 1:
                covariance = torch.eye(own.shape[1], dtype=own.dtype, device=own.device)
            for _ in range(SHRINKAGES):
                covariance = shrunk(covariance, config.alpha1, config.alpha2)
            centre = own.mean(0, keepdim=True) ** config.beta
            self.bank.put(column, len(own), unit_rows(centre)[0], correlations(covariance))

    def scores_of(self, features: Tensor) -> Tensor:
        if self.tasks <= 1:
            # |a - b|^2 of unit vectors falls as their cosine grows.
            return unit_rows(features) @ unit_rows(self.head.weight).T
        return -self.bank.distances(unit_rows(features.double() ** self.config.beta))
