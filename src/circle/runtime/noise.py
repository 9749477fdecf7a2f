"""Synthetic images that the grid of an extractor is calibrated on: no data is ever looked at."""

from __future__ import annotations

import math

import numpy as np

from circle.runtime.weights import random_bytes


def noise_images(count: int, channels: int, height: int, width: int, seed: int = 0) -> np.ndarray:
    """Images uint8 [count, channels, height, width] whose amplitude falls as 1/f, as in photographs.

    Boxes of 1, 2, 4, ... pixels, each with a random value, are added up, which gives every octave of frequencies the
    same share of the variance. Brightness and contrast vary from image to image, and colours share most of their
    structure, as they do in photographs. The boxes of each octave and image begin at a place of their own.
    """
    octaves = max(height, width).bit_length()
    total = np.zeros((count, channels, height, width), np.int64)
    for octave in range(octaves):
        side = 2**octave
        rows, columns = -(-height // side) + 1, -(-width // side) + 1
        boxes = (
            random_bytes(seed, f"noise boxes {octave}", (count, channels + 1, rows, columns)).astype(np.int64) * 2 - 255
        )
        # The first is shared by all colours, at twice the weight of their own.
        boxes = 2 * boxes[:, :1] + boxes[:, 1:] if channels > 1 else 2 * boxes[:, :1]
        starts = random_bytes(seed, f"noise starts {octave}", (count, 2)).astype(np.int64) % side
        for image, (top, left) in enumerate(starts):
            in_rows, in_columns = (np.arange(height) + top) // side, (np.arange(width) + left) // side
            total[image] += boxes[image][:, in_rows[:, None], in_columns]
    look = random_bytes(seed, "noise looks", (count, 2)).astype(np.int64)
    # One octave of boxes has deviation 2 x 147 (330 with colours of their own): the contrast is 25 to 76 levels.
    contrast, brightness = 26 + look[:, 0] // 5, 64 + look[:, 1] // 2
    deviation = math.isqrt(300 * 300 * octaves)
    values = brightness[:, None, None, None] + total * contrast[:, None, None, None] // deviation
    return np.clip(values, 0, 255).astype(np.uint8)
