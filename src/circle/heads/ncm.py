"""Nearest class means, by distance and by angle: the cheapest heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from circle.config import option
from circle.heads.base import Head, HeadConfig
from circle.heads.covariance import class_means
from circle.heads.scores import CosineScores, LinearScores
from circle.registry import register
from circle.statistics import Statistics


@dataclass(frozen=True)
class NCMConfig(HeadConfig):
    """Settings of the Euclidean nearest-class-mean head.

    Parameters
    ----------
    temperature : float
        Scores are divided by it before the softmax.
    """

    name: ClassVar[str] = "ncm"

    @classmethod
    def temperatures(cls) -> tuple[float, ...]:
        # Squared distances grow with the number of features; a softmax of them as they are is all or nothing.
        return (1.0, 1e2, 1e3, 1e4, 1e5)


@register("head", NCMConfig)
class NCM(Head):
    """Euclidean nearest class mean: score_c(z) = 2 z.mu_c - |mu_c|^2, which is |z|^2 - |z - mu_c|^2.

    Parameters
    ----------
    config : NCMConfig
        The settings.

    Examples
    --------
    >>> import torch
    >>> statistics = Statistics(2)
    >>> statistics.update(torch.tensor([[0, 2], [0, 4], [8, 0]], dtype=torch.int8), ["cat", "cat", "dog"])
    >>> NCM(NCMConfig()).materialise(statistics)(torch.tensor([[0, 3], [7, 1]]))  # the best: |z|^2 minus the distance^2
    tensor([[  9., -64.],
            [ -3.,  48.]], dtype=torch.float64)
    """

    config: NCMConfig

    def materialise(self, statistics: Statistics) -> LinearScores:
        means = class_means(statistics)
        return LinearScores(2.0 * means, -(means * means).sum(1))


@dataclass(frozen=True)
class CosineNCMConfig(HeadConfig):
    """Settings of the cosine nearest-class-mean head; the paper's tau is 1 / temperature.

    Parameters
    ----------
    temperature : float
        Cosines are divided by it before the softmax.
    """

    name: ClassVar[str] = "cosine_ncm"
    parts: ClassVar[tuple[str, ...]] = ("unit_sums",)

    temperature: float = option(0.05, "cosines are divided by it before the softmax; the paper's 1 / tau")

    @classmethod
    def temperatures(cls) -> tuple[float, ...]:
        return (0.01, 0.03, 0.1, 0.3, 1.0)


@register("head", CosineNCMConfig)
class CosineNCM(Head):
    """Nearest class by angle: u_c = sum_{y_i = c} z_i / |z_i|, score_c(z) = cos(z, u_c).

    A class whose unit vectors cancel out has no direction; its score is 0.

    Parameters
    ----------
    config : CosineNCMConfig
        The settings.

    Examples
    --------
    >>> import torch
    >>> statistics = Statistics(2, parts=CosineNCMConfig.parts)
    >>> statistics.update(torch.tensor([[3, 4], [0, 9]], dtype=torch.int8), ["cat", "dog"])
    >>> CosineNCM(CosineNCMConfig()).materialise(statistics)(torch.tensor([[30, 40], [0, 1]])).round(decimals=3)
    tensor([[1.0000, 0.8000],
            [0.8000, 1.0000]], dtype=torch.float64)
    """

    config: CosineNCMConfig

    def materialise(self, statistics: Statistics) -> CosineScores:
        self.config.check_statistics(statistics)
        sums = statistics.unit_sums()
        weight = sums / sums.norm(dim=1, keepdim=True).clamp_min(1e-12)
        return CosineScores(weight, weight.new_zeros(len(weight)))
