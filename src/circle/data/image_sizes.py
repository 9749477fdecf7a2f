"""How large the images at hand are, and which of the sides that presets are made for suits them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from circle.data.decode import open_image
from circle.errors import UnreadableImageError

AUTO = "auto"  # as image_size: the first images decide for one of the sides below
SIDES = (32, 64, 224)  # of the images that presets are made for, in pixels
LARGEST_SHORTER_SIDES = (48, 128)  # of images that still suit the first and the second of them
SAMPLED_IMAGES = 64  # whose sizes stand for those of all

Size = tuple[int, int]  # height and width in pixels


def side_for(height: int, width: int) -> int:
    """The side that images of this size are best brought to: by the shorter one, as the other is cut.

    >>> side_for(8, 8), side_for(48, 300), side_for(49, 49), side_for(128, 200), side_for(250, 300)
    (32, 32, 64, 64, 224)
    """
    shorter = min(height, width)
    return next((side for side, most in zip(SIDES, LARGEST_SHORTER_SIDES, strict=False) if shorter <= most), SIDES[-1])


def sampled_positions(count: int) -> np.ndarray:
    """The positions of the images that are looked at, int64: evenly spread, and always the same ones.

    >>> sampled_positions(3).tolist(), len(sampled_positions(100_000))
    ([0, 1, 2], 64)
    """
    sample = min(count, SAMPLED_IMAGES)
    return np.arange(sample, dtype=np.int64) * count // max(1, sample)


def typical_size(sizes: Iterable[Size]) -> Size | None:
    """The size in the middle when they are sorted by the shorter side; None where there are none.

    >>> typical_size([(300, 200), (90, 400), (250, 300)])
    (300, 200)
    """
    ordered = sorted(sizes, key=lambda size: (min(size), max(size), size))
    return ordered[(len(ordered) - 1) // 2] if ordered else None


def picture_size(picture: bytes | Path | Image.Image | np.ndarray, name: str) -> Size:
    """Height and width as they are stored; of a file or its bytes without decoding it.

    Raises:
        UnreadableImageError: no image of a known format, or an array without height and width.
    """
    if isinstance(picture, np.ndarray):
        if picture.ndim < 2:
            raise UnreadableImageError(f"{name}: array of shape {list(picture.shape)}; expected [height, width]")
        return picture.shape[0], picture.shape[1]
    image = open_image(picture, name) if isinstance(picture, (bytes, Path)) else picture
    return image.height, image.width
