"""Quadratic discriminant analysis with shrinkage towards the covariance of all classes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from circle.config import option
from circle.heads.base import RidgeConfig
from circle.heads.covariance import QuadraticConfig, QuadraticHead
from circle.heads.priors import PriorConfig
from circle.registry import register
from circle.statistics import Statistics


@dataclass(frozen=True)
class QDAConfig(QuadraticConfig, RidgeConfig, PriorConfig):
    """Settings of QDA; the ridge goes to every class's covariance, relative to the mean diagonal of the pooled one.

    Parameters
    ----------
    ridge, ridge_rule, temperature
        As in :class:`~circle.heads.base.RidgeConfig`.
    prior : str or mapping
        As in :class:`~circle.heads.priors.PriorConfig`.
    shrinkage : float
        rho, 0 to 1: how far the covariance of a class is drawn towards that of all classes.
    """

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

    Parameters
    ----------
    config : QDAConfig
        The settings.

    Examples
    --------
    >>> import torch
    >>> from circle.statistics import Statistics
    >>> statistics = Statistics(1, parts=QDAConfig.parts)
    >>> values = torch.tensor([[-1], [1], [-30], [30]], dtype=torch.int8)  # the same mean, another spread
    >>> statistics.update(values, ["near", "near", "far", "far"])
    >>> scores = QDA(QDAConfig(shrinkage=0.0)).materialise(statistics)
    >>> [statistics.classes[best] for best in scores(torch.tensor([[2], [25]])).argmax(1)]
    ['near', 'far']
    """

    config: QDAConfig
    factor_scale = math.sqrt(2.0)

    def regularised(self, own: Tensor | None, pooled: Tensor) -> Tensor:
        mixed = pooled.clone() if own is None else own.lerp_(pooled, self.config.shrinkage)
        mixed.diagonal().add_(self.config.ridge_for(float(pooled.diagonal().mean())))
        return mixed

    def log_priors(self, statistics: Statistics) -> Tensor:
        return self.config.log_priors(statistics)

    def bias(self, lower: Tensor, log_prior: float) -> float:
        return log_prior - float(lower.diagonal().log().sum())
