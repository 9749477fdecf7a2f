"""Streaming linear discriminant analysis, the head of CIRCLE."""

from __future__ import annotations

import math
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
from circle.runtime.weights import random_bytes
from circle.statistics import Statistics

PROBES = 128  # random vectors that a trace is taken from, exact up to as many features
MIN_SHARE = 0.05  # of the mean margin that noise leaves, and of the degrees of freedom that fitting leaves
MARGIN_WITHOUT_SCATTER = 8.0  # mean margin where every class has a single sample, and nothing says how far they spread
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
    calibrated : bool
        Whether probabilities are meant to say how often they are right: scores are divided by :func:`temperature_of`
        and by a temperature of each image's own (:mod:`circle.runtime.probabilities`). The most probable class of a
        head is the same either way.
    """

    name: ClassVar[str] = "slda"

    follows_samples: ClassVar[bool] = True

    ridge: float = option(1.5, "lambda, added to the diagonal of the matrix that is solved")
    ridge_rule: Literal["relative", "absolute", "shrinkage"] = option(
        "shrinkage", "lambda is a multiple of the mean diagonal, a number of its own, or (SLDA) falls with samples"
    )

    calibrated: bool = option(  # pyright: ignore[reportIncompatibleVariableOverride]
        True, "whether probabilities are widened to say how often they are right"
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
    the settings ask for no other. Where the head is calibrated, scores are divided by :func:`temperature_of` first.

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
        weight, bias, temperature = self.solved(statistics)
        return LinearScores(weight / temperature, bias / temperature)

    def solved(self, statistics: Statistics) -> tuple[Tensor, Tensor, float]:
        """w [C, D], the biases [C], and the temperature that they are to be divided by: 1 if it is not calibrated."""
        means = class_means(statistics)
        covariance = pooled_covariance(statistics, means)
        per_class = statistics.samples / len(means)
        ridge = self.config.ridge_for_covariance(covariance, statistics.degrees_of_freedom, per_class)
        covariance.diagonal().add_(ridge)
        factor = linalg.cholesky(covariance)
        weight = factor.solve(means.T).T.contiguous()
        bias = self.config.log_priors(statistics) - (means * weight).sum(1) / 2
        if not self.config.calibrated:
            return weight, bias, 1.0
        ridges = ridge + torch.zeros_like(means[0])
        return weight, bias, temperature_of(statistics, factor, ridges, means, weight)


def temperature_of(
    statistics: Statistics, factor: linalg.Factor, ridges: Tensor, means: Tensor, weight: Tensor
) -> float:
    """What to divide scores by, because means and covariance were estimated: the margins' variance by their mean.

    Of Gaussian classes the scores of a pair of classes differ by margins whose mean is half of their variance; this is
    what makes them log-likelihood ratios. Let S be the pooled covariance of nu degrees of freedom, Lambda the ridge,
    A = (S + Lambda)^{-1} and B the covariance of the C class means. Averaged over pairs, the samples that were learned
    show margins of mean g = tr(A B) and variance 2 h = 2 tr(A S A B). New samples do not: A was fitted to S, and
    the means to the noise of their samples. Generalised cross-validation corrects both, by the f = tr(A S) degrees of
    freedom that were fitted:

        T = k^2 h / (g - k f mean(1 / n_c))        k = 1 / (1 - f / nu)        T of at least 1

    With a single sample of every class nothing says how far they spread, and T = g / 8 makes margins of a fixed size.

    Parameters
    ----------
    statistics : Statistics
        Counts and degrees of freedom.
    factor : Factor
        Of S + Lambda.
    ridges : Tensor
        The diagonal of Lambda, [D].
    means, weight : Tensor
        mu_c and A mu_c, [C, D].
    """
    if len(means) < 2:
        return 1.0
    centred, directions = means - means.mean(0), weight - weight.mean(0)
    pairs = len(means) - 1
    shown = float((centred * directions).sum()) / pairs  # g
    if not shown > 0.0:
        return 1.0  # all means are the same
    freedom = statistics.degrees_of_freedom
    if not freedom:
        return shown / MARGIN_WITHOUT_SCATTER
    variance = shown - float((directions.square() * ridges).sum()) / pairs  # h, as S = (S + Lambda) - Lambda
    probes = _probes(len(ridges)).to(ridges) * ridges.sqrt()[:, None]
    fitted = len(ridges) - float(factor.whiten(probes).square().sum())  # f = D - tr(A Lambda)
    correction = 1.0 / max(MIN_SHARE, 1.0 - fitted / freedom)  # k
    noise = correction * fitted * float((1.0 / statistics.counts.to(torch.float64)).mean())
    return max(1.0, correction**2 * variance / max(MIN_SHARE * shown, shown - noise))


def _probes(size: int) -> Tensor:
    """X, float64 [D, K], with X X^T = I on average, so that tr(X^T B X) is tr(B): the same on every machine."""
    if size <= PROBES:
        return torch.eye(size, dtype=torch.float64)
    signs = torch.from_numpy(random_bytes(0, "probes", (size, PROBES)) % 2).to(torch.float64)
    return (2.0 * signs - 1.0) / math.sqrt(PROBES)
