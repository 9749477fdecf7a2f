"""Specification of the extractor ``birc2d``: stems, reservoirs and windows in integers, by plain formulas."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np

from circle.runtime.weights import permutation, uniform_bound, uniform_integers, without_sum

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
WEIGHT_BITS = 5  # of the largest input weight or plain filter weight
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

    >>> float(spectral_radius(np.array([[0, 3000], [-3000, 0]])))
    3000.7...
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
