"""Means and covariances from statistics, and what the heads with a covariance for every class share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from circle import linalg
from circle.errors import counted
from circle.heads.base import Head, HeadConfig
from circle.heads.scores import QuadraticScores
from circle.machine import require_memory
from circle.statistics import Statistics
from circle.statistics.second_moment import STRIP_ROWS


def class_means(statistics: Statistics) -> Tensor:
    """mu_c = T_c / n_c, float64 [C, D]."""
    return statistics.sums / statistics.counts.to(statistics.device)[:, None]


def pooled_covariance(statistics: Statistics, means: Tensor) -> Tensor:
    """S / (N - C) with S = M - sum_c n_c mu_c mu_c^T, float64 [D, D].

    With one sample per class the divisor is 1 and S is zero.
    """
    scatter = statistics.second_moment()
    scatter.addmm_(statistics.sums.T, means, alpha=-1.0)
    return scatter.div_(max(1, statistics.degrees_of_freedom))


def pooled_variances(statistics: Statistics, means: Tensor) -> Tensor:
    """The diagonal of the pooled covariance, [D], rounding clamped away; the matrix itself is not made."""
    scatter = statistics.squares() - (statistics.sums * means).sum(0)
    return scatter.div_(max(1, statistics.degrees_of_freedom)).clamp_min_(0.0)


def class_covariance(statistics: Statistics, label: Hashable, mean: Tensor, count: int) -> Tensor:
    """S_c / (n_c - 1) with S_c = M_c - n_c mu_c mu_c^T, float64 [D, D], for n_c of at least two."""
    scatter = statistics.class_second_moment(label)
    scatter.addr_(mean, mean, alpha=-float(count))
    return scatter.div_(count - 1)


def shrinkage_intensity(covariance: Tensor, samples: int) -> float:
    """rho of the oracle approximating shrinkage of the correlations R of a covariance S [D, D].

    With n = ``samples`` degrees of freedom and R = S_ij / sqrt(S_ii S_jj), whose trace is D:

        rho = (|R|^2 + D^2) / ((n + 1) (|R|^2 - D)),    at most 1,    |R|^2 = sum of all squares

    is the weight for which (1 - rho) R + rho I comes nearest to the true correlations of normal data in mean square
    (Chen, Wiesel, Eldar and Hero, 2010, without their terms of order 1/D). It falls as 1/n, and needs nothing but S.
    Features that never vary have no correlations and do not count.
    """
    variances = covariance.diagonal()
    weights = torch.where(variances > 0.0, variances.clamp_min(1e-300).rsqrt(), torch.zeros_like(variances))
    size = int((weights > 0.0).sum())
    square = 0.0
    for start in range(0, len(covariance), STRIP_ROWS):  # a second matrix would double the memory
        strip = covariance[start : start + STRIP_ROWS] * weights[start : start + STRIP_ROWS, None] * weights
        square += float(strip.square().sum())
    if square - size <= 1e-9 * size:
        return 1.0  # nothing is correlated: the target itself
    return min(1.0, (square + size**2) / ((samples + 1.0) * (square - size)))


@dataclass(frozen=True)
class QuadraticConfig(HeadConfig):
    """Settings of heads with a covariance for every class, and what those covariances take."""

    parts: ClassVar[tuple[str, ...]] = ("class_triangles",)

    def numbers(self, classes: int, size: int) -> int:
        return classes * (size + size * (size + 1) // 2)


class QuadraticHead(Head):
    """score_c(z) = b_c - |L_c^{-1} (z - mu_c)|^2 with L_c L_c^T the covariance that :meth:`regularised` makes of S_c.

    Attributes
    ----------
    factor_scale : float
        |L^{-1} v|^2 is divided by its square: sqrt(2) gives half of the squared distance.
    """

    factor_scale: float = 1.0

    def materialise(self, statistics: Statistics) -> QuadraticScores:
        self.config.check_statistics(statistics)
        means = class_means(statistics)
        classes, size = means.shape
        # Factors in float64 and their float32 copies; a full matrix, its covariance and its factor.
        require_memory(
            12 * self.config.numbers(classes, size) + 32 * size**2,
            f"covariances of {counted(classes, 'class')} with {size:,} features",
            "use a shorter feature (projection_size), or a head with one covariance for all (slda)",
        )
        pooled = pooled_covariance(statistics, means)
        rows, columns = torch.tril_indices(size, size, device=means.device)
        factors = means.new_empty(classes, len(rows))
        bias = means.new_empty(classes)
        log_priors = self.log_priors(statistics).tolist()
        for index, label in enumerate(statistics.classes):
            count = int(statistics.counts[index])
            # A single sample has no covariance of its own: that of all classes stands in.
            own = class_covariance(statistics, label, means[index], count) if count > 1 else None
            factor = linalg.cholesky(self.regularised(own, pooled)).lower
            scaled = factor * self.factor_scale
            factors[index] = scaled[rows, columns]
            bias[index] = self.bias(factor, log_priors[index])
        return QuadraticScores(means, factors, bias)

    @abstractmethod
    def regularised(self, own: Tensor | None, pooled: Tensor) -> Tensor:
        """The covariance to use for a class, [D, D], a new tensor; ``own`` is None where it has a single sample."""

    @abstractmethod
    def log_priors(self, statistics: Statistics) -> Tensor:
        """How likely each class is beforehand, [C]; zeros where the head makes no use of it."""

    @abstractmethod
    def bias(self, lower: Tensor, log_prior: float) -> float:
        """b_c from the Cholesky factor [D, D] of its covariance and the logarithm of its prior."""
