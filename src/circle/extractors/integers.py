"""Exact arithmetic for portable extractors: integers in floating point, so that no order of additions can matter.

A sum may be taken in float32 while all its partial sums are integers (times one power of two) below 2^24, and in
float64 below 2^53. Between sums stand single IEEE operations, whose results are fixed: multiply, divide, square root,
round, compare. So processors, threads, batches, libraries and GPUs give the same integers.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import lru_cache
from typing import Generic

import numpy as np
import torch
from torch import Tensor, nn

from circle.errors import CircleError
from circle.extractors.base import Extractor, ParameterCount, frozen
from circle.extractors.projection import MAXIMUM_DENSE, Settings
from circle.runtime.local_contrast import PatchScale
from circle.runtime.weights import (
    PROJECTED_BITS,
    ROOT_SHIFT,
    dense_projection,
    projection_shift,
    sparse_projection,
)

FLOAT32_EXACT, FLOAT64_EXACT = 2**24, 2**53


def exact_type(largest: int) -> torch.dtype:
    """The faster type in which sums of integers up to ``largest`` are exact.

    >>> exact_type(2**24), exact_type(2**24 + 1)
    (torch.float32, torch.float64)
    """
    if largest > FLOAT64_EXACT:
        raise CircleError(f"sums up to {largest:.1e} are not exact: expected at most 2^53; fewer or smaller filters")
    return torch.float32 if largest <= FLOAT32_EXACT else torch.float64


def tensor(values: np.ndarray, dtype: torch.dtype = torch.float32) -> Tensor:
    """Integers as a tensor of floating point numbers."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(dtype)


def integer_root(values: Tensor) -> Tensor:
    """floor(sqrt(n)) of integers 0 <= n < 2^44 in float64, which are overwritten.

    Half a unit keeps the root away from whole numbers by far more than any square root is wrong.
    """
    return values.add_(0.5).sqrt_().floor_()


def patch_factor(scale: PatchScale, scatter: Tensor) -> Tensor:
    """floor(sqrt(floor(numerator / (V + epsilon)))) / 2^shift in float32; V, in float64, is overwritten."""
    quotient = torch.div(scale.numerator, scatter.add_(scale.epsilon)).floor_()
    return integer_root(quotient).mul_(2.0**-scale.shift).to(torch.float32)


def signed_root(values: Tensor) -> Tensor:
    """sign(v) floor(sqrt(2^12 |v|)) of integers |v| < 2^24: float32 [...], below 2^18."""
    root = integer_root(values.abs().to(torch.float64).mul_(2.0**ROOT_SHIFT)).to(torch.float32)
    return torch.copysign(root, values)


def pool_windows(quantities: Tensor, columns: Tensor, moments: tuple[str, ...]) -> Tensor:
    """Sums along rows, by windows [g, W], of quantities [S, m, B, g, W, J] added up along columns: [S m, B, g g, J].

    Moments are of bytes and a sign. Sums of squares are shortened by 8 bits before, rounded half up and overwritten;
    then both sums stay below 2^24.
    """
    if "square" in moments:
        quantities[:, moments.index("square")].mul_(2.0**-8).add_(0.5).floor_()
    signs, _, count, grid, _, channels = quantities.shape
    # One product, because small ones of each map would take three times as long.
    flat = quantities.flatten(0, 3).transpose(0, 1).reshape(columns.shape[1], -1)
    pooled = torch.mm(columns, flat).view(len(columns), signs * len(moments), count, grid, channels)
    return pooled.permute(1, 2, 3, 0, 4).reshape(signs * len(moments), count, grid * len(columns), channels)


