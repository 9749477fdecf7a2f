"""The NumPy specification of the portable extractors, called by their configs; and images that try their bounds."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from circle.config import Config
from circle.extractors import ImageShape
from circle.runtime import birc2d, local_contrast
from circle.runtime.arithmetic import whole_vector
from circle.runtime.noise import noise_images
from circle.runtime.weights import random_bytes

VECTORS = {"birc2d": birc2d.vector, "local_contrast": local_contrast.vector}


def settings_of(config: Config) -> SimpleNamespace:
    """All settings of a config by name, as a model file holds them."""
    return SimpleNamespace(**{name: getattr(config, name) for name in config.field_names()})


def specified(config: Config, images: np.ndarray, seed: int) -> np.ndarray:
    """Integers int64 [N, size] of images uint8 [N, C, H, W], by the specification."""
    return whole_vector(images, settings_of(config), seed, VECTORS[config.name])


def noise(count: int, shape: ImageShape) -> np.ndarray:
    return noise_images(count, shape.channels, shape.height, shape.width)


def extreme_images(shape: ImageShape) -> np.ndarray:
    """Images uint8 [8, C, H, W] at the ends of the range: black, white, checkerboards, stripes, edges, random bytes."""
    rows, columns = np.arange(shape.height)[:, None], np.arange(shape.width)
    channels = np.arange(shape.channels)[:, None, None]
    flat = np.zeros((shape.channels, shape.height, shape.width), bool)
    pictures = [
        flat,
        ~flat,
        flat | ((rows + columns) % 2 == 0),
        flat | ((rows + columns + channels) % 2 == 0),
        flat | (columns % 2 == 0) & (rows >= 0),
        flat | ((rows // 2 + columns // 3) % 2 == 0),
        flat | (columns < shape.width // 2) & (rows >= 0),
    ]
    chance = random_bytes(0, "extreme images", (1, *flat.shape))
    return np.concatenate([np.stack(pictures).astype(np.uint8) * 255, chance])
