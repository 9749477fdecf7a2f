"""ImageNet-1k, and the 100 classes of it that the field calls ImageNet-Subset or ImageNet-100."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from circle.config import option
from circle.data.datasets import Dataset, DatasetConfig, number_classes
from circle.data.download import IMAGENET
from circle.data.folders import FileImages, list_images
from circle.data.images import listed
from circle.errors import CircleError, printable, reason
from circle.registry import register

SIDE = 224
CLASSES = 1000
SUBSET = 100
SUBSET_SEED = 1993
PARTS = ("train", "val")


@dataclass(frozen=True)
class ImageNetConfig(DatasetConfig):
    """ImageNet-1k: 1,000 classes, 1,281,167 + 50,000 photographs, 224 x 224, RGB."""

    name: ClassVar[str] = "imagenet1k"

    classes: str | None = option(None, "file with the wnids of the classes to use, one per line; by default all")


@dataclass(frozen=True)
class ImageNetSubsetConfig(DatasetConfig):
    """ImageNet-Subset: 100 classes of ImageNet-1k, 224 x 224, RGB."""

    name: ClassVar[str] = "imagenet_subset"

    classes: str | None = option(None, "file with the wnids of the classes to use, one per line; by default the rule")


@register("dataset", ImageNetConfig)
def load_imagenet1k(config: ImageNetConfig, workers: int = 0) -> Dataset:
    """``train/<wnid>/*.JPEG`` and ``val/<wnid>/*.JPEG`` below ``path`` or ``CIRCLE_IMAGENET``.

    Every image is cropped to its central square and resized to 224 x 224 when it is asked for.
    """
    folder = imagenet_folder(config.path, config.name)
    chosen = _read_list(Path(config.classes)) if config.classes else _all_classes(folder)
    return _load(config, folder, chosen, workers)


@register("dataset", ImageNetSubsetConfig)
def load_imagenet_subset(config: ImageNetSubsetConfig, workers: int = 0) -> Dataset:
    """The same folder, of which 100 classes are used; see :func:`subset_of` for which, or give ``classes``."""
    folder = imagenet_folder(config.path, config.name)
    chosen = _read_list(Path(config.classes)) if config.classes else subset_of(_all_classes(folder))
    return _load(config, folder, chosen, workers)


def subset_of(wnids: list[str]) -> list[str]:
    """The first 100 of the 1,000 sorted wnids, shuffled by ``numpy.random.RandomState(1993)``; sorted again.

    This is how the field's code for "ImageNet-Subset" or "ImageNet-100" draws them: NumPy's legacy generator with
    that seed. Their order in the stream is the benchmark's business.
    """
    order = np.random.RandomState(SUBSET_SEED).permutation(len(wnids))
    return sorted(wnids[position] for position in order[:SUBSET])


def imagenet_folder(path: str | None, name: str) -> Path:
    """The folder given, or the one in the environment; ImageNet's licence forbids fetching it for anyone."""
    place = path or os.environ.get(IMAGENET)
    if not place:
        raise CircleError(
            f"{name}: not on this machine: download ILSVRC2012 from https://image-net.org (it asks for an account), "
            f"sort it into train/<wnid>/ and val/<wnid>/, and give the folder as path or in {IMAGENET}"
        )
    folder = Path(place).expanduser()
    for part in PARTS:
        if not (folder / part).is_dir():
            raise CircleError(f"{printable(folder)}: no folder {part} in it; expected train/<wnid>/ and val/<wnid>/")
    return folder


def _all_classes(folder: Path) -> list[str]:
    wnids = _folders(folder / "train")
    if len(wnids) != CLASSES:
        raise CircleError(
            f"{printable(folder / 'train')}: {len(wnids):,} class folders; expected ImageNet's {CLASSES:,}, or a list "
            "of the classes to use (the setting `classes`)"
        )
    return wnids


def _read_list(path: Path) -> list[str]:
    try:
        words = [line.split()[0] for line in path.expanduser().read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise CircleError(f"{printable(path)}: {reason(error)}; expected a list of wnids, one per line") from error
    if not words or len(set(words)) != len(words):
        raise CircleError(f"{printable(path)}: {len(words)} wnids, {len(set(words))} different; expected each once")
    return sorted(words)


def _load(config: ImageNetConfig | ImageNetSubsetConfig, folder: Path, chosen: list[str], workers: int) -> Dataset:
    shape = config.shape(SIDE, 3)
    pairs: dict[str, list[tuple[str, str]]] = {}
    for part in PARTS:
        missing = [wnid for wnid in chosen if not (folder / part / wnid).is_dir()]
        if missing:
            raise CircleError(f"{printable(folder / part)}: no folder for {listed(missing)}; expected all classes")
        pairs[part] = [
            (wnid, f"{part}/{wnid}/{name}") for wnid in chosen for name in list_images(folder / part / wnid).names
        ]
    train, test = pairs["train"], pairs["val"]
    classes, *labels = number_classes([wnid for wnid, _ in train], [wnid for wnid, _ in test], folder)
    parts = [
        FileImages(folder, [name for _, name in part], numbers, shape, workers, classes)
        for part, numbers in zip((train, test), labels, strict=True)
    ]
    return Dataset(config.name, classes, shape, *parts, path=folder)


def _folders(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise CircleError(f"{printable(folder)}: {reason(error)}; expected one folder per class") from error
