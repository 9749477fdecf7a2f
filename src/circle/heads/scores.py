"""Materialised heads: what turns features into scores, and what a predicting model stores of it.

:class:`LinearScores`, :class:`CosineScores`, :class:`QuadraticScores` and :class:`SubspaceScores` are what heads make
of statistics.
:class:`PackedScores` and :class:`LowRankScores` are linear ones with weights of fewer bits or of lower rank, and
:class:`PackedSubspaceScores` the last with packed weights, all of which ``circle compress`` makes of those.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from circle import machine
from circle.errors import CircleError
from circle.runtime.subspace import COMPONENT_STEPS, CURVATURE_STEPS, MAX_WHITENED, WHITENED_STEPS
from circle.statistics.parts import subspace_coordinates, unit_vectors

CLASSES_PER_JOB = 8  # that a core scores in one go
MAX_INT8_CODE = 127
MAX_CODE_SUM = 2**15  # of the codes of a direction: times 511 steps of a coordinate it stays below 2^24
WEIGHT_BITS, BIAS_BITS = 24, 24  # of the largest weight of a class and of its bias, and a sign
FEATURE_BITS, EXACT_BITS = 15, 53  # of a feature, and a sign; of a sum in float64
MAX_FACTOR = 4.0  # by which the correction of a subspace grows where an image is like all classes at once
FINER_BIAS = 4  # bits that a bias may go below the unit of the weights

Weights = Literal["float32", "float16", "int8"]  # how a compressed model keeps the weights of a linear head
CODE_TYPES: dict[str, torch.dtype] = {"float32": torch.float32, "float16": torch.float16, "int8": torch.int8}

SCORES: dict[str, type[Scores]] = {}  # by the kind that a file names; every subclass enters itself


@dataclass(frozen=True, eq=False)
class Scores(ABC):
    """A function from features [B, D] of any type to scores float64 [B, C], larger is better.

    A subclass is a frozen dataclass whose fields are its tensors, and is found by its ``kind`` when a file is read.

    Attributes
    ----------
    kind : str
        What a model file calls this kind of scores.
    names : tuple of str
        The tensors that a file holds, which are the fields.
    """

    kind: ClassVar[str]
    names: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls) -> None:
        SCORES[cls.kind] = cls

    @abstractmethod
    def __call__(self, features: Tensor) -> Tensor:
        """Features [B, D] -> scores float64 [B, C]."""

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
        """The scores that a file holds, from tensors called ``names``."""
        return cls(**tensors)


@dataclass(frozen=True, eq=False)
class LinearScores(Scores):
    """scores = z W^T + b.

    Once rounded, the weights of a class are whole numbers of 24 bits, all that float32 holds, times one power of two,
    and its bias likewise. Where products with features of 16 bits could add up to more than float64 holds, weights get
    fewer bits. So scores are exact sums, the same to the bit in every library and on every machine; and machines
    round what their solvers of linear equations found to the same weights but for few. Where features are nearly
    collinear or hardly vary, weights are large and cancel, and need all of the bits: with 16, a model of handwritten
    digits fell from 97.8 % to 24 %.

    Examples
    --------
    >>> scores = LinearScores(weight=torch.tensor([[1.0, 0.0], [0.0, 2.0]]), bias=torch.tensor([0.0, -1.0]))
    >>> scores(torch.tensor([[3, 4]], dtype=torch.int8))
    tensor([[3., 7.]], dtype=torch.float64)
    """

    kind: ClassVar[str] = "linear"
    names: ClassVar[tuple[str, ...]] = ("weight", "bias")

    weight: Tensor  # [C, D]
    bias: Tensor  # [C]

    def __call__(self, features: Tensor) -> Tensor:
        weight = self.weight.to(torch.float64)
        return torch.addmm(self.bias.to(torch.float64), features.to(weight.device, torch.float64), weight.T)

    def rounded(self) -> LinearScores:
        weight, bias = self.weight.to(torch.float64), self.bias.to(torch.float64)
        # Python's powers of two are exact.
        exponents = unit_exponents(weight)
        unit = weight.new_tensor([math.ldexp(1.0, exponent) for exponent in exponents])
        # The bias's unit is at least 2^-4 of the weights', so that all bits of a score fit into float64.
        units = [
            max(math.frexp(value)[1] - BIAS_BITS, low - FINER_BIAS) for value, low in zip(bias, exponents, strict=True)
        ]
        bias_unit = weight.new_tensor([math.ldexp(1.0, exponent) for exponent in units])
        return LinearScores(
            (weight / unit[:, None]).round_().mul_(unit[:, None]).to(torch.float32),
            (bias / bias_unit).round_().mul_(bias_unit),
        )


def unit_exponents(weight: Tensor) -> list[int]:
    """The power of two that the weights of each class, float64 [C, D], are whole multiples of once they are rounded.

    So many bits that the largest weight fits into float32, and that no sum of products with features exceeds 2^53 of
    the bias's unit: |sum_j z_j w_j| <= 2^15 sum_j |w_j|.

    >>> unit_exponents(torch.tensor([[1.0, 0.5], [4.0, 0.0]], dtype=torch.float64))
    [-23, -21]
    """
    magnitudes = weight.abs()
    return [
        max(math.frexp(largest)[1] - WEIGHT_BITS, math.frexp(total)[1] + FEATURE_BITS + FINER_BIAS - EXACT_BITS)
        for largest, total in zip(magnitudes.amax(1).tolist(), magnitudes.sum(1).tolist(), strict=True)
    ]


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
        starts = range(0, len(self.means), CLASSES_PER_JOB)
        machine.run_jobs(
            [partial(self._score, values, scores, slice(start, start + CLASSES_PER_JOB)) for start in starts]
        )
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


@dataclass(frozen=True, eq=False)
class SubspaceCorrection:
    """What a subspace adds to linear scores, with the symbols of :class:`SubspaceScores`:

        e / max(|v|^2, e_0) (k_c |v|^2 + p_c.v + q_c + sum_r y_cr^2)

    The bracket is a sum of whole numbers. One division and one product follow, and the result is rounded to steps of
    2^-20 before it is added to anything.
    """

    whitening: Tensor
    origin: Tensor
    curvature: Tensor
    pull: Tensor
    level: Tensor
    evidence: Tensor
    codes: Tensor
    units: Tensor
    offsets: Tensor
    shift: int

    @cached_property
    def _stacked(self) -> Tensor:
        """The codes as one matrix, float32 [d, C R]."""
        return self.codes.to(torch.float32).flatten(0, 1).T.contiguous()

    @cached_property
    def _wide(self) -> tuple[Tensor, Tensor]:
        """The whitening and the pull in float64, transposed."""
        return self.whitening.to(torch.float64).T.contiguous(), self.pull.to(torch.float64).T.contiguous()

    def __call__(self, features: Tensor) -> Tensor:
        """Features [B, D] -> float64 [B, C]."""
        features = features.to(self.codes.device)
        whitening, pull = self._wide
        with machine.full_precision():
            values = subspace_coordinates(features, len(whitening), self.shift)
            steps = torch.addmm(-self.origin.to(torch.float64), values.to(torch.float64), whitening)
            steps = steps.round_().clamp_(-MAX_WHITENED, MAX_WHITENED)
            sums = (steps.to(torch.float32) @ self._stacked).view(len(steps), *self.units.shape)
        components = (sums * self.units).round_().sub_(self.offsets)
        squares = components.to(torch.float64).square_().sum(2) / COMPONENT_STEPS**2
        length = steps.square().sum(1, keepdim=True) / WHITENED_STEPS**2
        pulled = (steps @ pull) / (WHITENED_STEPS * CURVATURE_STEPS)
        bracket = length * self.curvature.to(torch.float64) + (pulled + self.level) + squares
        evidence, least = self.evidence.to(torch.float64)
        factor = evidence / length.clamp_min(least)
        return (bracket * factor).mul_(CURVATURE_STEPS).round_().div_(CURVATURE_STEPS)


#: What scores of a subspace hold besides linear scores and the whitening.
CORRECTION = ("origin", "curvature", "pull", "level", "evidence", "codes", "units", "offsets", "shift")


@dataclass(frozen=True, eq=False)
class SubspaceScores(Scores):
    """Linear scores of all features and quadratic ones of few coordinates u = round(P z / 2^s):

        score_c = z.w_c + b_c + e / max(|v|^2, e_0) (k_c |v|^2 + p_c.v + q_c + sum_r y_cr^2)

        v = A u - o        y_cr = g_cr.v - h_cr

    All of it is sums of whole numbers: v has steps of 2^-5 and ten bits, y steps of 2^-8, k and p of 2^-20; what is
    added to the exact linear score was rounded to steps of 2^-20, so that joining the two is a single rounding. Scores
    are therefore the same to the bit in every library and on every machine.

    Examples
    --------
    >>> scores = SubspaceScores.of(
    ...     weight=torch.zeros(1, 3), bias=torch.zeros(1), whitening=torch.eye(3) / 100, origin=torch.zeros(3),
    ...     curvature=torch.tensor([-0.5]), directions=torch.zeros(1, 2, 3), means=torch.zeros(1, 3), shift=1,
    ...     evidence=3.0,
    ... )
    >>> scores(torch.tensor([[3, 4, 5]], dtype=torch.int8)).shape
    torch.Size([1, 1])
    """

    kind: ClassVar[str] = "subspace"
    names: ClassVar[tuple[str, ...]] = ("weight", "bias", "whitening", *CORRECTION)

    weight: Tensor  # [C, D]
    bias: Tensor  # [C]
    whitening: Tensor  # A, [d, d], in steps of v
    origin: Tensor  # o, [d], in steps of v
    curvature: Tensor  # k, [C]
    pull: Tensor  # p, int32 [C, d], in steps of 2^-20
    level: Tensor  # q, float64 [C]
    evidence: Tensor  # e and e_0, float64 [2]
    codes: Tensor  # g, int8 [C, R, d]
    units: Tensor  # [C, R], powers of two: what a step of v times a code of one is in steps of y
    offsets: Tensor  # h, [C, R], in steps of y
    shift: Tensor  # s, [1]

    @classmethod
    def of(
        cls,
        weight: Tensor,
        bias: Tensor,
        whitening: Tensor,
        origin: Tensor,
        curvature: Tensor,
        directions: Tensor,
        means: Tensor,
        shift: int,
        evidence: float,
        temperature: float = 1.0,
    ) -> SubspaceScores:
        """From w, b, A, o and, in whitened coordinates, k [C], g [C, R, d] and the means v_c [C, d] of the classes:

            k_c |v - v_c|^2 + sum_r (g_cr.(v - v_c))^2        p_c = -2 k_c v_c        q_c = k_c |v_c|^2

        is multiplied by ``evidence`` / |v|^2, but by at most :data:`MAX_FACTOR`, and divided by ``temperature``.
        """
        linear = LinearScores(weight, bias).rounded()
        steps = whole_rows(whitening * WHITENED_STEPS, WEIGHT_BITS)
        # As many bits as fit: codes below 2^7, and sums of codes times coordinates below 2^24.
        largest = torch.maximum(directions.abs().amax(2) / MAX_INT8_CODE, directions.abs().sum(2) / MAX_CODE_SUM)
        exponents = torch.frexp(largest).exponent
        unit = torch.ldexp(torch.ones_like(largest), exponents)
        codes = (directions / unit[:, :, None]).round_()
        centres = (directions * means[:, None]).sum(2)
        curvature = (curvature * CURVATURE_STEPS).round_() / CURVATURE_STEPS
        bounds = torch.tensor([evidence / temperature, max(evidence / MAX_FACTOR, 1.0 / WHITENED_STEPS)])
        return cls(
            linear.weight,
            linear.bias,
            steps,
            (origin * WHITENED_STEPS).round_().to(torch.float32),
            curvature.to(torch.float32),
            (-2.0 * curvature[:, None] * means * CURVATURE_STEPS).round_().to(torch.int32),
            (curvature * means.square().sum(1) * CURVATURE_STEPS).round_() / CURVATURE_STEPS,
            bounds.to(weight.device, torch.float32).to(torch.float64),
            codes.to(torch.int8),
            (unit * (COMPONENT_STEPS / WHITENED_STEPS)).to(torch.float32),
            (centres * COMPONENT_STEPS).round_().to(torch.float32),
            torch.tensor([shift], dtype=torch.int32),
        )

    @property
    def rank(self) -> int:
        """R, the directions of each class."""
        return self.codes.shape[1]

    @cached_property
    def correction(self) -> SubspaceCorrection:
        """What is added to the linear scores."""
        return correction_of(self, self.whitening)

    @cached_property
    def _linear(self) -> LinearScores:
        return LinearScores(self.weight.to(torch.float64), self.bias)

    def __call__(self, features: Tensor) -> Tensor:
        return self._linear(features) + self.correction(features)

    def rounded(self) -> SubspaceScores:
        return self


def correction_of(scores: SubspaceScores | PackedSubspaceScores, whitening: Tensor) -> SubspaceCorrection:
    """The correction with the tensors of these scores, and a whitening [d, d]."""
    kept = {name: getattr(scores, name) for name in CORRECTION}
    return SubspaceCorrection(whitening, **{**kept, "shift": int(scores.shift)})


def whole_rows(matrix: Tensor, bits: int) -> Tensor:
    """Each row of a matrix as whole numbers of ``bits`` bits and a sign times a power of two, float32.

    >>> whole_rows(torch.tensor([[1.0, 0.3]], dtype=torch.float64), 2)
    tensor([[1.0000, 0.5000]])
    """
    exponents = torch.frexp(matrix.abs().amax(1, keepdim=True)).exponent - bits
    unit = torch.ldexp(torch.ones_like(exponents, dtype=torch.float64), exponents)
    return (matrix / unit).round_().mul_(unit).to(torch.float32)


# -- fewer bits and lower rank -----------------------------------------------------------------------------------


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
    return largest / MAX_INT8_CODE if weights == "int8" else largest


def encoded(scaled: Tensor, weights: Weights) -> Tensor:
    """The nearest codes of entries that were divided by their factors."""
    if weights == "int8":
        return scaled.round().clamp(-MAX_INT8_CODE, MAX_INT8_CODE).to(torch.int8)
    return scaled.to(CODE_TYPES[weights])


def pack(matrix: Tensor, weights: Weights) -> PackedMatrix:
    """Every entry to the nearest code: with int8 no entry moves by more than half of its row's factor."""
    rows = row_factors(matrix, weights)
    return PackedMatrix(encoded(matrix / rows[:, None], weights), rows)


