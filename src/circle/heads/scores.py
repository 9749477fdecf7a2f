"""Materialised heads: what turns features into scores, and what a predicting model stores of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import ClassVar, Self

import torch
from torch import Tensor

from circle import machine
from circle.statistics.parts import unit_vectors

CLASSES = 8  # that a core scores in one go

SCORES: dict[str, type[Scores]] = {}  # by the kind that a file names; every class enters itself


@dataclass(frozen=True, eq=False)
class Scores(ABC):
    """A function from features [B, D] of any type to scores float64 [B, C], larger is better."""

    kind: ClassVar[str]
    names: ClassVar[tuple[str, ...]]  # of the tensors that a file holds
    file_format: ClassVar[int] = 1  # the first format of model files whose readers know this kind

    def __init_subclass__(cls) -> None:
        SCORES[cls.kind] = cls

    @abstractmethod
    def __call__(self, features: Tensor) -> Tensor: ...

    @abstractmethod
    def rounded(self) -> Self:
        """Weights to float32, as a predicting model stores them, so that both kinds of model say the same."""

    def tensors(self) -> dict[str, Tensor]:
        """What a file holds; :meth:`from_tensors` is the inverse."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def numbers(self) -> int:
        """Learned numbers, one per class (biases, scales) aside."""
        return sum(values.numel() for values in self.tensors().values() if values.ndim > 1)

    def describe(self) -> str:
        """How the weights are kept, in words."""
        return "float32"

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
        values = features.to(self.means.device, torch.float64).T.contiguous()  # [D, B]
        scores = values.new_empty(len(self.means), values.shape[1])
        # Classes are independent: every core takes some of them.
        starts = range(0, len(self.means), CLASSES)
        machine.run_jobs([partial(self._score, values, scores, slice(start, start + CLASSES)) for start in starts])
        return scores.T

    def _score(self, values: Tensor, scores: Tensor, classes: slice) -> None:
        """Fill in the rows of some classes: features [D, B] -> scores [C, B]."""
        lower = values.new_zeros(len(values), len(values))
        triangle = torch.ones_like(lower, dtype=torch.bool).tril_()
        bias = self.bias.to(torch.float64)
        for index in range(len(self.means))[classes]:
            lower.masked_scatter_(triangle, self.factors[index].to(torch.float64))
            centred = values - self.means[index].to(torch.float64)[:, None]
            distance = torch.linalg.solve_triangular(lower, centred, upper=False)
            scores[index] = bias[index] - distance.square_().sum(0)

    def rounded(self) -> QuadraticScores:
        return QuadraticScores(self.means.to(torch.float32), self.factors.to(torch.float32), self.bias)
