"""Specification of the extractor ``birc2d``: stems, reservoirs and windows in integers, by plain formulas."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np

from circle.runtime.arithmetic import Settings, moments_over_windows, root
from circle.runtime.local_contrast import PatchScale, responses
from circle.runtime.weights import centred_filters, permutation, uniform_bound, uniform_integers, without_sum

PIXEL_BITS = 7  # 2 x - 255 has 127.5 levels to a deviation, taken for 2^7
STEM_BITS = 6  # levels of the plain stem's maps for one deviation: 2^6
STEM_LIMIT = 1023
STATE_BITS = 8  # levels of a reservoir's states, likewise
STATE_LIMIT = 4095
MAP_BITS = 5  # levels of the contrast stem's maps, likewise
MAP_LIMIT = 255
STATE_SHIFT = 1  # bits that states are shortened by before they are pooled
WIDE_LIMIT = 1023  # of states that are pooled
SLOPE_BITS = 10  # the slope of the leaky ReLU is a multiple of 2^-10
LEAK_BITS = 8  # the leak is a multiple of 2^-8
WEIGHT_BITS = 4  # of the largest input weight or plain filter weight, and a sign
RECURRENT_BITS = 7  # recurrent weights are multiples of 2^-7
DIRECTIONS = 4


def fraction(value: float, bits: int) -> int:
    """The nearest multiple of 2^-bits, as a whole number of them.

    >>> fraction(0.8, 8)
    205
    """
    return math.floor(Fraction(value) * 2**bits + Fraction(1, 2))


@dataclass(frozen=True)
class PlainLayer:
    """Filters int64 [J, C, k, k] and biases int64 [J]; y = floor((f * x + b) / 2^shift + 1/2) in levels of 2^-6."""

    filters: np.ndarray
    biases: np.ndarray
    shift: int


def plain_layer(seed: int, layer: int, shape: tuple[int, int, int, int], slope: float, bias: bool) -> PlainLayer:
    """A layer of the plain stem: Kaiming uniform, of this shape [J, C, k, k]."""
    fan_in = math.prod(shape[1:])
    limit, scale = uniform_bound(fan_in, Fraction(slope), WEIGHT_BITS)
    filters = uniform_integers(seed, f"stem filters {layer}", shape, limit)
    input_bits = PIXEL_BITS if layer == 0 else STEM_BITS
    largest = math.isqrt(4 ** (input_bits + scale) // fan_in) if bias else 0
    biases = uniform_integers(seed, f"stem biases {layer}", shape[:1], largest)
    return PlainLayer(filters, biases, scale + input_bits - STEM_BITS)


@dataclass(frozen=True)
class Reservoir:
    """Input weights int64 [4 r, inputs] times 2^-input_shift and recurrent ones int64 [4, r, r] times 2^-7.

    In levels of states, 2^-8: h_t = (1 - a) h_{t-1} + a f(W_in x_t + W h_{t-1}), rounded after each of the sum, the
    leaky ReLU and the leak.
    """

    inputs: np.ndarray
    recurrent: np.ndarray
    input_shift: int


def reservoir(
    seed: int,
    part: str,
    inputs: int,
    width: int,
    *,
    level_bits: int,
    slope: float,
    sparsity: float,
    radius: float,
    zero_mean_inputs: bool,
) -> Reservoir:
    """Four directions of r units whose inputs have 2^level_bits levels to a deviation."""
    limit, scale = uniform_bound(inputs, Fraction(slope), WEIGHT_BITS)
    weights = uniform_integers(seed, f"{part} inputs", (DIRECTIONS * width, inputs), limit)
    if zero_mean_inputs and inputs > 1:
        weights = without_sum(weights)
    recurrent = [
        sparse_recurrent(seed, f"{part} direction {direction}", width, sparsity, radius)
        for direction in range(DIRECTIONS)
    ]
    return Reservoir(weights, np.stack(recurrent), scale + level_bits - STATE_BITS)


def sparse_recurrent(seed: int, part: str, width: int, sparsity: float, radius: float) -> np.ndarray:
    """W int64 [r, r] in units of 2^-7: uniform, a share ``sparsity`` of the entries zero, spectral radius ``radius``.

    The radius of a nilpotent draw (possible when few entries are left) is zero; it is kept at the size of its draw.
    """
    weight = uniform_integers(seed, f"{part} weights", (width, width), 2**12)
    zeros = round(sparsity * width * width)
    weight.reshape(-1)[permutation(seed, f"{part} zeros", width * width)[:zeros]] = 0
    own = spectral_radius(weight)
    factor = Fraction(radius) * 2**RECURRENT_BITS / own if own else Fraction(2**RECURRENT_BITS, 2**12)
    scaled = [math.floor(int(value) * factor + Fraction(1, 2)) for value in weight.reshape(-1)]
    return np.array(scaled, np.int64).reshape(width, width)


def spectral_radius(weight: np.ndarray, squarings: int = 12) -> Fraction:
    """lim |W^n|^(1/n) of an integer matrix [r, r], for n = 2^squarings, by integers; 0 where W is nilpotent.

    After each squaring the matrix is shortened to 20 bits, so that the sums of the next one are below 2^53. The roots
    are those of decimal arithmetic with 30 digits.

    >>> round(float(spectral_radius(np.array([[0, 3000], [-3000, 0]]))))
    3000
    """
    matrix, shifts = weight.astype(np.int64), []
    for _ in range(squarings):
        matrix, shift = _shortened(matrix)
        shifts.append(shift)
        matrix = matrix @ matrix
        if not matrix.any():
            return Fraction(0)
    with localcontext() as context:
        context.prec = 30
        root = Decimal(int(sum(int(value) ** 2 for value in matrix.reshape(-1)))).sqrt()
        for shift in reversed(shifts):
            root = root.sqrt() * 2**shift
    return Fraction(root)


def _shortened(matrix: np.ndarray) -> tuple[np.ndarray, int]:
    """The matrix without its last bits, so that its largest entry has 20 bits, and how many were left out."""
    shift = max(0, int(np.abs(matrix).max()).bit_length() - 20)
    return (matrix + (1 << shift >> 1)) >> shift, shift


def vector(images: np.ndarray, settings: Settings, seed: int) -> np.ndarray:
    """Images uint8 [N, C, H, W] -> integers int64 [N, length], before mirror images, projection and grid."""
    pixels = images.astype(np.int64).transpose(0, 2, 3, 1) * 2 - 255
    stem, level_bits, limit = (contrast_stem if settings.stem == "contrast" else plain_stem)(pixels, settings, seed)
    maps = []
    for patch in settings.patch_sizes:
        states, bits = cut_patches(stem, patch), level_bits
        for layer in range(settings.layers):
            states, bits = layer_states(states, settings, seed, f"reservoir {patch} {layer}", bits), STATE_BITS
        maps.append((states, WIDE_LIMIT))
    if settings.join_stem:
        maps.append((stem, limit))
    if settings.aggregation == "flatten":
        return root(
            np.concatenate([part.reshape(len(images), -1) for part, _ in maps], 1), settings.power, pooled=False
        )
    vectors = []
    for index, (part, largest) in enumerate(maps):
        if index < len(settings.patch_sizes):
            part = np.clip(np.rint(part * 2.0**-STATE_SHIFT), -largest, largest).astype(np.int64)
        pooled = moments_over_windows(part, settings, largest)
        vectors.append(root(pooled, settings.power).reshape(len(images), -1))
    return np.concatenate(vectors, 1)


def neighbours(maps: np.ndarray, kernel: int) -> np.ndarray:
    """Maps [N, H, W, C] -> [N, H, W, C, k k]: the k x k values around each, zeros outside the maps."""
    before, after = (kernel - 1) // 2, kernel // 2
    padded = np.pad(maps, ((0, 0), (before, after), (before, after), (0, 0)))
    height, width = maps.shape[1:3]
    places = [(i, j) for i in range(kernel) for j in range(kernel)]
    return np.stack([padded[:, i : i + height, j : j + width] for i, j in places], 4)


def contrast_stem(maps: np.ndarray, settings: Settings, seed: int) -> tuple[np.ndarray, int, int]:
    """Maps of contrast-normalised filters, their levels' bits and their largest value."""
    bits = PIXEL_BITS
    for layer, (count, kernel) in enumerate(zip(settings.stem_channels, settings.stem_kernels, strict=True)):
        patches = neighbours(maps, kernel)
        patches = patches.reshape(*patches.shape[:3], -1)
        size = patches.shape[3]
        filters = centred_filters(seed, f"stem filters {layer}", count, size)
        sums = patches.sum(3, keepdims=True)
        scatter = size * np.square(patches).sum(3, keepdims=True) - np.square(sums)
        scale = PatchScale.of_whole(size, settings.contrast_epsilon, bits)
        levels = responses(scale.applied(size * patches - sums, scatter) @ filters.T)
        maps, bits = np.concatenate([np.maximum(levels, 0), np.maximum(-levels, 0)], 3), MAP_BITS
    return maps, bits, MAP_LIMIT


