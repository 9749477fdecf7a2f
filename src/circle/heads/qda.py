"""Quadratic discriminant analysis with shrinkage towards the covariance of all classes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from circle.config import option
from circle.heads.base import RidgeConfig
from circle.heads.quadratic import QuadraticConfig, QuadraticHead
from circle.registry import register


@dataclass(frozen=True)
class QDAConfig(QuadraticConfig, RidgeConfig):
    """Settings of QDA; the ridge goes to every class's covariance, relative to the mean diagonal of the pooled one."""

    name: ClassVar[str] = "qda"

    shrinkage: float = option(0.5, "rho: 0 takes the covariance of the class, 1 that of all classes together")

    def check(self) -> None:
        super().check()
        self.require(0 <= self.shrinkage <= 1, "shrinkage", "0 to 1")

    def candidates(self) -> dict[str, tuple[float, ...]]:
        # rho = 1 would be SLDA.
        return {"ridge": (1e-4, 1e-3, 1e-2, 1e-1), "shrinkage": (0.5, 0.7, 0.85, 0.95)}


@register("head", QDAConfig)
class QDA(QuadraticHead):
    """Gaussian classes, each with a covariance of its own, drawn towards the common one:

        Sigma_c = (1 - rho) S_c / (n_c - 1) + rho S / (N - C) + lambda I = L_c L_c^T
        score_c(z) = -|L_c^{-1} (z - mu_c)|^2 / 2 - sum log diag L_c + log(n_c / N)

    A class with a single sample takes the common covariance.
    """

    config: QDAConfig
    factor_scale = math.sqrt(2.0)

    def modelled(self, own: Tensor | None, pooled: Tensor) -> Tensor:
        mixed = pooled.clone() if own is None else own.lerp_(pooled, self.config.shrinkage)
        mixed.diagonal().add_(self.config.added(float(pooled.diagonal().mean())))
        return mixed

    def bias(self, lower: Tensor, prior: float) -> float:
        return math.log(prior) - float(lower.diagonal().log().sum())
