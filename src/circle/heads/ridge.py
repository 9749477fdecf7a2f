"""Ridge regression on one-hot targets: the direct solve, and the recursion that gives the same."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from circle import linalg
from circle.config import option
from circle.heads.base import Head, RidgeConfig
from circle.heads.scores import LinearScores
from circle.registry import register
from circle.statistics import Statistics


@dataclass(frozen=True)
class RidgeHeadConfig(RidgeConfig):
    """Settings of ridge regression; the ridge goes to the second moment, which grows with the samples.

    Parameters
    ----------
    ridge, ridge_rule
        As in :class:`~circle.heads.base.RidgeConfig`.
    intercept : bool
        Whether a constant that is not penalised is fitted as well.
    temperature : float
        Scores, which aim at 0 and 1, are divided by it before the softmax.
    """

    name: ClassVar[str] = "ridge"

    intercept: bool = option(False, "whether a constant that is not penalised is fitted, too")
    temperature: float = option(0.1, "scores, which aim at 0 and 1, are divided by it before the softmax")

    def candidates(self) -> dict[str, tuple[float, ...]]:
        return {**super().candidates(), "intercept": (False, True)}

    @classmethod
    def temperatures(cls) -> tuple[float, ...]:
        return (0.01, 0.03, 0.1, 0.3, 1.0)


@register("head", RidgeHeadConfig)
class Ridge(Head):
    """Least squares with one-hot targets, for which B = sum_i z_i y_i^T has the class sums as columns:

        A = M + lambda I        W = A^{-1} B        score(z) = W^T z

    With an intercept everything is centred first: A = M - N zbar zbar^T + lambda I, B = sum_i (z_i - zbar) y_i^T, and
    the score is n_c / N + W^T (z - zbar). :class:`RecursiveRidge` reaches the same W sample by sample.

    Parameters
    ----------
    config : RidgeHeadConfig
        The settings.

    Examples
    --------
    >>> statistics = Statistics(2)
    >>> statistics.update(torch.tensor([[2, 0], [0, 4]], dtype=torch.int8), ["cat", "dog"])
    >>> scores = Ridge(RidgeHeadConfig(ridge=0.0)).materialise(statistics)
    >>> scores(torch.tensor([[2, 0], [1, 2]])).round(decimals=6)  # without a ridge, targets are met where they can be
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]], dtype=torch.float64)
    """

    config: RidgeHeadConfig

    def materialise(self, statistics: Statistics) -> LinearScores:
        sums = statistics.sums
        counts = statistics.counts.to(statistics.device, torch.float64)
        moment = statistics.second_moment()
        total = counts.sum()
        centre = sums.sum(0) / total if self.config.intercept else torch.zeros_like(sums[0])
        moment.addr_(centre, centre, alpha=-float(total))
        right = sums.T - torch.outer(centre, counts)
        moment.diagonal().add_(self.config.ridge_for(float(moment.diagonal().mean())))
        weight = linalg.cholesky(moment).solve(right).T
        bias = counts / total - weight @ centre if self.config.intercept else torch.zeros_like(counts)
        return LinearScores(weight.contiguous(), bias)


class RecursiveLeastSquares:
    """W = argmin sum_i |y_i - W^T z_i|^2 + lambda |W|^2, batch by batch, float64:

        K = R Z^T (I + Z R Z^T)^{-1}        R <- R - K Z R        W <- W + K (Y - Z W),      R_0 = I / lambda

    R is (lambda I + sum_i z_i z_i^T)^{-1} by the Woodbury identity, so W is the direct solution; but rounding
    errors pile up, and nothing can be taken out or merged.

    Parameters
    ----------
    size : int
        Number of features D.
    ridge : float
        lambda, above zero.
    device : torch.device, optional
        Where the matrices are kept.

    Attributes
    ----------
    inverse : Tensor
        R, float64 [D, D].
    weight : Tensor
        W, float64 [D, C].
    """

    def __init__(self, size: int, ridge: float, device: torch.device | None = None) -> None:
        self.inverse = torch.eye(size, dtype=torch.float64, device=device) / ridge
        self.weight = torch.zeros(size, 0, dtype=torch.float64, device=device)

    def grow(self, columns: int) -> None:
        """Room for new targets, with weights of zero, up to ``columns`` in all."""
        missing = columns - self.weight.shape[1]
        self.weight = torch.cat([self.weight, self.weight.new_zeros(len(self.weight), missing)], 1)

    def update(self, values: Tensor, targets: Tensor) -> None:
        """Add samples: float64 [B, D] and their targets [B, C]."""
        spread = self.inverse @ values.T  # [D, B]
        inner = values @ spread
        inner.diagonal().add_(1.0)
        gain = linalg.cholesky(inner).solve(spread.T).T
        self.inverse -= gain @ spread.T
        self.weight += gain @ (targets - values @ self.weight)


class RecursiveRidge(RecursiveLeastSquares):
    """The published form of the ridge head, for features and labels: the peer of tests and of ``make bench``.

    Examples
    --------
    >>> recursive = RecursiveRidge(size=2, ridge=1e-9)
    >>> recursive.learn(torch.tensor([[2, 0], [0, 4]]), ["cat", "dog"])
    >>> recursive.classes, (torch.tensor([[1.0, 2.0]], dtype=torch.float64) @ recursive.weight).round(decimals=6)
    (['cat', 'dog'], tensor([[0.5000, 0.5000]], dtype=torch.float64))
    """

    def __init__(self, size: int, ridge: float) -> None:
        super().__init__(size, ridge)
        self.classes: list[Hashable] = []

    def learn(self, features: Tensor, labels: Sequence[Hashable]) -> None:
        """Add samples: features [B, D] of any type, one label each; new classes get a column of zeros."""
        values = features.to(torch.float64)
        self.classes += list(dict.fromkeys(label for label in labels if label not in self.classes))
        self.grow(len(self.classes))
        targets = values.new_zeros(len(values), len(self.classes))
        targets[torch.arange(len(values)), [self.classes.index(label) for label in labels]] = 1.0
        self.update(values, targets)