def plain_stem(maps: np.ndarray, settings: Settings, seed: int) -> tuple[np.ndarray, int, int]:
    """Maps of plain filters behind a leaky ReLU, their levels' bits and their largest value."""
    if not settings.stem_channels:
        return maps, PIXEL_BITS, 255
    for layer, (count, kernel) in enumerate(zip(settings.stem_channels, settings.stem_kernels, strict=True)):
        drawn = plain_layer(seed, layer, (count, maps.shape[3], kernel, kernel), settings.slope, settings.stem_bias)
        patches = neighbours(maps, kernel)
        sums = patches.reshape(*patches.shape[:3], -1) @ drawn.filters.reshape(count, -1).T + drawn.biases
        maps = np.clip(leaky(np.floor(sums * 2.0**-drawn.shift + 0.5), settings.slope), -STEM_LIMIT, STEM_LIMIT)
    return maps, STEM_BITS, STEM_LIMIT


def leaky(values: np.ndarray, slope: float) -> np.ndarray:
    """The leaky ReLU of whole numbers, rounded half to even."""
    small = np.rint(values * (fraction(slope, SLOPE_BITS) * 2.0**-SLOPE_BITS))
    return np.where(values > 0, values, small).astype(np.int64)


def cut_patches(maps: np.ndarray, side: int) -> np.ndarray:
    """Patches that do not overlap, as vectors: [N, H, W, C] -> [N, ceil(H/side), ceil(W/side), side side C]."""
    height, width = maps.shape[1:3]
    more_rows, more_columns = -height % side, -width % side
    top, left = more_rows // 2, more_columns // 2
    maps = np.pad(maps, ((0, 0), (top, more_rows - top), (left, more_columns - left), (0, 0)))
    rows, columns = maps.shape[1] // side, maps.shape[2] // side
    cut = maps.reshape(len(maps), rows, side, columns, side, -1).swapaxes(2, 3)
    return cut.reshape(len(maps), rows, columns, -1)


