"""Weights of the portable extractors: integers from a fixed stream of bytes, so that no library's generator has a say.

The bytes of a part are SHAKE-128 of the text ``circle 2 SEED PART SHAPE`` in ASCII, where SHAPE is the array's shape
with ``x`` between the numbers. All that follows is integer arithmetic, so the weights are the same in any language.
"""

from __future__ import annotations

import hashlib
import math
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise

import numpy as np

#: Version of the function from pixels to integers; a model records the one that it learned with.
FEATURE_VERSION = 2

FILTER_NORM = 96  # of a filter whose response to a normalised patch has deviation one
COLOUR_NORM = 16  # of a colour direction, likewise
ROOT_SHIFT = 12  # bits that a pooled value is shifted by before its root is taken: six more for the root
PLAIN_SHIFT = 4  # bits that a pooled value without a root is shortened by
PROJECTED_BITS = 23  # of a projected value, and a sign
WINDOW_SUM = 254  # weights of a window add up to this, so that windowed squares of bytes stay below 2^24


def random_bytes(seed: int, part: str, shape: tuple[int, ...]) -> np.ndarray:
    """Bytes uint8 of this shape that belong to a seed and to a part of an extractor.

    >>> random_bytes(0, "filters", (2, 3)).tolist() == random_bytes(0, "filters", (2, 3)).tolist()
    True
    """
    text = f"circle {FEATURE_VERSION} {seed} {part} {'x'.join(map(str, shape))}"
    content = hashlib.shake_128(text.encode("ascii")).digest(math.prod(shape))
    return np.frombuffer(content, np.uint8).reshape(shape)


def normal_integers(seed: int, part: str, shape: tuple[int, ...]) -> np.ndarray:
    """Integers int64, nearly normal with mean 0 and deviation 256: the sum of twelve bytes less its mean."""
    return random_bytes(seed, part, (*shape, 12)).astype(np.int64).sum(-1) - 6 * 255


def uniform_integers(seed: int, part: str, shape: tuple[int, ...], limit: int) -> np.ndarray:
    """Integers int64, uniform from -limit to limit, from two bytes each: floor(u (2 limit + 1) / 2^16) - limit."""
    words = random_bytes(seed, part, (*shape, 2)).astype(np.int64)
    return ((words[..., 0] * 256 + words[..., 1]) * (2 * limit + 1) >> 16) - limit


def permutation(seed: int, part: str, count: int) -> np.ndarray:
    """The numbers 0 to count - 1 in random order: the order that sorts as many random 64-bit numbers."""
    keys = random_bytes(seed, part, (count, 8)).copy().view(">u8")[:, 0]
    return np.argsort(keys, kind="stable")


def uniform_bound(fan_in: int, slope: Fraction, bits: int) -> tuple[int, int]:
    """Kaiming's bound sqrt(6 / ((1 + slope^2) fan_in)) as (integer of ``bits`` bits, shift): integer / 2^shift.

    Uniform weights within this bound keep the variance through a leaky ReLU.

    >>> uniform_bound(27, Fraction(0), 6)  # sqrt(6 / 27) = 0.4714
    (60, 7)
    """
    square = 6 / ((1 + slope * slope) * fan_in)
    shift = 0
    while square * 4**shift < 4 ** (bits - 1):
        shift += 1
    while square * 4**shift >= 4**bits:
        shift -= 1
    return math.isqrt(math.floor(square * Fraction(4) ** shift)), shift


