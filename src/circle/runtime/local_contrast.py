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

    def __init__(self, channels: int, kernel: int, epsilon: float) -> None:
        levels = PATCH_LEVELS**2 * channels
        self.epsilon = math.floor(Fraction(epsilon) * channels * kernel**4 * Fraction(255, 4) ** 2 + Fraction(1, 2))
        self.epsilon = max(1, self.epsilon)
        self.shift = (51 - math.ceil(levels).bit_length()) // 2
        self.numerator = math.floor(levels * 4**self.shift)
        # A patch's squares add up to levels x k^2 before each of its values is rounded by at most a half.
        self.norm = (math.isqrt(math.ceil(levels * kernel**2 * 4**10)) + 1) / 2**10 + math.sqrt(channels) * kernel / 2
        self.largest_square = 255**2 * kernel**2 * channels
        #: Whether a value may leave eight bits: it is at most as large as the whole patch's norm.
        self.may_exceed = PATCH_LEVELS**2 * channels * kernel**2 >= Fraction(253, 2) ** 2

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