def layer_states(inputs: np.ndarray, settings: Settings, seed: int, part: str, level_bits: int) -> np.ndarray:
    """States int64 [N, H, W, 4 r] of the four reservoirs that scan inputs [N, H, W, size]."""
    width = settings.width // reservoirs_counted(settings)
    drawn = reservoir(
        seed,
        part,
        inputs.shape[3],
        width,
        level_bits=level_bits,
        slope=settings.slope,
        sparsity=settings.sparsity,
        radius=settings.radius,
        zero_mean_inputs=settings.zero_mean_inputs,
    )
    drive = (inputs @ drawn.inputs.T) * 2.0**-drawn.input_shift
    leak = fraction(settings.leak, LEAK_BITS)
    result = np.empty(drive.shape, np.int64)
    for direction in range(DIRECTIONS):
        units = slice(direction * width, (direction + 1) * width)
        # [N, lines, steps, r], seen so that every direction goes forwards: views, into which states are written.
        lines, states = drive[..., units], result[..., units]
        if direction >= 2:
            lines, states = lines.swapaxes(1, 2), states.swapaxes(1, 2)
        if direction % 2:
            lines, states = lines[:, :, ::-1], states[:, :, ::-1]
        state = np.zeros(lines[:, :, 0].shape, np.int64)
        for step in range(lines.shape[2]):
            sums = lines[:, :, step] + (state @ drawn.recurrent[direction].T) * 2.0**-RECURRENT_BITS
            active = np.clip(leaky(np.rint(sums), settings.slope), -STATE_LIMIT, STATE_LIMIT)
            mixed = state * (2**LEAK_BITS - leak) + active * leak
            state = np.rint(mixed * 2.0**-LEAK_BITS).astype(np.int64)
            states[:, :, step] = state
    return result


def reservoirs_counted(settings: Settings) -> int:
    """Reservoirs whose units ``width`` counts together."""
    counted = {"direction": 1, "location": DIRECTIONS, "model": DIRECTIONS * max(1, len(settings.patch_sizes))}
    return counted[settings.width_of]