def with_norm(values: np.ndarray, norm: int) -> np.ndarray:
    """Integers [..., n] scaled so that the norm over the last axis is ``norm``, each rounded: round(norm v / |v|)."""
    rows = values.reshape(-1, values.shape[-1]).tolist()
    scaled = []
    for row in rows:
        square = sum(value * value for value in row) or 1
        roots = ((math.isqrt(4 * norm * norm * value * value // square) + 1) // 2 for value in row)
        scaled.append([-root if value < 0 else root for root, value in zip(roots, row, strict=True)])
    return np.array(scaled, np.int64).reshape(values.shape)


def contrast_filters(seed: int, part: str, count: int, channels: int, kernel: int, grey: int) -> np.ndarray:
    """Filters int64 [count, channels, k, k]: colour times pattern, of norm 96, with sum zero in every channel.

    The first ``grey`` of them weigh all channels alike, the others by a normal colour vector. What rounding leaves of
    a channel's sum is taken from its values in turn.
    """
    colours = normal_integers(seed, f"{part} colours", (count, channels))
    colours[:grey] = 256
    patterns = normal_integers(seed, f"{part} patterns", (count, kernel * kernel))
    patterns = patterns * kernel**2 - patterns.sum(1, keepdims=True)
    filters = with_norm((colours[:, :, None] * patterns[:, None]).reshape(count, -1), FILTER_NORM)
    return without_sum(filters.reshape(count * channels, -1)).reshape(count, channels, kernel, kernel)


def centred_filters(seed: int, part: str, count: int, size: int) -> np.ndarray:
    """Filters int64 [count, size] of norm 96 with sum zero; a filter of a single value has none to lose."""
    values = uniform_integers(seed, part, (count, size), 2**12)
    if size == 1:
        return with_norm(values, FILTER_NORM)
    return without_sum(with_norm(values * size - values.sum(1, keepdims=True), FILTER_NORM))


def without_sum(rows: np.ndarray) -> np.ndarray:
    """Rows int64 [N, n] with sum zero: what a row has too much is taken from its values in turn."""
    rest = rows.sum(1, keepdims=True)
    size = rows.shape[1]
    each, more = np.abs(rest) // size, np.abs(rest) % size
    return rows - np.sign(rest) * (each + (np.arange(size) < more))


def colour_functions(seed: int, count: int, channels: int, offset: float) -> tuple[np.ndarray, np.ndarray]:
    """Directions int64 [count, channels] of norm 16 and constants int64 [count], of functions of a pixel's colour.

    A constant of one deviation is 2040 = 127.5 x 16, because a pixel's deviation is 127.5 in 2 x - 255.
    """
    directions = with_norm(normal_integers(seed, "colour directions", (count, channels)), COLOUR_NORM)
    limit = math.floor(Fraction(offset) * 2040)
    return directions, uniform_integers(seed, "colour constants", (count,), limit)


def gaussian_windows(length: int, count: int, spread: float, margin: float) -> np.ndarray:
    """Windows int64 [count, length]: exp(-(p - c_i)^2 / (2 spread^2)), p and the centres c_i as shares of the length.

    Centres lie evenly from margin to 1 - margin. A shift of the image by a few pixels changes such means little, where
    it moves whole edges from one box to the next; that is worth three points of accuracy on small photographs.
    Exponentials are those of decimal arithmetic with 30 digits: correctly rounded, and so the same everywhere.
    """
    with localcontext() as context:
        context.prec = 30
        first, last = Decimal(margin), 1 - Decimal(margin)
        centres = [first + (last - first) * i / (count - 1) for i in range(count)] if count > 1 else [Decimal("0.5")]
        places = [Decimal(2 * p + 1) / (2 * length) for p in range(length)]
        return _whole_windows([[(-(((p - c) / Decimal(spread)) ** 2) / 2).exp() for p in places] for c in centres])


def box_windows(length: int, count: int) -> np.ndarray:
    """Windows int64 [count, length] of equal weights from floor(i L / g) to ceil((i + 1) L / g).

    So every length works: windows share border cells where g does not divide L, and repeat cells where L < g.
    """
    bounds = [(i * length // count, -((-(i + 1) * length) // count)) for i in range(count)]
    return _whole_windows([[Decimal(start <= p < stop) for p in range(length)] for start, stop in bounds])


def _whole_windows(windows: list[list[Decimal]]) -> np.ndarray:
    """Non-negative weights in whole numbers, 254 in every window.

    A weight is the difference of two running sums, rounded: in long windows, whose weights are fractions, ones and
    zeros then alternate in the right proportion. The last windows are the mirror images of the first, and the middle
    one is its own: twice half of it, once from either side.
    """
    count, rows = len(windows), []
    for number in range((count + 1) // 2):
        weights = [Fraction(weight) for weight in windows[number]]
        if 2 * number < count - 1:
            rows.append(_differences(weights, WINDOW_SUM))
        else:
            half = _differences(weights, WINDOW_SUM // 2)
            rows.append([left + right for left, right in zip(half, reversed(half), strict=True)])
    rows += [row[::-1] for row in rows[: count // 2][::-1]]
    return np.array(rows, np.int64)


def _differences(weights: list[Fraction], end: int) -> list[int]:
    """Differences of the running sums, scaled to end there and rounded half up."""
    total, running, sums = sum(weights), Fraction(0), [0]
    for weight in weights:
        running += weight
        sums.append(math.floor(running / total * end + Fraction(1, 2)))
    return [after - before for before, after in pairwise(sums)]


def dense_projection(seed: int, inputs: int, outputs: int) -> np.ndarray:
    """int64 [outputs, inputs]: the last bit of a byte is the sign, the others are the size."""
    drawn = random_bytes(seed, "projection", (outputs, inputs)).astype(np.int64)
    return (drawn >> 1) * (1 - 2 * (drawn & 1))


def sparse_projection(seed: int, inputs: int, outputs: int, fan_in: int) -> tuple[np.ndarray, np.ndarray]:
    """Index and sign int64 [outputs, fan_in] of the inputs that each output adds up."""
    decks = math.ceil(outputs * fan_in / inputs)
    dealt = np.concatenate([permutation(seed, f"projection deck {deck}", inputs) for deck in range(decks)])
    signs = 1 - 2 * (random_bytes(seed, "projection signs", (outputs, fan_in)).astype(np.int64) & 1)
    return dealt[: outputs * fan_in].reshape(outputs, fan_in), signs


def projection_shift(largest: int) -> int:
    """Bits that a projection of 19-bit values is shortened by; its largest row's weights add up to ``largest``."""
    return max(0, (largest << 19).bit_length() - PROJECTED_BITS)
