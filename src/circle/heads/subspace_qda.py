"""SLDA on all features, and a covariance for every class in a small fixed subspace."""

from __future__ import annotations

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
from circle.statistics import Statistics
from circle.statistics.parts import SUBSPACE_DIMENSIONS, upper_triangle

PRIOR_SAMPLES = 200.0  # as many samples of a class as its covariance is worth before any was seen
EVIDENCE = 1.2  # of an image at its usual distance from the mean, relative to what Gaussian classes would say
COORDINATES_PER_TEMPERATURE = 575.0  # shown, that make scores twice as certain as they should be
CLASSES_AT_ONCE = 32  # whose eigenvalues are computed together


@dataclass(frozen=True)
class SubspaceQDAConfig(SLDAConfig):
    """Settings of the head; the ridge goes to the pooled covariances, of all features and of the subspace.

    The covariance of a class is drawn towards the common one by

        rho_c = max(shrinkage, 200 / (200 + n_c))

    The constant, not the number of samples, decides from some thirty samples a class on: with 50 to 4,500 images of a
    class 0.8 to 0.9 was best, found on images held back (docs/accuracy.md).

    Parameters
    ----------
    ridge, ridge_rule, prior, temperature, calibrated
        As in :class:`~circle.heads.slda.SLDAConfig`.
    dimension : int
        d, coordinates of the subspace; every class keeps d (d + 1) / 2 numbers for them.
    shrinkage : float
        The least share of the common covariance in that of a class, 0.1 to 1.
    rank : int
        Directions of each class that a prediction looks at; the others share their mean variance. 0: half of d.
    """

    name: ClassVar[str] = "subspace_qda"

    dimension: int = option(448, f"coordinates of the subspace, one of {', '.join(map(str, SUBSPACE_DIMENSIONS))}")
    shrinkage: float = option(0.87, "least share of the common covariance in that of a class, 0.1 to 1")
    rank: int = option(96, "directions of each class that predictions look at; 0 for half of the dimension")

    def check(self) -> None:
        super().check()
        self.require(
            self.dimension in SUBSPACE_DIMENSIONS, "dimension", f"one of {', '.join(map(str, SUBSPACE_DIMENSIONS))}"
        )
        self.require(0.1 <= self.shrinkage <= 1.0, "shrinkage", "a number from 0.1 to 1")
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
        return classes * (size + coordinates + self.rank_of(coordinates) * (coordinates + 2)) + coordinates**2

    def candidates(self) -> dict[str, tuple[float, ...]]:
        return {**super().candidates(), "shrinkage": (0.7, 0.8, 0.85, 0.9, 0.95)}


@register("head", SubspaceQDAConfig)
class SubspaceQDA(Head):
    """Gaussian classes with a common covariance, corrected by what a subspace shows of each class's own:

        score_c(z) = slda_c(z) + 1.2 a / |v|^2 [ (v - v_c)^T (I - Sigma_c^{-1}) (v - v_c) / 2 ] - log |Sigma_c| / 2

    where u = round(P z / 2^s) are d whole numbers, v = L^{-1} (u - mean) the coordinates that make the pooled
    covariance S of u, with its ridge, the identity, and Sigma_c = (1 - rho_c) S_c + rho_c I that of the class there
    (Friedman's regularised discriminant analysis). With the eigenvalues l_r and eigenvectors q_r of S_c and
    a_r = (1 - rho_c) l_r + rho_c the bracket is

        (1 - 1/m) |v - v_c|^2 / 2 + sum_r (1/m - 1/a_r) (q_r.(v - v_c))^2 / 2

    over the R directions of largest variance; m is the mean a_r of the others. A class of a single sample has
    rho_c = 1, and no bracket.

    The factor before it: images have heavier tails than Gaussians. One that lies far out does so in all directions at
    once, and its squares say no more about its class than those of another. So they are measured by its own |v|^2,
    relative to a = tr(L^{-1} S L^{-T}) with S without its ridge, which is what |v|^2 is on average; a multivariate t
    distribution has the same factor in its gradient. It is at most 4.

    Where the head is calibrated, scores are divided by T (1 + a / 575), T that of
    :func:`circle.heads.slda.temperature_of`.

    Parameters
    ----------
    config : SubspaceQDAConfig
        The settings.

    Examples
    --------
    >>> config = SubspaceQDAConfig(dimension=32)
    >>> statistics = Statistics(2, parts=config.parts)
    >>> values = torch.tensor([[-50, -48], [60, 62], [-50, 48], [60, -62]] * 20, dtype=torch.int8)  # about one mean
    >>> statistics.update(values, ["together", "together", "opposed", "opposed"] * 20)
    >>> scores = SubspaceQDA(config).materialise(statistics)
    >>> [statistics.classes[best] for best in scores(torch.tensor([[40, 30], [40, -30]], dtype=torch.int8)).argmax(1)]
    ['together', 'opposed']
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
            rho = (PRIOR_SAMPLES / (PRIOR_SAMPLES + n)).clamp_min(config.shrinkage)
            rho = torch.where(n > 1.0, rho, torch.ones_like(n))[:, None]
            variances = (1.0 - rho) * eigenvalues.clamp_min(0.0) + rho
            rest = variances[:, rank:].mean(1) if rank < size else variances[:, -1]
            weights = (0.5 * (1.0 / rest[:, None] - 1.0 / variances[:, :rank])).clamp_min(0.0).sqrt()
            directions[part] = vectors[:, :, :rank].mT * weights[:, :, None]
            curvature[part] = 0.5 * (1.0 - 1.0 / rest)
            bias[part] -= 0.5 * (variances[:, :rank].log().sum(1) + (size - rank) * rest.log())
        if config.calibrated:
            temperature *= 1.0 + shown / COORDINATES_PER_TEMPERATURE
        return SubspaceScores.of(
            weight / temperature,
            bias / temperature,
            whitening,
            whitening @ middle,
            curvature,
            directions,
            whitened,
            shift,
            evidence=EVIDENCE * shown,
            temperature=temperature,
        )


def _symmetric(triangle: Tensor, size: int) -> Tensor:
    """The matrix [d, d] of an upper triangle [d (d + 1) / 2]."""
    matrix = triangle.new_zeros(size * size)
    matrix[upper_triangle(size, triangle.device)] = triangle
    matrix = matrix.view(size, size)
    return matrix + matrix.triu(1).T
