"""CIFAR-100 from its official binary files; the pickled ones are never touched."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from circle.data.datasets import Dataset, DatasetConfig
from circle.data.download import locate
from circle.data.images import ArrayImages
from circle.errors import CircleError, printable, reason
from circle.registry import register

FOLDER = "cifar-100-binary"
SIDE = 32
CLASSES = 100
OFFICIAL = {"train": 50_000, "test": 10_000}
# One image: a byte for each label, then the red, green and blue plane.
RECORD = np.dtype([("coarse", np.uint8), ("fine", np.uint8), ("planes", np.uint8, (3, SIDE, SIDE))])


@dataclass(frozen=True)
class CIFAR100Config(DatasetConfig):
    """CIFAR-100: 100 classes of 500 + 100 photographs, 32 x 32, RGB."""

    name: ClassVar[str] = "cifar100"


@register("dataset", CIFAR100Config)
def load_cifar100(config: CIFAR100Config, workers: int = 0) -> Dataset:
    """``train.bin``, ``test.bin`` and ``fine_label_names.txt``, mapped into memory, the fine labels."""
    path = locate("cifar100", config.path)
    folder = path / FOLDER if (path / FOLDER).is_dir() else path
    shape = config.shape(SIDE, 3)
    classes = _class_names(folder / "fine_label_names.txt")
    parts, notes = {}, []
    for part, official in OFFICIAL.items():
        records = _map(folder / f"{part}.bin")
        images = records["planes"].transpose(0, 2, 3, 1)
        parts[part] = ArrayImages(images, records["fine"], shape, str(folder / f"{part}.bin"), classes)
        if len(records) != official:
            notes.append(f"{part} has {len(records):,} images instead of {official:,}")
    return Dataset("cifar100", classes, shape, **parts, path=folder, note="; ".join(notes))


def _map(path: Path) -> np.ndarray:
    """The records of one file, of which only what is used is read."""
    try:
        size = path.stat().st_size
        if size == 0 or size % RECORD.itemsize:
            raise CircleError(
                f"{printable(path)}: {size:,} bytes; expected records of {RECORD.itemsize:,}: "
                "damaged, `circle data fetch cifar100` repairs the copy in the cache folder"
            )
        records = np.memmap(path, RECORD, "r")
    except OSError as error:
        raise CircleError(f"{printable(path)}: {reason(error)}; expected CIFAR-100's binary version") from error
    largest = int(records["fine"].max())
    if largest >= CLASSES:
        raise CircleError(f"{printable(path)}: holds the label {largest}; expected 0 to {CLASSES - 1}: damaged")
    return records


def _class_names(path: Path) -> list[str]:
    try:
        names = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise CircleError(f"{printable(path)}: {reason(error)}; expected the names of the classes") from error
    if len(set(names)) != CLASSES:
        raise CircleError(f"{printable(path)}: {len(set(names))} names; expected {CLASSES}")
    return names