def _type_name(codes: Tensor) -> str:
    return str(codes.dtype).removeprefix("torch.")


@dataclass(frozen=True, eq=False)
class PackedScores(Scores):
    """scores = z A^T + b with a packed A; it is unpacked when first used, so that only the file is small."""

    kind: ClassVar[str] = "packed"
    names: ClassVar[tuple[str, ...]] = ("codes", "rows", "bias")

    codes: Tensor  # [C, D]
    rows: Tensor  # [C]
    bias: Tensor  # [C]

    @cached_property
    def weight(self) -> Tensor:
        """The codes, float64 [C, D]."""
        return self.codes.to(torch.float64)

    def __call__(self, features: Tensor) -> Tensor:
        # Sums of whole numbers first, which are exact, and the factors of the rows after.
        sums = features.to(self.weight.device, torch.float64) @ self.weight.T
        return (sums * self.rows.to(torch.float64)).add_(self.bias.to(torch.float64))

    def rounded(self) -> PackedScores:
        return self

    def describe(self) -> str:
        return _type_name(self.codes)


@dataclass(frozen=True, eq=False)
class LowRankScores(Scores):
    """scores = (z V^T) U^T + b with r numbers between V [r, D], which is packed, and U [C, r]."""

    kind: ClassVar[str] = "low_rank"
    names: ClassVar[tuple[str, ...]] = ("codes", "rows", "outer", "bias")

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
        return f"{_type_name(self.codes)}, rank {len(self.codes)}"


