"""Specification of the extractor ``local_contrast``: the same integers as the fast one's, by plain formulas."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from circle.runtime.arithmetic import Settings, moments_over_windows, root
from circle.runtime.weights import colour_functions, contrast_filters

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
        self.values = values
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
        """For patches of n values centred as a whole: c = n x - sum, V = n sum of x^2 - (sum of x)^2."""
        return cls(values, PATCH_LEVELS**2, Fraction(epsilon) * values**2 * 4**level_bits)

    def applied(self, centred: np.ndarray, scatter: np.ndarray) -> np.ndarray:
        """Centred patches int64 in levels, where ``scatter`` is V of each."""
        factor = np.floor(np.sqrt(self.numerator // (scatter + self.epsilon) + 0.5))
        # One product in float32, as the fast extractors make it.
        scaled = centred.astype(np.float32) * (factor * 2.0**-self.shift).astype(np.float32)
        return np.clip(np.rint(scaled), -127, 127).astype(np.int64)

    def largest_response(self, filters: np.ndarray, directions: np.ndarray, constants: np.ndarray) -> int:
        """A bound on the levels of responses (by the norms of patch and filter) and of colours."""
        norms = np.sqrt(np.square(filters).sum((1, 2, 3))) * self.norm
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


def vector(images: np.ndarray, settings: Settings, seed: int) -> np.ndarray:
    """Images uint8 [N, C, H, W] -> integers int64 [N, length], before mirror images, projection and grid."""
    pixels = images.astype(np.int64)
    channels = pixels.shape[1]
    maps = []
    for bank, (count, kernel, reduction) in enumerate(
        zip(settings.filters, settings.kernels, settings.reductions, strict=True)
    ):
        grey = round(count * settings.grey_share)
        filters = contrast_filters(seed, f"bank {bank}", count, channels, kernel, grey)
        patches = normalised_patches(reduced(pixels, reduction), kernel, settings.contrast_epsilon)
        maps.append(responses(np.einsum("nckhw,jck->nhwj", patches, filters.reshape(count, channels, -1))))
    directions, constants = colour_functions(seed, settings.colours, channels, settings.colour_offset)
    if settings.colours:
        finest = reduced(pixels, min(settings.reductions, default=1))
        maps.append(responses(np.einsum("nchw,jc->nhwj", 2 * finest - 255, directions) + constants))
    vectors = []
    for levels in maps:
        signs = (np.maximum(levels, 0), np.maximum(-levels, 0))
        pooled = np.stack([moments_over_windows(sign, settings) for sign in signs], 1)  # [N, 2, m, g g, J]
        vectors.append(root(pooled, settings.power).reshape(len(images), -1))
    return np.concatenate(vectors, 1)


def responses(sums: np.ndarray) -> np.ndarray:
    """Levels of responses: 32 for one deviation, 255 at most."""
    return np.clip((sums + 2 ** (RESPONSE_SHIFT - 1)) >> RESPONSE_SHIFT, -255, 255)


def reduced(pixels: np.ndarray, factor: int) -> np.ndarray:
    """Means over factor x factor pixels, fewer at the far edges, rounded half to even."""
    height, width = pixels.shape[2:]
    padded = np.pad(pixels, ((0, 0), (0, 0), (0, -height % factor), (0, -width % factor)))
    rows, columns = padded.shape[2] // factor, padded.shape[3] // factor
    sums = padded.reshape(*pixels.shape[:2], rows, factor, columns, factor).sum((3, 5))
    tall, wide = np.full(rows, factor), np.full(columns, factor)
    tall[-1], wide[-1] = (height - 1) % factor + 1, (width - 1) % factor + 1
    return np.rint(sums / (tall[:, None] * wide)).astype(np.int64)


def normalised_patches(pixels: np.ndarray, kernel: int, epsilon: float) -> np.ndarray:
    """Patches int64 [N, C, k k, H, W] around each pixel, edge pixels repeated, 64/3 levels to a deviation."""
    height, width = pixels.shape[2:]
    before, after = (kernel - 1) // 2, kernel // 2
    padded = np.pad(pixels, ((0, 0), (0, 0), (before, after), (before, after)), mode="edge")
    places = [(i, j) for i in range(kernel) for j in range(kernel)]
    patches = np.stack([padded[:, :, i : i + height, j : j + width] for i, j in places], 2)
    sums = patches.sum(2)
    scatter = kernel**2 * np.square(patches).sum((1, 2)) - np.square(sums).sum(1)
    centred = kernel**2 * patches - sums[:, :, None]
    return PatchScale.by_channels(pixels.shape[1], kernel, epsilon).applied(centred, scatter[:, None, None])
