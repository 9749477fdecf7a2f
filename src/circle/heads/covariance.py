"""Means and covariances from statistics, shared by the heads that model them."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from circle.statistics import Statistics
from circle.statistics.second_moment import STRIP


def class_means(statistics: Statistics) -> Tensor:
    """mu_c = T_c / n_c, float64 [C, D]."""
    return statistics.sums / statistics.counts.to(statistics.device)[:, None]


def log_priors(statistics: Statistics) -> Tensor:
    """log(n_c / N), float64 [C]."""
    counts = statistics.counts.to(statistics.device, torch.float64)
    return (counts / counts.sum()).log()


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

    is the share for which (1 - rho) R + rho I comes nearest to the true correlations of normal data in mean square
    (Chen, Wiesel, Eldar and Hero, 2010, without their terms of order 1/D). It falls as 1/n, and needs nothing but S.
    Features that never vary have no correlations and do not count.
    """
    variances = covariance.diagonal()
    weights = torch.where(variances > 0.0, variances.clamp_min(1e-300).rsqrt(), torch.zeros_like(variances))
    size = int((weights > 0.0).sum())
    square = 0.0
    for start in range(0, len(covariance), STRIP):  # a second matrix would double the memory
        strip = covariance[start : start + STRIP] * weights[start : start + STRIP, None] * weights
        square += float(strip.square().sum())
    if square - size <= 1e-9 * size:
        return 1.0  # nothing is correlated: the target itself
    return min(1.0, (square + size**2) / ((samples + 1.0) * (square - size)))
