"""What the portable extractors share: windows, roots, mirror images, projection and grid, in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from circle.runtime.weights import (
    PLAIN_SHIFT,
    PROJECTED_BITS,
    ROOT_SHIFT,
    box_windows,
    dense_projection,
    gaussian_windows,
    projection_shift,
    sparse_projection,
)

#: Settings of an extractor as attributes: its config, or what a model file holds of it.
Settings = Any


def windows_along(length: int, settings: Settings) -> np.ndarray:
    """Windows int64 [g, length] along one side of a map, whose weights add up to 254."""
    if settings.windows == "box":
        return box_windows(length, settings.grid)
    return gaussian_windows(length, settings.grid, settings.window_spread, settings.window_margin)


def moments_over_windows(maps: np.ndarray, settings: Settings, limit: int = 255) -> np.ndarray:
    """Sums of maps int64 [N, H, W, J] and of their squares over windows: [N, m, g g, J].

    Sums along columns of squares are shortened by 8 bits, rounded half up. Of maps above 255, squares are shortened by
    4 bits and sums of values along columns by 2, rounded half to even. So no sum exceeds 2^24.
    """
    rows, columns = windows_along(maps.shape[1], settings), windows_along(maps.shape[2], settings)
    wide, result = limit > 255, []
    for moment in settings.moments:
        if moment == "square":
            squares = _shortened(np.square(maps), 4) if wide else np.square(maps)
            down = (np.einsum("gh,nhwj->ngwj", rows, squares) + 128) >> 8
        else:
            down = np.einsum("gh,nhwj->ngwj", rows, maps)
            down = _shortened(down, 2) if wide else down
        result.append(np.einsum("fw,ngwj->ngfj", columns, down).reshape(len(maps), -1, maps.shape[3]))
    return np.stack(result, 1)


def _shortened(values: np.ndarray, bits: int) -> np.ndarray:
    """values / 2^bits, rounded half to even."""
    return np.rint(values * 2.0**-bits).astype(np.int64)


def root(values: np.ndarray, power: float, *, pooled: bool = True) -> np.ndarray:
    """sign(v) floor(sqrt(2^12 |v|)) for power 0.5; for power 1 the values, pooled ones without their last bits."""
    if power == 0.5:
        return np.sign(values) * np.floor(np.sqrt(np.abs(values) * 2.0**ROOT_SHIFT + 0.5)).astype(np.int64)
    return values >> PLAIN_SHIFT if pooled else values


def whole_vector(
    images: np.ndarray,
    settings: Settings,
    seed: int,
    vector: Callable[[np.ndarray, Settings, int], np.ndarray],
) -> np.ndarray:
    """Integers int64 [N, size] of images: with those of the mirror images added, and projected, if settings say so."""
    values = vector(images, settings, seed)
    if settings.mirror:
        values = values + vector(images[..., ::-1], settings, seed)
    if settings.projection == "none":
        return values
    size, fan_in = settings.projection_size, min(settings.projection_fan_in, values.shape[1])
    if fan_in:
        index, signs = sparse_projection(seed, values.shape[1], size, fan_in)
        values, largest = (values[:, index] * signs).sum(2), fan_in
    else:
        weights = dense_projection(seed, values.shape[1], size)
        values, largest = values @ weights.T, int(np.abs(weights).sum(1).max())
    limit = 2**PROJECTED_BITS - 1
    return np.clip(values >> projection_shift(largest), 0 if settings.projection == "relu" else -limit, limit)


def on_grid(values: np.ndarray, scale: np.ndarray, offset: np.ndarray, bits: int) -> np.ndarray:
    """round((v - offset) / scale), in 8 or 16 bits: integers int64 [N, size] to int8 or int16."""
    limit = 2 ** (bits - 1) - 1
    positions = (values.astype(np.float32) - offset) / scale
    return np.clip(np.rint(positions), -limit, limit).astype(np.int8 if bits == 8 else np.int16)
