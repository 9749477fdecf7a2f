"""Any folder, zip archive or npz file of the user's as a data set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from circle.config import option
from circle.data import arrays
from circle.data.array_images import ArrayImages
from circle.data.arrays import open_arrays
from circle.data.datasets import Dataset, DatasetConfig, Selection, hold_back, number_classes
from circle.data.decode import ImageConfig
from circle.data.file_images import FileImages
from circle.data.folders import SPLITS, assign_labels
from circle.data.guard import printable, reason
from circle.data.mapped import array_names, map_images
from circle.data.reading import list_files
from circle.errors import CircleError
from circle.registry import register

SIDE = 32
HELD_BACK = "no test part: one image in five of every class was held back for it"
_LAYOUT = "expected a folder or .zip with train/<class>/ and test/<class>/, or an .npz"


@dataclass(frozen=True)
class FolderConfig(DatasetConfig):
    """A folder, zip archive or npz file of your own."""

    name: ClassVar[str] = "folder"

    channels: int | None = option(None, "1 for luminance, 3 for RGB; by default 3, or the array's own in an npz")

    def check(self) -> None:
        super().check()
        self.require(self.channels in (None, 1, 3), "channels", "1 or 3")


@register("dataset", FolderConfig)
def load_folder(config: FolderConfig, workers: int = 0) -> Dataset:
    """Images in class folders, or arrays.

    A folder or zip archive holds ``train/<class>/...`` and ``test/<class>/...`` (or ``val``, ``valid``,
    ``validation``; ``test`` wins), perhaps inside one more folder; or just ``<class>/...``. An npz file holds
    ``x_train``, ``y_train``, ``x_test`` and ``y_test``; or just ``x`` and ``y``, under these or the other names that
    ``circle learn`` knows; ``class_names`` may name integer labels. Without a test part, one image in five of every
    class is held back, always the same ones. Pictures become 32 x 32 RGB and arrays keep their shape, unless
    ``image_size`` and ``channels`` say otherwise.
    """
    if config.path is None:
        raise CircleError(f"folder: no path given; {_LAYOUT}")
    path = Path(config.path).expanduser()
    try:
        path.stat()
    except (OSError, ValueError) as error:
        raise CircleError(f"{printable(path)}: {reason(error)}; {_LAYOUT}") from error
    suffix = path.suffix.lower()
    if path.is_dir() or suffix == ".zip":
        return _from_files(path, config, workers)
    if suffix == ".npz":
        return _from_arrays(path, config)
    raise CircleError(f"{printable(path)}: neither folder, .zip nor .npz; {_LAYOUT}")


def _from_files(path: Path, config: FolderConfig, workers: int) -> Dataset:
    shape = config.shape(SIDE, config.channels or 3)
    root, names = list_files(path)
    if not names:
        raise CircleError(f"{printable(path)}: no images in it; {_LAYOUT}")
    parts = _parts(names)
    if parts is None:
        labelled = assign_labels(names, root)
        classes, labels, _ = number_classes([label for label, _ in labelled], [label for label, _ in labelled], path)
        images = FileImages(root, [name for _, name in labelled], labels, shape, workers)
        train, test = hold_back(labels, classes, path)
        return Dataset("folder", classes, shape, Selection(images, train), Selection(images, test), path, HELD_BACK)
    pairs = [assign_labels([name.removeprefix(prefix) for name in names if name.startswith(prefix)], root / prefix)
             for prefix in parts]  # fmt: skip
    classes, *labels = number_classes([label for label, _ in pairs[0]], [label for label, _ in pairs[1]], path)
    train, test = (
        FileImages(root, [prefix + name for _, name in pair], numbers, shape, workers)
        for prefix, pair, numbers in zip(parts, pairs, labels, strict=True)
    )
    return Dataset("folder", classes, shape, train, test, path)


def _parts(names: list[str]) -> tuple[str, str] | None:
    """What the names of the images to learn from and of those to be tested on begin with, if there are both."""
    split = [name.split("/")[:-2] for name in names]  # above the class folder
    for depth in range(max(map(len, split), default=0)):
        found = {part[depth].lower(): "/".join([*part[: depth + 1], ""]) for part in split if len(part) > depth}
        test = next((found[each] for each in ("test", *SPLITS[2:]) if each in found), None)
        if "train" in found and test is not None:
            return found["train"], test
        if len(found) > 1:
            return None
    return None


def _from_arrays(path: Path, config: FolderConfig) -> Dataset:
    two = {"x_train", "y_train", "x_test", "y_test"} <= array_names(path)
    first = open_arrays(path, *((["x_train"], ["y_train"]) if two else (arrays.IMAGES, arrays.LABELS)))
    labels = [first.labels[code] for code in first.codes]
    shape = _array_shape(first.shape, config)
    if not two:
        classes, numbers, _ = number_classes(labels, labels, path)
        images = ArrayImages(map_images(first), numbers, shape, str(path))
        train, test = hold_back(numbers, classes, path)
        return Dataset("folder", classes, shape, Selection(images, train), Selection(images, test), path, HELD_BACK)
    second = open_arrays(path, ["x_test"], ["y_test"])
    classes, *both = number_classes(labels, [second.labels[code] for code in second.codes], path)
    train, test = (
        ArrayImages(map_images(opened), numbers, shape, f"{path}:{opened.member}")
        for opened, numbers in zip((first, second), both, strict=True)
    )
    return Dataset("folder", classes, shape, train, test, path)


def _array_shape(shape: tuple[int, ...], config: FolderConfig) -> ImageConfig:
    found = shape[3] if len(shape) == 4 else 1
    # Grey or colour with alpha lose the alpha; more channels than that are not pictures.
    channels = config.channels or {1: 1, 2: 1, 3: 3, 4: 3}.get(found, found)
    if channels not in (1, 3):
        raise CircleError(f"{printable(config.path or '')}: images with {found} channels; expected 1 to 4")
    if config.image_size:
        return config.shape(config.image_size, channels)
    return ImageConfig(height=shape[1], width=shape[2], channels=channels)
