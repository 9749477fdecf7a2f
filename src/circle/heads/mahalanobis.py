"""Mahalanobis distance to class means with a shrunk covariance for each class, in the manner of FeCAM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from circle.config import option
from circle.heads.covariance import QuadraticConfig, QuadraticHead
from circle.registry import register
from circle.statistics import Statistics


@dataclass(frozen=True)
class MahalanobisConfig(QuadraticConfig):
    """Settings of the Mahalanobis head; the paper's alpha is 1 / temperature.

    FeCAM's power transform would have to come before the sums: BiRC2D has it as ``power``.

    Parameters
    ----------
    shrink_diagonal, shrink_off_diagonal : float
        a_1 and a_2: the shares of the mean variance and of the mean covariance that are added in every round.
    shrink_rounds : int
        How often the shrinkage is applied.
    correlation : bool
        Whether the covariances are scaled to correlations.
    temperature : float
        Scores are divided by it before the softmax.
    """

    name: ClassVar[str] = "mahalanobis"

    shrink_diagonal: float = option(1.0, "a_1: share of the mean variance added to the diagonal, in every round")
    shrink_off_diagonal: float = option(1.0, "a_2: share of the mean covariance added off the diagonal")
    shrink_rounds: int = option(2, "how often the shrinkage is applied")
    correlation: bool = option(True, "whether the covariances are scaled to correlations")
    temperature: float = option(10.0, "scores are divided by it before the softmax; the paper's 1 / alpha")

    def check(self) -> None:
        super().check()
        self.require(self.shrink_diagonal >= 0, "shrink_diagonal", "zero or a positive number")
        self.require(self.shrink_off_diagonal >= 0, "shrink_off_diagonal", "zero or a positive number")
        self.require(self.shrink_rounds >= 0, "shrink_rounds", "0 or more")

    def candidates(self) -> dict[str, tuple[float, ...]]:
        return {"shrink_diagonal": (0.1, 1.0, 3.0, 10.0, 30.0), "shrink_off_diagonal": (0.0, 1.0)}

    @classmethod
    def temperatures(cls) -> tuple[float, ...]:
        return (1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)


@register("head", MahalanobisConfig)
class Mahalanobis(QuadraticHead):
    """score_c(z) = -(z - mu_c)^T Sigma_c^{-1} (z - mu_c), without priors and determinants.

    Sigma_c is S_c / (n_c - 1), shrunk ``shrink_rounds`` times and, if asked, scaled to a correlation matrix:

        Sh(S) = S + a_1 v I + a_2 o (1 1^T - I),    v = mean of the diagonal, o = mean off the diagonal

    As in FeCAM a correlation matrix is applied to differences that are not scaled. A class with a single sample
    takes the pooled covariance, and the identity where there is no scatter at all.

    Parameters
    ----------
    config : MahalanobisConfig
        The settings.

    Examples
    --------
    >>> from circle.statistics import Statistics
    >>> statistics = Statistics(2, parts=MahalanobisConfig.parts)
    >>> statistics.update(torch.tensor([[10, 0], [0, 10]], dtype=torch.int8), ["cat", "dog"])
    >>> Mahalanobis(MahalanobisConfig()).materialise(statistics)(torch.tensor([[9, 2]]))  # no scatter yet: Euclidean
    tensor([[  -5., -145.]], dtype=torch.float64)
    """

    config: MahalanobisConfig

    def regularised(self, own: Tensor | None, pooled: Tensor) -> Tensor:
        covariance = pooled.clone() if own is None else own
        for _ in range(self.config.shrink_rounds):
            covariance = shrunk(covariance, self.config.shrink_diagonal, self.config.shrink_off_diagonal)
        if not float(covariance.diagonal().mean()) > 0.0:
            return torch.eye(len(pooled), dtype=pooled.dtype, device=pooled.device)
        return correlations(covariance) if self.config.correlation else covariance

    def log_priors(self, statistics: Statistics) -> Tensor:
        return torch.zeros(len(statistics.classes))

    def bias(self, lower: Tensor, log_prior: float) -> float:
        return 0.0


def correlations(covariance: Tensor) -> Tensor:
    """R_ij = S_ij / sqrt(S_ii S_jj) of a symmetric matrix [D, D], as a new one.

    A feature without variance, possible with a_1 = 0, stays as it is: :func:`circle.linalg.cholesky` adds its jitter.
    """
    deviation = covariance.diagonal().clamp_min(0.0).sqrt()
    deviation = deviation.where(deviation > 0.0, 1.0)
    return covariance / torch.outer(deviation, deviation)


def shrunk(covariance: Tensor, diagonal: float, off_diagonal: float) -> Tensor:
    """Sh(S) = S + a_1 v I + a_2 o (1 1^T - I) of a symmetric matrix [D, D], as a new one."""
    size = len(covariance)
    variance = float(covariance.diagonal().mean())
    others = float(covariance.sum() - covariance.diagonal().sum()) / max(1, size * (size - 1))
    result = covariance + off_diagonal * others
    result.diagonal().add_(diagonal * variance - off_diagonal * others)
    return result
