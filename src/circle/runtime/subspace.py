"""A fixed random subspace of the features: few whole numbers of every vector, the same on every machine."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from circle.runtime.weights import random_bytes

DRAWS = 512  # features that are added up, with random signs, to one coordinate: 512 x 32767 < 2^24
SHIFTS = {8: 1, 16: 9}  # bits that coordinates of features of 8 and 16 bits are shortened by: 16 remain

#: Whitened coordinates are kept in steps of 2^-5 of a deviation, and cut off at sixteen deviations.
WHITENED_STEPS, MAX_WHITENED = 32.0, 511.0
#: Components along the directions of a class are kept in steps of 2^-8, curvature, pull and what corrects a score
#: in steps of 2^-20.
COMPONENT_STEPS, CURVATURE_STEPS = 256.0, 2.0**20


@lru_cache(maxsize=8)
def subspace_matrix(size: int, dimension: int) -> np.ndarray:
    """P, int16 [size, dimension]: each column adds up 512 features drawn with replacement, with random signs.

    It belongs to its shape and to no seed: the features that it mixes have seeds of their own. As the entries of a
    column have absolute values that add up to 512, no coordinate of features of 16 bits reaches 2^24, and their
    products are exact in float32.

    Parameters
    ----------
    size : int
        Number of features D.
    dimension : int
        Number of coordinates d.

    Examples
    --------
    >>> matrix = subspace_matrix(2016, 64)
    >>> matrix.shape, int(np.abs(matrix).sum(0).max()) <= DRAWS
    ((2016, 64), True)
    """
    drawn = random_bytes(0, "subspace", (dimension, DRAWS, 4)).astype(np.int64)
    features = (drawn[..., 0] << 16 | drawn[..., 1] << 8 | drawn[..., 2]) * size >> 24
    signs = np.where(drawn[..., 3] < 128, 1, -1)
    matrix = np.zeros((dimension, size), np.int16)
    np.add.at(matrix, (np.arange(dimension)[:, None], features), signs)
    return matrix.T


def coordinates(features: np.ndarray, dimension: int, shift: int) -> np.ndarray:
    """u = round(P^T z / 2^shift), halves to the even neighbour: whole numbers float64 [N, d] of features [N, D]."""
    matrix = subspace_matrix(features.shape[1], dimension)
    return np.rint(features.astype(np.float64) @ matrix.astype(np.float64) * 2.0**-shift)
