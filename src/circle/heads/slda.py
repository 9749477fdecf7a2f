"""Streaming linear discriminant analysis, the head of CIRCLE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from circle import linalg
from circle.config import option
from circle.heads.base import Head, RidgeConfig
from circle.heads.covariance import class_means, pooled_covariance, shrinkage_intensity
from circle.heads.priors import PriorConfig
from circle.heads.scores import LinearScores
from circle.registry import register
from circle.statistics import Statistics

MEAN_NOISE_SAMPLES = 500  # samples of a class at which its mean's noise asks for as much ridge as the covariance's


@dataclass(frozen=True)
class SLDAConfig(RidgeConfig, PriorConfig):
    """Settings of the SLDA head; the ridge goes to the pooled covariance.

    The rule ``shrinkage`` follows the stream: the variance S_jj of every feature grows by

        lambda_j = ridge rho (1 + 500 C / N) S_jj

    where rho is the intensity of :func:`circle.heads.covariance.shrinkage_intensity`, which falls as samples arrive,
    and the factor in brackets allows for the noise of the class means, which matters where classes have few samples.
    This is a function of the statistics, so the model depends on what was learned and not on the order; and of
    correlations, so it does not depend on the units of the features.

    Parameters
    ----------
    ridge : float
        lambda, or the factor ``ridge`` above.
    ridge_rule : {"shrinkage", "relative", "absolute"}
        As above, a multiple of the mean diagonal, or a number of its own.
    prior : str or mapping
        As in :class:`~circle.heads.priors.PriorConfig`.
    temperature : float
        Scores are divided by it before the softmax.
    """

    name: ClassVar[str] = "slda"

    follows_samples: ClassVar[bool] = True

    ridge: float = option(1.5, "lambda, added to the diagonal of the matrix that is solved")
    ridge_rule: Literal["relative", "absolute", "shrinkage"] = option(
        "shrinkage", "lambda is a multiple of the mean diagonal, a number of its own, or (SLDA) falls with samples"
    )

    def ridge_for_covariance(self, covariance: Tensor, samples: int, per_class: float) -> float | Tensor:
        """What is added to the diagonal of a covariance [D, D] estimated with this many degrees of freedom."""
        variances = covariance.diagonal()
        added = self.ridge_for(float(variances.mean()))
        if self.ridge_rule != "shrinkage" or not bool((variances > 0.0).any()):
            return added
        # A feature that never varied gets the mean variance: its weight is zero whatever it is divided by.
        units = torch.where(variances > 0.0, variances, variances.mean())
        return units * (self.ridge * shrinkage_intensity(covariance, samples) * (1.0 + MEAN_NOISE_SAMPLES / per_class))


@register("head", SLDAConfig)
class SLDA(Head):
    """Algorithm "Materialise" of the paper, solved by Cholesky, never inverted.

    With counts n_c, sums T_c and second moment M over N samples of C classes:

        mu_c = T_c / n_c        S = M - sum_c n_c mu_c mu_c^T        Sigma = S / (N - C) + lambda I
        w_c = Sigma^{-1} mu_c   score_c(z) = z.w_c - mu_c.w_c / 2 + log(n_c / N)

    The softmax of the scores is the posterior of Gaussian classes with a common covariance. n_c / N is the prior, where
    the settings ask for no other.

    Parameters
    ----------
    config : SLDAConfig
        The settings.

    Examples
    --------
    >>> statistics = Statistics(2)
    >>> values = torch.tensor([[0, 0], [9, 10], [4, 0], [13, 9]], dtype=torch.int8)  # both features grow together
    >>> statistics.update(values, ["cat", "cat", "dog", "dog"])
    >>> scores = SLDA(SLDAConfig(ridge=0.01, ridge_rule="relative")).materialise(statistics)
    >>> [statistics.classes[best] for best in scores(torch.tensor([[20, 22], [-6, -10]])).argmax(1)]
    ['cat', 'dog']
    """

    config: SLDAConfig

    def system(self, statistics: Statistics) -> tuple[Tensor, Tensor]:
        """Sigma [D, D] with its ridge, and the means mu [C, D]."""
        means = class_means(statistics)
        covariance = pooled_covariance(statistics, means)
        per_class = statistics.samples / len(means)
        covariance.diagonal().add_(
            self.config.ridge_for_covariance(covariance, statistics.degrees_of_freedom, per_class)
        )
        return covariance, means

    def materialise(self, statistics: Statistics) -> LinearScores:
        covariance, means = self.system(statistics)
        weight = linalg.cholesky(covariance).solve(means.T).T
        bias = self.config.log_priors(statistics) - (means * weight).sum(1) / 2
        return LinearScores(weight.contiguous(), bias)
