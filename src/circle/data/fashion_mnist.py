"""Fashion-MNIST from its idx files, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from circle.data.datasets import Dataset, DatasetConfig
from circle.data.download import locate
from circle.data.images import ArrayImages
from circle.errors import CircleError, printable, reason
from circle.registry import register

SIDE = 28
CLASSES = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]
PARTS = {"train": "train", "test": "t10k"}
OFFICIAL = {"train": 60_000, "test": 10_000}
MAX_UNPACKED_BYTES = 1 << 30  # bytes that an idx file may unpack to; the images to learn from have 47 MB
_UBYTE = 8  # idx's number for unsigned bytes


@dataclass(frozen=True)
class FashionMNISTConfig(DatasetConfig):
    """Fashion-MNIST: 10 classes, 60,000 + 10,000 photographs of clothes, 28 x 28, grey."""

    name: ClassVar[str] = "fashion_mnist"


@register("dataset", FashionMNISTConfig)
def load_fashion_mnist(config: FashionMNISTConfig, workers: int = 0) -> Dataset:
    """``train-images-idx3-ubyte``, ``t10k-labels-idx1-ubyte`` and so on in one folder, with or without ``.gz``."""
    folder = locate("fashion_mnist", config.path)
    shape = config.shape(SIDE, 1)
    parts, notes = {}, []
    for part, prefix in PARTS.items():
        images = read_idx(_file(folder, f"{prefix}-images-idx3-ubyte"), 3)
        labels = read_idx(_file(folder, f"{prefix}-labels-idx1-ubyte"), 1)
        if len(images) != len(labels):
            raise CircleError(f"{printable(folder)}: {len(images)} {part} images, but {len(labels)} labels")
        if labels.max() >= len(CLASSES):
            raise CircleError(f"{printable(folder)}: {part} holds the label {labels.max()}; expected 0 to 9")
        parts[part] = ArrayImages(images, labels, shape, f"{folder}/{prefix}", CLASSES)
        if len(images) != OFFICIAL[part]:
            notes.append(f"{part} has {len(images):,} images instead of {OFFICIAL[part]:,}")
    return Dataset("fashion_mnist", CLASSES, shape, **parts, path=folder, note="; ".join(notes))


def _file(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            return path
    raise CircleError(f"{printable(folder)}: no {name} or {name}.gz in it; expected Fashion-MNIST's idx files")


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """An array of bytes with that many dimensions; a plain file is mapped, a gzipped one read.

    The format: two zero bytes, the type of the numbers, the number of dimensions, each length as four bytes with
    the highest first, and then the numbers.
    """
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                content = np.frombuffer(file.read(MAX_UNPACKED_BYTES), np.uint8)
        else:
            content = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError, EOFError, zlib.error) as error:  # ValueError: an empty file cannot be mapped
        raise CircleError(f"{printable(path)}: cannot be read ({reason(error)}); expected an idx file") from error
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4].tolist() != [0, 0, _UBYTE, dimensions]:
        raise CircleError(f"{printable(path)}: not an idx file of bytes with {dimensions} dimensions")
    shape = [int.from_bytes(content[start : start + 4].tobytes(), "big") for start in range(4, header, 4)]
    if math.prod(shape) != len(content) - header or 0 in shape:
        raise CircleError(
            f"{printable(path)}: {len(content) - header:,} bytes; expected {math.prod(shape):,} for shape {shape}: "
            "damaged, `circle data fetch` repairs the copy in the cache folder"
        )
    return content[header:].reshape(shape)
