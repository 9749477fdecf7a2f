"""Labelled and unlabelled images from folders, zip archives and npz files, one at a time.

>>> import tempfile
>>> from pathlib import Path
>>> import numpy as np
>>> path = Path(tempfile.mkdtemp()) / "two.npz"
>>> np.savez(path, x=np.zeros((2, 8, 8), np.uint8), y=["cat", "dog"])
>>> source = open_source(path)
>>> len(source), source.labels, [sample.label for sample in source]
(2, ['cat', 'dog'], ['cat', 'dog'])
"""

from __future__ import annotations

import abc
import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np

from circle.data import archives, folders
from circle.data.arrays import LabelledArrays, open_arrays
from circle.data.datasets import digest
from circle.data.decode import ImageConfig, read_pixels, to_pixels
from circle.data.guard import printable, read_bytes, reason
from circle.errors import CircleError, UnreadableImageError

Label = str | int
_CONTAINERS = {"folder": folders, "zip": archives}


@dataclass(frozen=True, eq=False)
class Sample:
    """One image as it was found, not decoded yet.

    ``content`` is a file's bytes, an array, or the reason why there is nothing to read: one broken image must
    not end the stream that it is in, so the reason is raised only when the sample is used.
    """

    name: str
    label: Label | None
    content: bytes | np.ndarray | UnreadableImageError

    def pixels(self, config: ImageConfig) -> np.ndarray:
        """uint8 ``[channels, height, width]``, or an :class:`UnreadableImageError`."""
        content = self._readable()
        if isinstance(content, np.ndarray):
            return to_pixels(content, config, self.name)
        return read_pixels(content, config, self.name)

    def digest(self) -> bytes:
        """16 bytes that are equal for equal label and content, whatever the name."""
        content = self._readable()
        kind = (content.shape, content.dtype.str) if isinstance(content, np.ndarray) else "bytes"
        digest = hashlib.blake2b(repr((self.label, kind)).encode() + b"\0", digest_size=16)
        digest.update(content.tobytes() if isinstance(content, np.ndarray) else content)
        return digest.digest()

    def _readable(self) -> bytes | np.ndarray:
        if isinstance(self.content, UnreadableImageError):
            raise UnreadableImageError(str(self.content))
        return self.content


class Source(abc.ABC):
    """Labelled images. Iterating yields :class:`Sample` in an order that is always the same.

    ``counts`` maps each label, sorted, to its number of samples.
    """

    def __init__(self, path: Path, kind: Literal["folder", "zip", "npz"], counts: dict[Label, int]) -> None:
        self.path = path
        self.kind = kind
        self.counts = counts

    @property
    def labels(self) -> list[Label]:
        return list(self.counts)

    def __len__(self) -> int:
        return sum(self.counts.values())

    def __iter__(self) -> Iterator[Sample]:
        return self.share(0, 1)

    @abc.abstractmethod
    def share(self, number: int, count: int) -> Iterator[Sample]:
        """The samples number, number + count, number + 2 count, ...: one of ``count`` shares that make up the whole."""

    @abc.abstractmethod
    def listing(self) -> str:
        """A digest of names, labels and shapes in their order, so that two readers know that they see the same source.

        Nothing of the images themselves is read for it.
        """

    def __repr__(self) -> str:
        return f"<{self.kind} {self.path}: {len(self)} samples of {len(self.counts)} classes>"


class FileSource(Source):
    """A folder or zip archive with one folder per class; sorted by label, then by name."""

    def __init__(self, path: Path, kind: Literal["folder", "zip"]) -> None:
        self._entries = folders.assign_labels(_CONTAINERS[kind].list_images(path), path)
        super().__init__(path, kind, dict(Counter(label for label, _ in self._entries)))

    def share(self, number: int, count: int) -> Iterator[Sample]:
        entries = self._entries[number::count]
        contents = _CONTAINERS[self.kind].read_images(self.path, (name for _, name in entries))
        for (label, name), content in zip(entries, contents, strict=True):
            yield Sample(str(self.path / name), label, content)

    def listing(self) -> str:
        return digest(*(os.fsencode(part) for entry in self._entries for part in entry))


class ArraySource(Source):
    """An npz file with images and labels, in the order of the file."""

    def __init__(self, path: Path) -> None:
        self._arrays: LabelledArrays = open_arrays(path)
        numbers = np.bincount(self._arrays.codes).tolist()
        super().__init__(path, "npz", dict(zip(self._arrays.labels, numbers, strict=True)))

    def share(self, number: int, count: int) -> Iterator[Sample]:
        for index, row in islice(enumerate(self._arrays.rows()), number, None, count):
            yield Sample(f"{self.path}[{index}]", self._arrays.labels[self._arrays.codes[index]], row)

    def listing(self) -> str:
        arrays = self._arrays
        kind = repr((arrays.shape, arrays.dtype.str, arrays.labels)).encode()
        return digest(kind, arrays.codes.astype(np.int64).tobytes())


def open_source(path: str | Path) -> Source:
    """Labelled images: ``DATA/<class>/**/*.jpg`` as a folder or zip archive, or an npz file.

    Raises:
        CircleError: nothing there, nothing usable in it, or another kind of file.
    """
    path = Path(path)
    kind = _kind(path)
    if kind == "file":
        raise CircleError(f"{printable(path)}: neither folder, .zip nor .npz; expected labelled images as one of these")
    return ArraySource(path) if kind == "npz" else FileSource(path, kind)


class Unlabelled:
    """Images without labels; has a length, and can be iterated again and again."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._parts = [(path, kind, self._names(path, kind)) for path in paths for kind in [_kind(path)]]

    @staticmethod
    def _names(path: Path, kind: str) -> list[str]:
        if kind == "npz":
            raise CircleError(f"{printable(path)}: an npz file; expected image files, folders or zip archives")
        if kind == "file":  # whatever it is called: decoding will tell whether it is an image
            return [""]
        names = _CONTAINERS[kind].list_images(path)
        if not names:
            raise CircleError(f"{printable(path)}: no images in it; expected a {kind} of images")
        return names

    def __len__(self) -> int:
        return sum(len(names) for _, _, names in self._parts)

    def __iter__(self) -> Iterator[Sample]:
        for path, kind, names in self._parts:
            if kind == "file":
                yield Sample(str(path), None, _content(path))
            else:
                contents = _CONTAINERS[kind].read_images(path, names)
                for name, content in zip(names, contents, strict=True):
                    yield Sample(str(path / name), None, content)


def open_unlabelled(paths: Sequence[str | Path] | str | Path) -> Unlabelled:
    """Images without labels from files, folders (all levels) and zip archives, in the order given.

    Raises:
        CircleError: at once, if any of the paths does not exist or holds no images.
    """
    if isinstance(paths, str | Path):
        paths = [paths]
    return Unlabelled([Path(path) for path in paths])


def _content(path: Path) -> bytes | UnreadableImageError:
    try:
        return read_bytes(path, str(path))
    except UnreadableImageError as error:
        return error


def _kind(path: Path) -> Literal["folder", "zip", "npz", "file"]:
    try:
        path.stat()
    except (OSError, ValueError) as error:
        raise CircleError(f"{printable(path)}: {reason(error)}; expected a folder, a zip archive or a file") from error
    if path.is_dir():
        return "folder"
    suffix = path.suffix.lower()
    return "zip" if suffix == ".zip" else "npz" if suffix == ".npz" else "file"
