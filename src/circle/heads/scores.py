"""Materialised heads: what turns features into scores, and what a predicting model stores of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Self

import torch
from torch import Tensor

from circle.unit_vectors import unit_vectors


@dataclass(frozen=True, eq=False)
class Scores(ABC):
    """A function from features [B, D] of any type to scores float64 [B, C], larger is better."""

    kind: ClassVar[str]
    names: ClassVar[tuple[str, ...]]  # of the tensors that a file holds

    @abstractmethod
    def __call__(self, features: Tensor) -> Tensor: ...

    @abstractmethod
    def rounded(self) -> Self:
        """Weights to float32, as a predicting model stores them, so that both kinds of model say the same."""

    def tensors(self) -> dict[str, Tensor]:
        """What a file holds; :meth:`from_tensors` is the inverse."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        return cls(**tensors)


@dataclass(frozen=True, eq=False)
class LinearScores(Scores):
    """scores = z W^T + b."""

    kind: ClassVar[str] = "linear"
    names: ClassVar[tuple[str, ...]] = ("weight", "bias")

    weight: Tensor  # [C, D]
    bias: Tensor  # [C]

    def __call__(self, features: Tensor) -> Tensor:
        weight = self.weight.to(torch.float64)
        return torch.addmm(self.bias.to(torch.float64), features.to(weight.device, torch.float64), weight.T)

    def rounded(self) -> LinearScores:
        return LinearScores(self.weight.to(torch.float32), self.bias)


@dataclass(frozen=True, eq=False)
class CosineScores(Scores):
    """score_c = cos(z, w_c) = (z / |z|).w_c with |w_c| = 1."""

    kind: ClassVar[str] = "cosine"
    names: ClassVar[tuple[str, ...]] = ("weight", "bias")

    weight: Tensor  # [C, D], rows of length one
    bias: Tensor  # [C], zero; files of linear and cosine heads are alike

    def __call__(self, features: Tensor) -> Tensor:
        return unit_vectors(features.to(self.weight.device)) @ self.weight.to(torch.float64).T

    def rounded(self) -> CosineScores:
        return CosineScores(self.weight.to(torch.float32), self.bias)


@dataclass(frozen=True, eq=False)
class QuadraticScores(Scores):
    """score_c = b_c - |L_c^{-1} (z - mu_c)|^2, where L_c L_c^T is (a multiple of) the covariance of class c."""

    kind: ClassVar[str] = "quadratic"
    names: ClassVar[tuple[str, ...]] = ("means", "factors", "bias")

    means: Tensor  # [C, D]
    factors: Tensor  # [C, D (D + 1) / 2], the lower triangles of the L_c row by row
    bias: Tensor  # [C]

    def __call__(self, features: Tensor) -> Tensor:
        values = features.to(self.means.device, torch.float64).T  # [D, B]
        size = len(values)
        rows, columns = torch.tril_indices(size, size, device=values.device)
        lower = torch.zeros(size, size, dtype=torch.float64, device=values.device)
        scores = values.new_empty(values.shape[1], len(self.means))
        for index, (mean, factor, bias) in enumerate(zip(self.means, self.factors, self.bias, strict=True)):
            lower[rows, columns] = factor.to(torch.float64)
            distance = torch.linalg.solve_triangular(lower, values - mean.to(torch.float64)[:, None], upper=False)
            scores[:, index] = bias.to(torch.float64) - distance.square_().sum(0)
        return scores

    def rounded(self) -> QuadraticScores:
        return QuadraticScores(self.means.to(torch.float32), self.factors.to(torch.float32), self.bias)


SCORES: dict[str, type[Scores]] = {each.kind: each for each in (LinearScores, CosineScores, QuadraticScores)}
