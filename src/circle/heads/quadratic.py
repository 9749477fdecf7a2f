"""What heads with a covariance for every class share."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from circle import linalg
from circle.heads.base import Head, HeadConfig
from circle.heads.covariance import class_covariance, class_means, pooled_covariance
from circle.heads.scores import QuadraticScores
from circle.machine import require_memory
from circle.statistics import Statistics


@dataclass(frozen=True)
class QuadraticConfig(HeadConfig):
    """Settings of heads with a covariance for every class, and what those covariances take."""

    parts: ClassVar[tuple[str, ...]] = ("class_triangles",)

    def numbers(self, classes: int, size: int) -> int:
        return classes * (size + size * (size + 1) // 2)


class QuadraticHead(Head):
    """score_c(z) = b_c - |L_c^{-1} (z - mu_c)|^2 with L_c L_c^T the covariance that :meth:`modelled` makes of S_c."""

    def materialise(self, statistics: Statistics) -> QuadraticScores:
        self.config.check_statistics(statistics)
        means = class_means(statistics)
        classes, size = means.shape
        # Factors in float64 and their float32 copies; a full matrix, its covariance and its factor.
        require_memory(
            12 * self.config.numbers(classes, size) + 32 * size**2,
            f"covariances of {classes} classes with {size:,} features",
            "use a shorter feature (projection_size), or a head with one covariance for all (slda)",
        )
        pooled = pooled_covariance(statistics, means)
        rows, columns = torch.tril_indices(size, size, device=means.device)
        factors = means.new_empty(classes, len(rows))
        bias = means.new_empty(classes)
        for index, label in enumerate(statistics.classes):
            count = int(statistics.counts[index])
            # A single sample has no covariance of its own: that of all classes stands in.
            own = class_covariance(statistics, label, means[index], count) if count > 1 else None
            factor = linalg.cholesky(self.modelled(own, pooled)).lower
            scaled = factor * self.factor_scale
            factors[index] = scaled[rows, columns]
            bias[index] = self.bias(factor, count / statistics.samples)
        return QuadraticScores(means, factors, bias)

    #: |L^{-1} v|^2 is divided by the square of it: sqrt(2) gives half of the squared distance.
    factor_scale: float = 1.0

    @abstractmethod
    def modelled(self, own: Tensor | None, pooled: Tensor) -> Tensor:
        """The covariance to use for a class, [D, D], a new tensor; ``own`` is None where it has a single sample."""

    @abstractmethod
    def bias(self, lower: Tensor, prior: float) -> float:
        """b_c from the Cholesky factor [D, D] of its covariance and its share n_c / N of the samples."""