@dataclass(frozen=True, eq=False)
class PackedSubspaceScores(Scores):
    """:class:`SubspaceScores` with a packed weight, and of the whitening the lower triangle.

        score_c = r_c (z.a_c) + b_c + [ k_c |v|^2 + sum_r y_cr^2 ]        w_c = r_c a_c

    The whitening is the inverse of a Cholesky factor, and the other half of it zero. It keeps its bits, because its
    entries are large and cancel where coordinates are nearly collinear: the bracket is that of the whole scores.
    """

    kind: ClassVar[str] = "packed_subspace"
    names: ClassVar[tuple[str, ...]] = ("weight", "rows", "bias", "triangle", *CORRECTION)

    weight: Tensor  # a, int8, float16 or float32 [C, D]
    rows: Tensor  # r, float32 [C]
    bias: Tensor  # [C]
    triangle: Tensor  # of the whitening, row by row, float32 [d (d + 1) / 2]
    origin: Tensor  # the others as SubspaceScores has them
    curvature: Tensor
    pull: Tensor
    level: Tensor
    evidence: Tensor
    codes: Tensor
    units: Tensor
    offsets: Tensor
    shift: Tensor

    @classmethod
    def of(cls, scores: SubspaceScores, matrix: PackedMatrix, bias: Tensor) -> PackedSubspaceScores:
        """These scores with another weight and the bias that belongs to it."""
        whitening = scores.whitening
        if bool(whitening.triu(1).any()):
            raise CircleError("the whitening of a subspace: numbers above its diagonal; expected a lower triangle")
        rows, columns = torch.tril_indices(*whitening.shape, device=whitening.device)
        kept = {name: getattr(scores, name) for name in CORRECTION}
        return cls(matrix.codes, matrix.rows, bias, whitening[rows, columns], **kept)

    @property
    def rank(self) -> int:
        """R, the directions of each class."""
        return self.codes.shape[1]

    @property
    def numbers(self) -> int:
        return super().numbers + self.triangle.numel()

    @cached_property
    def linear(self) -> PackedScores:
        """The linear scores of all features."""
        return PackedScores(self.weight, self.rows, self.bias)

    @cached_property
    def correction(self) -> SubspaceCorrection:
        """What is added to the linear scores."""
        size = len(self.origin)
        whitening = self.triangle.new_zeros(size, size)
        rows, columns = torch.tril_indices(size, size, device=whitening.device)
        whitening[rows, columns] = self.triangle
        return correction_of(self, whitening)

    def __call__(self, features: Tensor) -> Tensor:
        return self.linear(features) + self.correction(features)

    def rounded(self) -> PackedSubspaceScores:
        return self

    def describe(self) -> str:
        return _type_name(self.weight)
