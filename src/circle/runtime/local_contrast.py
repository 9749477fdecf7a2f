"""Specification of the extractor ``local_contrast``: the same integers as the fast one's, by plain formulas."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

RESPONSE_SHIFT = 6  # bits that a response is shortened by: 32 of its levels are a deviation
PATCH_LEVELS = Fraction(64, 3)  # of a normalised patch, for one deviation: 128 levels for six deviations


class PatchScale:
    """The factor that brings a centred patch to 64/3 levels a deviation: u = round(c m / 2^shift), c = k^2 x - sum.

    With the patch's scatter V = sum over channels of (k^2 sum of x^2 - (sum of x)^2), which is k^4 times the sum of the
    channels' variances,

        m = floor(sqrt(floor(numerator / (V + epsilon))))

    where ``numerator`` is 64^2/3^2 channels 4^shift and ``epsilon`` channels k^4 63.75^2 times that of the config.
    """

    def __init__(self, values: int, levels: Fraction, epsilon: Fraction) -> None:
        """Of patches with so many values, ``levels`` = numerator / 4^shift, ``epsilon`` in the units of the scatter."""
        self.epsilon = max(1, math.floor(epsilon + Fraction(1, 2)))
        self.shift = (51 - math.ceil(levels).bit_length()) // 2
        self.numerator = math.floor(levels * 4**self.shift)
        # Squares of a patch add up to 64^2/3^2 times their number, before each is rounded by at most a half.
        self.norm = math.sqrt(values) * (float(PATCH_LEVELS) + 0.5)
        #: Whether a value may leave eight bits: none is larger than the whole patch's norm.
        self.may_exceed = PATCH_LEVELS**2 * values >= Fraction(253, 2) ** 2

    @classmethod
    def by_channels(cls, channels: int, kernel: int, epsilon: float) -> PatchScale:
        """For patches that are centred in each channel."""
        variance = Fraction(255, 4) ** 2  # of a pixel
        return cls(
            channels * kernel**2, PATCH_LEVELS**2 * channels, Fraction(epsilon) * channels * kernel**4 * variance
        )

    @classmethod
    def of_whole(cls, values: int, epsilon: float, level_bits: int) -> PatchScale:
        """For patches of so many values that are centred as a whole, c = n x - sum and V = n sum of x^2 - (sum of x)^2."""
        return cls(values, PATCH_LEVELS**2, Fraction(epsilon) * values**2 * 4**level_bits)

    def largest_response(self, filters: np.ndarray, directions: np.ndarray, constants: np.ndarray) -> int:
        """A bound on the levels of responses (by the norms of patch and filter) and of colours."""
        norms = np.sqrt(np.square(filters.reshape(len(filters), -1)).sum(1)) * self.norm
        colours = np.abs(directions).sum(1) * 255 + np.abs(constants)
        return math.ceil(max(norms.max(initial=0), colours.max(initial=0)) / 2**RESPONSE_SHIFT + 1)


def product_weights(filters: np.ndarray, directions: np.ndarray, constants: np.ndarray) -> np.ndarray:
    """Weights int64 [K, J + Q] of the rows [patch, pixel - 128, 127, 1]; no rows of what there is none of.

    A response is floor((f.u + 32) / 64), a colour floor((sum of a (2 x - 255) + b + 32) / 64); all weights fit 8 bits.
    """
    count, colours = len(filters), len(directions)
    size = filters[0].size if count else 0
    weights = np.zeros((size + (directions.shape[1] if colours else 0) + 2, count + colours), np.int64)
    half = 2 ** (RESPONSE_SHIFT - 1)
    weights[:size, :count] = filters.reshape(count, -1).T if count else 0
    weights[-1, :count] = half
    if colours:
        weights[size:-2, count:] = 2 * directions.T
        weights[-2, count:], weights[-1, count:] = np.divmod(directions.sum(1) + constants + half, 127)
    return weights
