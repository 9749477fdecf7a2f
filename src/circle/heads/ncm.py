"""Nearest class mean: the cheapest head there is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from circle.heads.base import Head, HeadConfig, LinearScores
from circle.registry import register
from circle.statistics import Statistics


@dataclass(frozen=True)
class NCMConfig(HeadConfig):
    """Settings of the Euclidean nearest-class-mean head."""

    name: ClassVar[str] = "ncm"


@register("head", NCMConfig)
class NCM(Head):
    """Euclidean nearest class mean: score_c(z) = 2 z.mu_c - |mu_c|^2, which is |z|^2 - |z - mu_c|^2."""

    config: NCMConfig

    def materialise(self, statistics: Statistics) -> LinearScores:
        means = statistics.sums / statistics.counts.to(statistics.device)[:, None]
        return LinearScores(2.0 * means, -(means * means).sum(1))
