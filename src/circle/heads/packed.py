"""Linear heads in fewer bits, and of lower rank: what `circle compress` makes of the weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from circle.heads.scores import Scores

Weights = Literal["float32", "float16", "int8"]
CODES: dict[str, torch.dtype] = {"float32": torch.float32, "float16": torch.float16, "int8": torch.int8}
LARGEST = 127  # code of int8


@dataclass(frozen=True, eq=False)
class PackedMatrix:
    """A matrix as codes of few bits with a factor for each row: A_ij = r_i codes_ij."""

    codes: Tensor  # [R, D], int8, float16 or float32
    rows: Tensor  # r, float32 [R]

    def unpacked(self) -> Tensor:
        """The matrix in float64."""
        return self.codes.to(torch.float64) * self.rows[:, None].to(torch.float64)


def row_factors(matrix: Tensor, weights: Weights) -> Tensor:
    """r, float32 [R], with which the largest entry of each row just fits: 127 in int8, 1 in float16.

    float16 is scaled too, because weights of features on a fine grid are so small that it would lose bits of them.
    """
    if weights == "float32":
        return torch.ones(len(matrix), device=matrix.device)
    largest = matrix.abs().amax(1).to(torch.float32)
    largest = torch.where(largest > 0.0, largest, torch.ones_like(largest))
    return largest / LARGEST if weights == "int8" else largest


def encoded(scaled: Tensor, weights: Weights) -> Tensor:
    """The nearest codes of entries that were divided by their factors."""
    if weights == "int8":
        return scaled.round().clamp(-LARGEST, LARGEST).to(torch.int8)
    return scaled.to(CODES[weights])


def pack(matrix: Tensor, weights: Weights) -> PackedMatrix:
    """Every entry to the nearest code: with int8 no entry moves by more than half of its row's factor."""
    rows = row_factors(matrix, weights)
    return PackedMatrix(encoded(matrix / rows[:, None], weights), rows)


def _word(codes: Tensor) -> str:
    return str(codes.dtype).removeprefix("torch.")


@dataclass(frozen=True, eq=False)
class PackedScores(Scores):
    """scores = z A^T + b with a packed A; it is unpacked when first used, so that only the file is small."""

    kind: ClassVar[str] = "packed"
    names: ClassVar[tuple[str, ...]] = ("codes", "rows", "bias")
    file_format: ClassVar[int] = 2

    codes: Tensor  # [C, D]
    rows: Tensor  # [C]
    bias: Tensor  # [C]

    @cached_property
    def weight(self) -> Tensor:
        """A, float64 [C, D]."""
        return PackedMatrix(self.codes, self.rows).unpacked()

    def __call__(self, features: Tensor) -> Tensor:
        values = features.to(self.weight.device, torch.float64)
        return torch.addmm(self.bias.to(torch.float64), values, self.weight.T)

    def rounded(self) -> PackedScores:
        return self

    def describe(self) -> str:
        return _word(self.codes)


@dataclass(frozen=True, eq=False)
class LowRankScores(Scores):
    """scores = (z V^T) U^T + b with r numbers between V [r, D], which is packed, and U [C, r]."""

    kind: ClassVar[str] = "low_rank"
    names: ClassVar[tuple[str, ...]] = ("codes", "rows", "outer", "bias")
    file_format: ClassVar[int] = 2

    codes: Tensor  # [r, D]
    rows: Tensor  # [r]
    outer: Tensor  # U, float16 or float32 [C, r]
    bias: Tensor  # [C]

    @cached_property
    def inner(self) -> Tensor:
        """V, float64 [r, D]."""
        return PackedMatrix(self.codes, self.rows).unpacked()

    def __call__(self, features: Tensor) -> Tensor:
        values = features.to(self.inner.device, torch.float64) @ self.inner.T
        return torch.addmm(self.bias.to(torch.float64), values, self.outer.to(torch.float64).T)

    def rounded(self) -> LowRankScores:
        return self

    def describe(self) -> str:
        return f"{_word(self.codes)}, rank {len(self.codes)}"
