"""A user's own images: any folder, zip archive or npz file, with labels or without, and as a data set.

>>> import tempfile
>>> import numpy as np
>>> path = Path(tempfile.mkdtemp()) / "pets.npz"
>>> np.savez(path, x=np.zeros((10, 8, 8), np.uint8), y=["cat", "dog"] * 5)
>>> images = open_images(path)
>>> len(images), images.classes
(10, ['cat', 'dog'])
>>> dataset = load_folder(FolderConfig(path=str(path)))
>>> dataset.name, len(dataset.train), len(dataset.test)
('pets', 8, 2)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from circle.config import option
from circle.data import npz
from circle.data.datasets import Dataset, DatasetConfig, number_classes
from circle.data.decode import ImageConfig
from circle.data.folders import SPLITS, FileImages, Listing, Part, class_folders, find_splits, list_images
from circle.data.hold_out import hold_out
from circle.data.images import Images
from circle.data.npz import NpzImages, array_names
from circle.errors import CircleError, printable, reason
from circle.registry import list_datasets, register

SIDE = 32
TEST_SHARE = 0.2  # of every class, where there is no test part
HELD_BACK = "no test part: one image in five of every class was held back for it"
PICTURES = ImageConfig(height=SIDE, width=SIDE, channels=3)
_LAYOUT = "expected a folder or .zip with train/<class>/ and test/<class>/, or an .npz"

Kind = Literal["folder", "zip", "npz", "file"]


def kind_of(path: Path, expected: str = "expected a folder, a zip archive or a file") -> Kind:
    """What a path leads to.

    Raises:
        CircleError: nothing there.
    """
    try:
        path.stat()
    except (OSError, ValueError) as error:
        raise CircleError(f"{printable(path)}: {reason(error)}; {expected}") from error
    if path.is_dir():
        return "folder"
    suffix = path.suffix.lower()
    return "zip" if suffix == ".zip" else "npz" if suffix == ".npz" else "file"


def open_images(path: str | Path, part: Part = "train") -> Images:
    """Labelled images: ``<class>/image`` as a folder or zip archive, or an npz file.

    Of a folder or archive with ``train/<class>/`` and ``test/<class>/``, and of an npz file with ``x_train`` and
    ``x_test``, only ``part`` is taken, and the images' ``notes`` say so.

    Raises:
        CircleError: nothing there, nothing usable in it, or another kind of file.
    """
    path = Path(path)
    kind = kind_of(path)
    if kind == "file":
        raise CircleError(f"{printable(path)}: neither folder, .zip nor .npz; expected labelled images as one of these")
    if kind == "npz":
        return _open_npz(path, part)
    listing = list_images(path)
    splits = find_splits(listing)
    images = _class_images(listing, splits.get(part, ""), PICTURES)
    if splits:
        names = [prefix.rstrip("/") for prefix in splits.values()]
        taken = f"{printable(path)}: has {' and '.join(names)}: taking {splits[part].rstrip('/')}"
        images.notes = [taken, *images.notes]
    return images


def open_unlabelled(paths: Sequence[str | Path] | str | Path) -> Images:
    """Images without labels from files, folders (all levels) and zip archives, in the order given.

    Raises:
        CircleError: at once, if any of the paths does not exist or holds no images.
    """
    names: list[str] = []
    notes: list[str] = []
    ignored: list[tuple[str, str]] = []
    given = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    for path in given:
        kind = kind_of(path)
        if kind == "npz":
            raise CircleError(f"{printable(path)}: an npz file; expected image files, folders or zip archives")
        if kind == "file":  # whatever it is called: decoding will tell whether it is an image
            names.append(str(path))
            continue
        listing = list_images(path)
        if not listing.names:
            found = f" ({listing.summary()})" if listing.ignored else ""
            raise CircleError(f"{printable(path)}: no images in it{found}; expected a {kind} of images")
        names += [str(path / name) for name in listing.names]
        ignored += listing.ignored
        notes += [f"{printable(path)}: {line}" for line in [listing.summary()] if line]
    images = FileImages(Path(), names, np.zeros(len(names), np.int64), PICTURES, classes=[None])
    images.path = given[0] if len(given) == 1 else None
    images.notes, images.ignored = notes, ignored
    return images


def _class_images(listing: Listing, prefix: str, image: ImageConfig, workers: int = 0) -> FileImages:
    """The images of a folder or archive, or of the split in it that begins with ``prefix``, by class folder."""
    found = class_folders(listing, prefix)
    classes = sorted({label for label, _ in found.pairs})
    numbers = {label: number for number, label in enumerate(classes)}
    root, names = Listing(listing.path, [name for _, name in found.pairs]).files()
    images = FileImages(root, names, np.array([numbers[label] for label, _ in found.pairs]), image, workers, classes)
    images.path, images.ignored = listing.path, found.ignored
    images.notes = [f"{printable(listing.path)}: {line}" for line in found.notes]
    return images


def _open_npz(path: Path, part: Part) -> NpzImages:
    if not {"x_train", "y_train", "x_test", "y_test"} <= array_names(path):
        return NpzImages(path)
    images = NpzImages(path, [f"x_{part}"], [f"y_{part}"])
    images.notes = [f"{printable(path)}: has x_train and x_test: taking x_{part}"]
    return images


# --- as a data set ---


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
    """Images in class folders, or arrays, under the name of the folder or file.

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
    kind = kind_of(path, _LAYOUT)
    if kind == "file":
        raise CircleError(f"{printable(path)}: neither folder, .zip nor .npz; {_LAYOUT}")
    if kind == "npz":
        return _from_arrays(path, config)
    image = config.shape(SIDE, config.channels or 3)
    listing = list_images(path)
    splits = find_splits(listing)
    if not splits:
        return _with_test_part(_class_images(listing, "", image, workers), path, image)
    train, test = (_class_images(listing, splits[part], image, workers) for part in ("train", "test"))
    return _of_two_parts(train, test, path, image)


