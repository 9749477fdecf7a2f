"""Means and covariances from statistics, shared by the heads that model them."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from circle.statistics import Statistics


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
    """rho of the oracle approximating shrinkage of a covariance S [D, D] with ``samples`` degrees of freedom n:

        rho = (tr(S^2) + tr(S)^2) / ((n + 1) (tr(S^2) - tr(S)^2 / D)),    at most 1

    the share for which (1 - rho) S + rho tr(S)/D I comes nearest to the true covariance of normal data in mean square
    (Chen, Wiesel, Eldar and Hero, 2010, without their terms of order 1/D). It falls as 1/n, and needs nothing but S.
    """
    trace = float(covariance.diagonal().sum())
    square = float(torch.linalg.vector_norm(covariance)) ** 2
    spread = square - trace**2 / len(covariance)
    if spread <= 1e-12 * square:
        return 1.0  # all variances equal and nothing correlated: the target itself
    return min(1.0, (square + trace**2) / ((samples + 1.0) * spread))