class IntegerProjection(nn.Module):
    """y = floor(R v / 2^s), R [outputs, inputs] random and fixed, v integers below 2^24; with ``relu`` max(y, 0).

    ``fan_in = 0``: R is dense, uniform from -127 to 127. ``fan_in > 0``: R is sparse; each output adds ``fan_in``
    inputs with random signs, dealt out from shuffled decks, so that all are used equally often. The shift s brings
    sums of 19-bit values down to 23 bits, and what is larger is cut off.
    """

    index: Tensor  # [outputs, fan_in]
    signs: Tensor  # [outputs, fan_in]
    dense: Tensor  # [inputs, outputs]

    def __init__(self, inputs: int, outputs: int, seed: int, *, fan_in: int = 0, relu: bool = False) -> None:
        super().__init__()
        self.inputs, self.outputs, self.relu = inputs, outputs, relu
        self.fan_in = min(fan_in, inputs)
        if self.fan_in:
            index, signs = sparse_projection(seed, inputs, outputs, self.fan_in)
            frozen(self, "index", torch.from_numpy(index))
            frozen(self, "signs", tensor(signs, torch.float64))
            largest = self.fan_in
        else:
            if inputs * outputs > MAXIMUM_DENSE:
                raise CircleError(
                    f"a dense projection of {inputs:,} to {outputs:,} values is too large: "
                    "set projection_fan_in (1024, say) for a sparse one"
                )
            weights = dense_projection(seed, inputs, outputs)
            frozen(self, "dense", tensor(weights.T, torch.float64))
            largest = int(np.abs(weights).sum(1).max())
        self.shift = projection_shift(largest)

    @property
    def generated(self) -> int:
        """Numbers drawn from the seed (an index and a sign count as one)."""
        return self.outputs * (self.fan_in or self.inputs)

    def forward(self, values: Tensor) -> Tensor:
        """[B, inputs] -> float32 [B, outputs]."""
        values = values.to(torch.float64)
        if self.fan_in:
            # Row i of the transposed input holds value i of all images, so a gather reads whole cache lines.
            result = nn.functional.embedding_bag(
                self.index, values.T.contiguous(), mode="sum", per_sample_weights=self.signs
            ).T.contiguous()
        else:
            result = values @ self.dense
        largest = 2.0**PROJECTED_BITS - 1.0
        result = result.mul_(2.0**-self.shift).floor_().clamp_(0.0 if self.relu else -largest, largest)
        return result.to(torch.float32)


class IntegerExtractor(Extractor, Generic[Settings]):
    """Base of the portable extractors: the same integers on every machine.

    Subclasses make a vector of integers from pixels, this class adds the vector of the mirror image if the config says
    so, and projects. A linear head that learned every image and its mirror image could not use anything but the sum of
    the two vectors: for filters that come in mirrored pairs, their difference has the same mean, zero, in every class.
    So this teaches mirror images at no cost in samples, and halves the features needed.
    """

    portable = True
    config: Settings
    projection: IntegerProjection | None
    fixed: int

    @abstractmethod
    def vector(self, images: Tensor) -> Tensor:
        """Pixels float32 [B, C, H, W], integers from 0 to 255 -> float32 [B, length], integers below 2^23."""

    def mirrored_vector(self, images: Tensor) -> Tensor:
        """The sum of :meth:`vector` of images and of their mirror images [B, length]."""
        # Both at once: half as many calls of operations that are short on small tiles.
        straight, mirrored = self.vector(torch.cat([images, images.flip(3)])).chunk(2)
        return straight + mirrored

    def finish(self, length: int, fixed: int) -> None:
        """The end of a constructor: ``length`` values per vector, made with ``fixed`` numbers drawn so far."""
        config = self.config
        self.projection = (
            IntegerProjection(
                length,
                config.projection_size,
                self.seed,
                fan_in=config.projection_fan_in,
                relu=config.projection == "relu",
            )
            if config.projection != "none"
            else None
        )
        self.size = self.projection.outputs if self.projection else length
        self.bits = config.bits
        self.fixed = fixed

    def forward(self, images: Tensor) -> Tensor:
        values = images.to(torch.float32)
        vector = self.mirrored_vector(values) if self.config.mirror else self.vector(values)
        return self.projection(vector) if self.projection else vector

    def parameter_count(self) -> ParameterCount:
        return ParameterCount(fixed=self.fixed, generated=self.projection.generated if self.projection else 0)


@lru_cache(maxsize=1)
def multiplies_bytes() -> bool:
    """Whether this processor multiplies matrices of int8 into int32 by instructions of its own, and exactly.

    Without them the library would take a slow road, or one that adds pairs of products in 16 bits, which the largest
    values overflow; so those are tried.
    """
    if not getattr(torch.cpu, "_is_vnni_supported", lambda: False)():
        return False
    for sign in (1, -1):
        left, right = torch.full((64, 48), 127, dtype=torch.int8), torch.full((48, 64), sign * 127, dtype=torch.int8)
        if not bool((torch.ops.aten._int_mm(left, right) == sign * 127 * 127 * 48).all()):
            return False
    return True