def dataset_name(path: Path) -> str:
    """The name that results of a user's data are kept under: that of its folder or file, as a name of a folder.

    >>> dataset_name(Path("/home/me/My photos (2024).zip")), dataset_name(Path("pets/train"))
    ('My-photos-2024', 'pets-train')
    """
    path = path.expanduser().absolute()
    path = path.resolve() if path.name in ("", "..") else path
    name = path.stem if path.suffix.lower() in (".zip", ".npz") else path.name
    if name.lower() in SPLITS:
        name = f"{path.parent.name}-{name}"
    words = "".join(letter if letter.isalnum() or letter in "-_+." else " " for letter in name).split()
    cleaned = "-".join(words).strip("-.") or "folder"
    # The data set of that name is another one, with presets and published values of its own.
    return f"{cleaned}-own" if cleaned in list_datasets() and cleaned != "folder" else cleaned


def _from_arrays(path: Path, config: FolderConfig) -> Dataset:
    two = {"x_train", "y_train", "x_test", "y_test"} <= array_names(path)
    first = NpzImages(path, *((["x_train"], ["y_train"]) if two else (npz.IMAGES, npz.LABELS)))
    own = first.image
    channels = config.channels or own.channels
    if channels not in (1, 3):
        raise CircleError(f"{printable(path)}: images with {own.channels} channels; expected 1 to 4")
    image = config.shape(config.image_size, channels) if config.image_size else own.replace(channels=channels)
    first.image = image
    if not two:
        return _with_test_part(first, path, image)
    second = NpzImages(path, ["x_test"], ["y_test"], image)
    first._name, second._name = f"{path}:{first.member}", f"{path}:{second.member}"
    return _of_two_parts(first, second, path, image)


def _with_test_part(images: Images, path: Path, image: ImageConfig) -> Dataset:
    """All images of one place, of which some are held back to be tested on."""
    train, test = hold_out(images.labels, TEST_SHARE, classes=images.classes, where=path, need_both=True)
    classes = [str(label) for label in images.classes]
    note = "; ".join([HELD_BACK, *images.notes])
    return Dataset(dataset_name(path), classes, image, images.subset(train), images.subset(test), path, note)


def _of_two_parts(train: Images, test: Images, path: Path, image: ImageConfig) -> Dataset:
    given, asked = ([part.classes[number] for number in part.labels] for part in (train, test))
    classes, train.labels, test.labels = number_classes(given, asked, path)
    train.classes = test.classes = classes
    note = "; ".join([*train.notes, *test.notes])
    return Dataset(dataset_name(path), classes, image, train, test, path, note)
