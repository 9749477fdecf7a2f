"""Streaming linear discriminant analysis: one covariance shared by all classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from circle import linalg
from circle.config import option
from circle.heads.base import Head, HeadConfig, LinearScores
from circle.registry import register
from circle.statistics import Statistics


@dataclass(frozen=True)
class SLDAConfig(HeadConfig):
    """Settings of the SLDA head."""

    name: ClassVar[str] = "slda"

    ridge: float = option(0.01, "lambda, added to the diagonal of the pooled covariance")
    ridge_rule: Literal["relative", "absolute"] = option(
        "relative", "whether lambda is a multiple of the covariance's mean diagonal, or a number of its own"
    )

    def check(self) -> None:
        super().check()
        self.require(self.ridge >= 0, "ridge", "zero or a positive number")


@register("head", SLDAConfig)
class SLDA(Head):
    """Algorithm "Materialise" of the paper, solved by Cholesky, never inverted.

    With counts n_c, sums T_c and second moment M over N samples of C classes:

        mu_c = T_c / n_c        S = M - sum_c n_c mu_c mu_c^T        Sigma = S / (N - C) + lambda I
        w_c = Sigma^{-1} mu_c   score_c(z) = z.w_c - mu_c.w_c / 2 + log(n_c / N)

    The softmax of the scores is the posterior of Gaussian classes with a common covariance.
    """

    config: SLDAConfig

    def materialise(self, statistics: Statistics) -> LinearScores:
        counts = statistics.counts.to(statistics.device, dtype=statistics.sums.dtype)
        sums = statistics.sums
        means = sums / counts[:, None]
        covariance = pooled_covariance(statistics, sums, means)
        covariance.diagonal().add_(self._ridge(covariance))
        weight = linalg.cholesky(covariance).solve(means.T).T
        bias = (counts / counts.sum()).log() - (means * weight).sum(1) / 2
        return LinearScores(weight.contiguous(), bias)

    def _ridge(self, covariance: Tensor) -> float:
        mean_diagonal = float(covariance.diagonal().mean())
        if mean_diagonal <= 0.0:
            # No scatter yet (one sample per class, or constant features): Sigma = I, the nearest mean.
            return max(1.0, self.config.ridge)
        return self.config.ridge * (mean_diagonal if self.config.ridge_rule == "relative" else 1.0)


def pooled_covariance(statistics: Statistics, sums: Tensor, means: Tensor) -> Tensor:
    """S / (N - C), float64 [D, D]; with one sample per class the divisor is 1 and S is zero."""
    scatter = statistics.second_moment()
    scatter.addmm_(sums.T, means, alpha=-1.0)
    return scatter.div_(max(1, statistics.degrees_of_freedom))
