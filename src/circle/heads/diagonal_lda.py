"""Linear discriminant analysis as if features were independent of each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from circle.heads.base import Head, RidgeConfig
from circle.heads.covariance import class_means, pooled_variances
from circle.heads.priors import PriorConfig
from circle.heads.scores import LinearScores
from circle.registry import register
from circle.statistics import Statistics


@dataclass(frozen=True)
class DiagonalLDAConfig(RidgeConfig, PriorConfig):
    """Settings of diagonal LDA; the ridge goes to the variances.

    Parameters
    ----------
    ridge, ridge_rule, temperature
        As in :class:`~circle.heads.base.RidgeConfig`.
    prior : str or mapping
        As in :class:`~circle.heads.priors.PriorConfig`.
    """

    name: ClassVar[str] = "diagonal_lda"

    @classmethod
    def temperatures(cls) -> tuple[float, ...]:
        # Correlated features count as independent evidence, so the posterior is far too certain.
        return (1.0, 1e1, 1e2, 1e3)


@register("head", DiagonalLDAConfig)
class DiagonalLDA(Head):
    """SLDA with the diagonal of the covariance alone, v_d = max(0, S_dd) / (N - C) + lambda:

        score_c(z) = z.(mu_c / v) - mu_c.(mu_c / v) / 2 + log(n_c / N)

    Parameters
    ----------
    config : DiagonalLDAConfig
        The settings.

    Examples
    --------
    >>> import torch
    >>> statistics = Statistics(2)
    >>> values = torch.tensor([[0, -50], [2, 50], [10, 50], [12, -50]], dtype=torch.int8)
    >>> statistics.update(values, ["cat", "cat", "dog", "dog"])
    >>> scores = DiagonalLDA(DiagonalLDAConfig()).materialise(statistics)
    >>> [statistics.classes[best] for best in scores(torch.tensor([[1, 60], [11, 60]])).argmax(1)]
    ['cat', 'dog']
    """

    config: DiagonalLDAConfig

    def materialise(self, statistics: Statistics) -> LinearScores:
        means = class_means(statistics)
        variances = pooled_variances(statistics, means)
        variances += self.config.ridge_for(float(variances.mean()))
        # A feature that never varied (with lambda = 0) says nothing: it is left out instead of divided by zero.
        weight = (means / variances.where(variances > 0, float("inf"))).contiguous()
        return LinearScores(weight, self.config.log_priors(statistics) - (means * weight).sum(1) / 2)
