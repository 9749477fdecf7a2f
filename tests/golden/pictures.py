"""Images that every machine has or makes alike: scikit-learn's digits, drawn pictures, photographs of our own making.

Whole numbers from the first byte to the last pixel, and SHAKE-128 for what looks like chance: no generator of a
library, no floating point, nothing of CIRCLE's own.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from sklearn.datasets import load_digits


def random_integers(name: str, shape: tuple[int, ...], limit: int) -> np.ndarray:
    """Integers int64 from 0 to limit - 1, at most 2^16 of them, from two bytes of SHAKE-128 each."""
    content = hashlib.shake_128(f"golden {name}".encode()).digest(2 * math.prod(shape))
    return np.frombuffer(content, ">u2").astype(np.int64).reshape(shape) * limit >> 16


def digits(count: int) -> tuple[np.ndarray, list[int]]:
    """Digits uint8 [count, 1, 8, 8] and what they are."""
    data = load_digits()
    return (data.images[:count].astype(np.int64) * 15).astype(np.uint8)[:, None], data.target[:count].tolist()


def drawn_pictures(count: int, side: int) -> tuple[np.ndarray, list[str]]:
    """Discs, gradients, stripes and checkerboards in two colours each: uint8 [count, 3, side, side]."""
    rows, columns = np.meshgrid(np.arange(side), np.arange(side), indexing="ij")
    images, labels = [], []
    for number in range(count):
        kind = ("disc", "gradient", "stripes", "checkerboard")[number % 4]
        paper, ink = random_integers(f"colours {number}", (2, 3, 1, 1), 256)
        top, left, size = random_integers(f"place {number}", (3,), side)
        if kind == "disc":
            share = ((rows - top) ** 2 + (columns - left) ** 2 < (size // 2 + 2) ** 2) * 255
        elif kind == "gradient":
            share = (rows * top + columns * (left + 1)) * 255 // (side * (top + left + 1))
        elif kind == "stripes":
            share = ((rows * (1 + top % 3) + columns * (1 + left % 2)) // (1 + size // 6)) % 2 * 255
        else:
            share = (rows // (1 + size // 8) + columns // (1 + size // 8)) % 2 * 255
        images.append((paper * (255 - share) + ink * share) // 255)
        labels.append(kind)
    return np.stack(images).astype(np.uint8), labels


def photographs(count: int, side: int) -> tuple[np.ndarray, list[str]]:
    """Scenes uint8 [count, 3, side, side]: a sky, a textured ground, and a ball or a crate that stands on it.

    Textures are random values on grids of several widths, smoothed between their points; light comes from the left,
    and every pixel has some grain.
    """
    rows, columns = np.meshgrid(np.arange(side), np.arange(side), indexing="ij")
    images, labels = [], []
    for number in range(count):
        kind = ("ball", "crate", "meadow")[number % 3]
        sky, ground, body = random_integers(f"scene {number}", (3, 3, 1, 1), 200) + 28
        horizon = side // 3 + int(random_integers(f"horizon {number}", (1,), side // 3)[0])
        scene = np.where(rows < horizon, sky + rows * 40 // side, ground + texture(f"ground {number}", side) // 2)
        left, size = random_integers(f"body {number}", (2,), side // 3)
        middle, radius = left + side // 3, side // 8 + size // 2
        if kind == "ball":
            away = (rows - horizon) ** 2 + (columns - middle) ** 2
            light = 60 - (columns - middle + radius) * 60 // (radius + 1)
            scene = np.where(away < radius**2, body + light, scene)
        elif kind == "crate":
            inside = (abs(rows - horizon) < radius) & (abs(columns - middle) < radius)
            board = (rows - horizon) % (2 + radius // 3) == 0
            scene = np.where(inside, body - 50 * board + texture(f"crate {number}", side) // 4, scene)
        grain = random_integers(f"grain {number}", (3, side, side), 17) - 8
        images.append(np.clip(scene + grain, 0, 255))
        labels.append(kind)
    return np.stack(images).astype(np.uint8), labels


def texture(name: str, side: int) -> np.ndarray:
    """Value noise int64 [side, side], from about -128 to 128: octaves, each half as strong as the one twice as wide."""
    total = np.zeros((side, side), np.int64)
    width, strength = max(2, side // 2), 64
    while width >= 2:
        points = random_integers(f"{name} {width}", (side // width + 2, side // width + 2), 256) * 2 - 255
        cell, part = np.divmod(np.arange(side), width)
        down = (points[cell] * (width - part)[:, None] + points[cell + 1] * part[:, None]) // width
        across = (down[:, cell] * (width - part) + down[:, cell + 1] * part) // width
        total += across * strength // 255
        width, strength = width // 2, strength // 2
    return total
