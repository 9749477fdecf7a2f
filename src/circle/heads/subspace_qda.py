"""SLDA on all features, and a covariance for every class in a small fixed subspace."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import ClassVar

import torch
from torch import Tensor

from circle import linalg
from circle.config import option
from circle.errors import counted
from circle.heads.base import Head
from circle.heads.scores import SubspaceScores
from circle.heads.slda import SLDA, SLDAConfig
from circle.machine import require_memory
from circle.registry import register
from circle.runtime.subspace import subspace_matrix
from circle.statistics import Statistics
from circle.statistics.parts import SUBSPACE_DIMENSIONS, upper_triangle

MIN_PRIOR_SAMPLES = 50.0  # as many samples of a class as its covariance is worth, at least, before any was seen
HALF_OVERCONFIDENT = 450.0  # shown coordinates with which brackets make scores 1.5 times too certain; 2 is the most
CLASSES_AT_ONCE = 32  # whose eigenvalues are computed together


@dataclass(frozen=True)
class SubspaceQDAConfig(SLDAConfig):
    """Settings of the head; the ridge goes to the pooled covariances, of all features and of the subspace.

    How far a class's covariance is drawn towards the common one follows from the statistics:

        rho_c = nu / (nu + n_c)        nu = max(50, k a^2 / d)        a = tr(S Sigma^{-1})

    S is the pooled covariance of the subspace and Sigma the same with its ridge, so that a, at most d, says how many of
    the d directions the samples show. The noise of a covariance of n samples has the squared norm tr(S)^2 / n, which is
    a^2 / n in whitened coordinates; relative to a deviation of classes that grows as d this gives a^2 / d. k and the
    least value of nu were found on images held back (docs/accuracy.md).

    Parameters
    ----------
    ridge, ridge_rule, prior, temperature, calibrated
        As in :class:`~circle.heads.slda.SLDAConfig`.
    dimension : int
        d, coordinates of the subspace; every class keeps d (d + 1) / 2 numbers for them.
    shrinkage : float
        k below: how strongly the covariance of a class is drawn towards that of all classes.
    rank : int
        Directions of each class that a prediction looks at; the others share their mean variance. 0: half of d.
    """

    name: ClassVar[str] = "subspace_qda"

    dimension: int = option(448, f"coordinates of the subspace, one of {', '.join(map(str, SUBSPACE_DIMENSIONS))}")
    shrinkage: float = option(7.0, "how strongly covariances of classes are drawn towards the common one")
    rank: int = option(96, "directions of each class that predictions look at; 0 for half of the dimension")

    def check(self) -> None:
        super().check()
        self.require(
            self.dimension in SUBSPACE_DIMENSIONS, "dimension", f"one of {', '.join(map(str, SUBSPACE_DIMENSIONS))}"
        )
        self.require(self.shrinkage >= 0, "shrinkage", "zero or a positive number")
        self.require(self.rank >= 0, "rank", "zero or a positive number")

    @property
    def parts(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return (f"subspace_{self.dimension}",)

    def without_class_covariances(self) -> SLDAConfig:
        """The head that this one corrects."""
        return SLDAConfig(**{field.name: getattr(self, field.name) for field in fields(SLDAConfig)})

    def rank_of(self, coordinates: int) -> int:
        """Directions of each class, of this many coordinates."""
        return min(self.rank or self.dimension // 2, coordinates)

    def numbers(self, classes: int, size: int) -> int:
        coordinates = min(self.dimension, size)
        return classes * (size + self.rank_of(coordinates) * (coordinates + 2)) + coordinates**2

    def candidates(self) -> dict[str, tuple[float, ...]]:
        return {**super().candidates(), "shrinkage": (1.0, 3.0, 7.0, 15.0, 30.0)}


@register("head", SubspaceQDAConfig)
class SubspaceQDA(Head):
    """Gaussian classes with a common covariance, corrected by what a subspace shows of each class's own:

        score_c(z) = slda_c(z) + [ rda_c(u) - slda_c(u) ]        u = round(P z / 2^s), d whole numbers

    where rda is the quadratic discriminant with Sigma_c = (1 - rho_c) S_c + rho_c S (Friedman's regularised
    discriminant analysis). In coordinates v = L^{-1} (u - mean) that make S the identity, and with the eigenvalues
    l_r and eigenvectors q_r of S_c there, a_r = (1 - rho_c) l_r + rho_c, the bracket is

        (1 - 1/a) |v - v_c|^2 / 2 + sum_r (1/a - 1/a_r) (q_r.(v - v_c))^2 / 2 - sum_r log(a_r) / 2 - (d - R) log(a) / 2

    over the R directions of largest variance; a is the mean a_r of the others. A class of a single sample has
    rho_c = 1, and no bracket.

    The bracket takes each of the a shown coordinates as new evidence, but where an image lies far out, it does so in
    all of them at once. Where the head is calibrated, scores are divided by T (1 + a / (a + 450)), T that of
    :func:`circle.heads.slda.temperature_of`.

    Parameters
    ----------
    config : SubspaceQDAConfig
        The settings.

    Examples
    --------
    >>> config = SubspaceQDAConfig(dimension=32)
    >>> statistics = Statistics(2, parts=config.parts)
    >>> values = torch.tensor([[-1, 1], [1, -1], [-60, -70], [50, 70]] * 20, dtype=torch.int8)  # the same mean
    >>> statistics.update(values, ["near", "near", "far", "far"] * 20)
    >>> scores = SubspaceQDA(config).materialise(statistics)
    >>> [statistics.classes[best] for best in scores(torch.tensor([[2, 1], [55, 65]], dtype=torch.int8)).argmax(1)]
    ['near', 'far']
    """

    config: SubspaceQDAConfig

    def materialise(self, statistics: Statistics) -> SubspaceScores:
        config = self.config
        config.check_statistics(statistics)
        weight, biases, temperature = SLDA(config).solved(statistics)
        triangles, sums, shift = statistics.subspace_moments(config.parts[0])
        classes, size = sums.shape
        rank = config.rank_of(size)
        require_memory(
            5 * classes * rank * size + 8 * (5 + 3 * CLASSES_AT_ONCE) * size**2,
            f"covariances of {counted(classes, 'class')} in {size:,} dimensions",
            "use a smaller dimension or rank of the head, or a head with one covariance for all (slda)",
        )
        counts = statistics.counts.to(sums)
        means = sums / counts[:, None]
        freedom = max(1, int(counts.sum()) - classes)
        pooled = _symmetric(triangles.sum(0, dtype=torch.float64), size)
        pooled.addmm_(sums.T, means, alpha=-1.0).div_(freedom)
        unridged = pooled.clone()
        pooled.diagonal().add_(config.ridge_for_covariance(pooled, freedom, float(counts.mean())))
        factor = linalg.cholesky(pooled)
        whitening = factor.whiten(torch.eye(size, dtype=torch.float64, device=sums.device))
        middle = sums.sum(0) / counts.sum()
        whitened = factor.whiten((means - middle).T).T.contiguous()  # v_c, [C, d]

        shown = float((whitening @ unridged).mul_(whitening).sum())  # a = tr(L^{-1} S L^{-T})
        prior = max(MIN_PRIOR_SAMPLES, config.shrinkage * shown**2 / size)
        curvature, bias = sums.new_zeros(classes), biases.to(torch.float64).clone()
        directions = sums.new_zeros(classes, rank, size)
        for start in range(0, classes, CLASSES_AT_ONCE):
            part = slice(start, start + CLASSES_AT_ONCE)
            n = counts[part]
            scatter = torch.stack([_symmetric(each.to(torch.float64), size) for each in triangles[part]])
            scatter -= sums[part, :, None] * means[part, None, :]
            own = (whitening @ scatter @ whitening.T) / (n - 1).clamp_min(1.0)[:, None, None]
            eigenvalues, vectors = linalg.eigenvectors(own)
            # A single sample has no covariance of its own.
            rho = torch.where(n > 1.0, prior / (prior + n), torch.ones_like(n))[:, None]
            variances = (1.0 - rho) * eigenvalues.clamp_min(0.0) + rho
            rest = variances[:, rank:].mean(1) if rank < size else variances[:, -1]
            weights = (0.5 * (1.0 / rest[:, None] - 1.0 / variances[:, :rank])).clamp_min(0.0).sqrt()
            directions[part] = vectors[:, :, :rank].mT * weights[:, :, None]
            curvature[part] = 0.5 * (1.0 - 1.0 / rest)
            bias[part] -= 0.5 * (variances[:, :rank].log().sum(1) + (size - rank) * rest.log())
        # |v - v_c|^2 = |v|^2 - 2 v.v_c + |v_c|^2: what is linear in v joins the linear scores of all features.
        pull = -2.0 * curvature[:, None] * (whitened @ whitening)  # per unit of u, [C, d]
        bias += curvature * whitened.square().sum(1) - pull @ middle
        matrix = torch.from_numpy(subspace_matrix(statistics.size, size)).to(sums)
        weight = weight + (pull @ matrix.T) * math.ldexp(1.0, -shift)
        if config.calibrated:
            temperature *= 1.0 + shown / (shown + HALF_OVERCONFIDENT)
            weight, bias, curvature = weight / temperature, bias / temperature, curvature / temperature
            directions /= math.sqrt(temperature)
        return SubspaceScores.of(weight, bias, whitening, whitening @ middle, curvature, directions, whitened, shift)


def _symmetric(triangle: Tensor, size: int) -> Tensor:
    """The matrix [d, d] of an upper triangle [d (d + 1) / 2]."""
    matrix = triangle.new_zeros(size * size)
    matrix[upper_triangle(size, triangle.device)] = triangle
    matrix = matrix.view(size, size)
    return matrix + matrix.triu(1).T
