"""Mean and covariance of a group's features, by which errors of weights are weighed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from circle import linalg
from circle.statistics import Statistics

DAMPING = 1e-3  # of the mean variance, added to every variance: directions that samples hardly show are not trusted


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean [D] and covariance S [D, D], float64, of all samples whatever their class.

    An error E of weights moves the scores by E z, which has the mean E mean(z) and the covariance E S E^T.
    """

    mean: Tensor
    covariance: Tensor

    @classmethod
    def of_statistics(cls, statistics: Statistics) -> Moments:
        """From exact sums: what was learned says all there is to know."""
        mean = statistics.sums.sum(0) / statistics.samples
        covariance = statistics.second_moment().div_(statistics.samples).addr_(mean, mean, alpha=-1.0)
        return cls(mean, covariance)

    @classmethod
    def of_features(cls, features: Tensor) -> Moments:
        """From features [N, D] of images at hand, for models that keep no statistics."""
        values = features.to(torch.float64)
        mean = values.mean(0)
        values -= mean
        return cls(mean, values.T @ values / len(values))

    @cached_property
    def feedback(self) -> Tensor:
        """U, upper triangular [D, D], with U^T U = (S + damping)^{-1}: how later columns take up errors of earlier."""
        damped = self.covariance.clone()
        damped.diagonal().add_(max(DAMPING * float(self.covariance.diagonal().mean()), 1e-12))
        return linalg.cholesky(linalg.cholesky(damped).inverse()).lower.T.contiguous()
