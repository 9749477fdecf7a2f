"""What methods keep of the features of each class: count, mean and, where asked for, a covariance with its factor."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from circle import linalg


class ClassBank:
    """Statistics of the features of each class, by column, in float64. Factors are made once and kept.

    A class that comes again is described by its latest images.

    Parameters
    ----------
    size : int
        d, values of a feature vector.
    covariances : bool
        Whether covariances are kept, too.
    device : torch.device or None
        Where the statistics are.

    Attributes
    ----------
    counts : list of int
        Samples of each class, C of them.
    means : Tensor [C, d]
    spreads : Tensor [C]
        tr(S_c) / d, also where S_c itself is not kept.
    covariances : Tensor [C, d, d] or None
    jittered : int
        How often a covariance had to be mended before it could be factorised, by this object.

    Examples
    --------
    >>> bank = ClassBank(2, covariances=True)
    >>> bank.describe(torch.tensor([0, 0, 0]), torch.tensor([[1.0, 0.0], [3.0, 0.0], [2.0, 3.0]]))
    >>> bank.counts, bank.means.tolist()
    ([3], [[2.0, 1.0]])
    """

    def __init__(self, size: int, *, covariances: bool, device: torch.device | None = None) -> None:
        self.counts: list[int] = []
        self.means = torch.zeros(0, size, dtype=torch.float64, device=device)
        self.spreads = torch.zeros(0, dtype=torch.float64, device=device)
        self.covariances = torch.zeros(0, size, size, dtype=torch.float64, device=device) if covariances else None
        self.jittered = 0
        self._factors: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self.means)

    def put(self, column: int, count: int, mean: Tensor, covariance: Tensor | None = None, spread: float = 0.0) -> None:
        """Describe a class of ``count`` samples; those before it must be there already."""
        if (covariance is None) is (self.covariances is not None):
            raise ValueError("a covariance for a bank that keeps them, and for no other")
        self.counts[column : column + 1] = [count]
        if covariance is not None:
            spread = float(covariance.diagonal().mean())
        self.means = _with_row(self.means, column, mean)
        self.spreads = _with_row(self.spreads, column, torch.tensor(spread))
        if self.covariances is not None and covariance is not None:
            self.covariances = _with_row(self.covariances, column, covariance)
        self._factors.pop(column, None)

    def describe(self, columns: Tensor, features: Tensor) -> None:
        """Count, mean, spread and, if kept, sample covariance of each class, of features [N, d] and columns [N]."""
        for column in columns.unique().tolist():
            own = features[(columns == column).to(features.device)].to(torch.float64)
            if self.covariances is None:
                spread = float((own - own.mean(0)).square().sum() / max(1, len(own) - 1) / own.shape[1])
                self.put(column, len(own), own.mean(0), spread=spread)
            else:
                self.put(column, len(own), own.mean(0), covariance_of(own))

    def factor(self, column: int) -> Tensor:
        """L [d, d] with L L^T the covariance of a class; jitter that it takes is logged and counted."""
        if column not in self._factors:
            factor = linalg.cholesky(self.covariance(column).clone())
            self.jittered += factor.tries > 0
            self._factors[column] = factor.lower
        return self._factors[column]

    def distances(self, values: Tensor) -> Tensor:
        """(v - mu_c)^T S_c^{-1} (v - mu_c) of values [B, d] to every class, [B, C]."""
        columns = []
        for column, mean in enumerate(self.means):
            away = (values.to(torch.float64) - mean).T
            white = torch.linalg.solve_triangular(self.factor(column), away, upper=False)
            columns.append(white.square().sum(0))
        return torch.stack(columns, 1)

    def radius(self) -> float:
        """r = sqrt(mean over classes of tr(S_c) / d): how far a feature lies from its class mean, per direction."""
        return math.sqrt(float(self.spreads.mean()))

    def sample(self, column: int, count: int, generator: torch.Generator) -> Tensor:
        """Draws from N(mu_c, S_c), float64 [count, d]: mu_c + L e with e standard normal."""
        noise = torch.randn(count, self.means.shape[1], generator=generator, dtype=torch.float64)
        return self.means[column] + noise.to(self.means.device) @ self.factor(column).T

    def covariance(self, column: int) -> Tensor:
        """S_c, [d, d]."""
        if self.covariances is None:
            raise ValueError("this bank keeps means only")
        return self.covariances[column]

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "counts": torch.tensor(self.counts),
            "means": self.means.cpu().clone(),
            "spreads": self.spreads.cpu().clone(),
        }
        if self.covariances is not None:
            state["covariances"] = self.covariances.cpu().clone()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.counts = state["counts"].tolist()
        self.means = state["means"].to(self.means.device, copy=True)
        self.spreads = state["spreads"].to(self.means.device, copy=True)
        if self.covariances is not None:
            self.covariances = state["covariances"].to(self.means.device, copy=True)
        self._factors.clear()


def _with_row(rows: Tensor, index: int, row: Tensor) -> Tensor:
    """The rows with this one in its place, which may be the first free one."""
    if index == len(rows):
        return torch.cat([rows, row[None].to(rows)])
    rows[index] = row.to(rows)
    return rows


def covariance_of(values: Tensor) -> Tensor:
    """Sample covariance [d, d] of values [N, d], float64; zero for a single one."""
    centred = values.to(torch.float64)
    centred = centred - centred.mean(0)
    return centred.T @ centred / max(1, len(values) - 1)
