"""Images and labels as arrays in one npz file; the images are streamed, never loaded as a whole."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy_format

from circle.data.archives import open_zip
from circle.data.guard import MAXIMUM_BYTES, printable
from circle.errors import CircleError

IMAGES = ("x", "X", "images", "data", "x_train")
LABELS = ("y", "labels", "targets", "target", "y_train")
CHUNK_BYTES = 4 * 2**20

_EXPECTED = "an npz file as numpy.savez writes it"


@dataclass(frozen=True)
class LabelledArrays:
    """An npz file: shape and type of its images, its distinct labels, and each image's index into these."""

    path: Path
    member: str
    shape: tuple[int, ...]
    dtype: np.dtype
    labels: list[str | int]
    codes: np.ndarray

    def rows(self) -> Iterator[np.ndarray]:
        """Each image in the order of the file, ``CHUNK_BYTES`` or one image in memory at a time."""
        row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        rows_per_chunk = max(1, CHUNK_BYTES // row_bytes)
        with open_zip(self.path, _EXPECTED) as archive, archive.open(self.member) as file:
            if _header(file) != (self.shape, False, self.dtype):
                raise CircleError(f"{printable(self.path)}: changed since it was opened; expected it unchanged")
            for start in range(0, self.shape[0], rows_per_chunk):
                count = min(rows_per_chunk, self.shape[0] - start)
                content = file.read(count * row_bytes)
                chunk = np.frombuffer(content, self.dtype).reshape(count, *self.shape[1:])
                yield from map(np.ndarray.copy, chunk)  # a view would keep the whole chunk alive
                del content, chunk  # before the next is read


def open_arrays(path: Path, images: Sequence[str] = IMAGES, labels: Sequence[str] = LABELS) -> LabelledArrays:
    """Check an npz file and read its labels; :meth:`LabelledArrays.rows` reads the images.

    ``images`` and ``labels`` are the names under which the two arrays may be found, the first that exists counts.

    Raises:
        CircleError: arrays missing, of unequal length, of a type that cannot be used, or truncated.
    """
    with open_zip(path, _EXPECTED) as archive:
        members = {
            info.filename.removesuffix(".npy"): info for info in archive.infolist() if info.filename.endswith(".npy")
        }
        member = _choose(members, images, "images", path)
        shape, dtype = _check_images(archive, member, path)
        given = _read_whole(archive, _choose(members, labels, "labels", path), path)
        if given.shape not in ((shape[0],), (shape[0], 1)):
            raise CircleError(
                f"{printable(path)}: {shape[0]} images, but labels of shape {list(given.shape)}; expected one each"
            )
        names = members.get("class_names")
        class_names = None if names is None else _strings(_read_whole(archive, names, path), "class_names", path)
        values, codes = np.unique(given.ravel(), return_inverse=True)
        named = _plain_labels(values, class_names, path)
    # Two numbers may share a name; then they are one class.
    unique = sorted(set(named))
    position = {label: index for index, label in enumerate(unique)}
    codes = np.array([position[label] for label in named])[codes]
    return LabelledArrays(path, member.filename, shape, dtype, unique, codes)


def _choose(members: Mapping[str, zipfile.ZipInfo], names: Sequence[str], what: str, path: Path) -> zipfile.ZipInfo:
    for name in names:
        if name in members:
            return members[name]
    found = ", ".join(sorted(members)) or "no arrays"
    raise CircleError(f"{printable(path)}: holds {printable(found)}; expected {what} as one of {', '.join(names)}")


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = npy_format.read_magic(file)
    if version == (1, 0):
        return npy_format.read_array_header_1_0(file)
    if version == (2, 0):
        return npy_format.read_array_header_2_0(file)
    # Version 3 exists for records with field names in Unicode, which are neither images nor labels.
    raise ValueError(f"npy format {version[0]}.{version[1]}")


def _check_header(file: IO[bytes], member: zipfile.ZipInfo, path: Path) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """Shape, order, type and bytes of an array, before any memory is spent on it."""
    shape, fortran_order, dtype = _header(file)
    where = f"{printable(path)}: {printable(member.filename)}"
    if dtype.hasobject:
        raise CircleError(f"{where} holds Python objects, which would need unpickling; expected a plain array")
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or file.tell() + size != member.file_size:
        raise CircleError(
            f"{where} has {member.file_size - file.tell()} bytes; expected {size} for shape {list(shape)}"
        )
    return shape, fortran_order, dtype, size


def _check_images(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> tuple[tuple[int, ...], np.dtype]:
    with archive.open(member) as file:
        shape, fortran_order, dtype, size = _check_header(file, member, path)
    where = f"{printable(path)}: {printable(member.filename)}"
    if len(shape) not in (3, 4) or size == 0:
        raise CircleError(f"{where} has shape {list(shape)}; expected [N, height, width] or [..., channels]")
    if fortran_order:
        # Its rows lie scattered over the whole file, so that they cannot be streamed.
        raise CircleError(f"{where} is in Fortran order; expected numpy.ascontiguousarray of it")
    if not (dtype.kind == "f" or dtype in (np.dtype(bool), np.uint8) or dtype.newbyteorder("=") == np.uint16):
        raise CircleError(f"{where} is of type {dtype}; expected uint8, bool, uint16 or float in [0, 1]")
    if size // shape[0] > MAXIMUM_BYTES:
        raise CircleError(f"{where} has {size // shape[0]} bytes per image; expected at most {MAXIMUM_BYTES >> 20} MiB")
    return shape, dtype


def _read_whole(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> np.ndarray:
    with archive.open(member) as file:
        shape, fortran_order, dtype, size = _check_header(file, member, path)
        if size > MAXIMUM_BYTES:
            raise CircleError(
                f"{printable(path)}: {printable(member.filename)} has {size} bytes; "
                f"expected at most {MAXIMUM_BYTES >> 20} MiB"
            )
        return np.frombuffer(file.read(size), dtype).reshape(shape, order="F" if fortran_order else "C")


def _strings(values: np.ndarray, what: str, path: Path) -> list[str]:
    if values.ndim != 1 or values.dtype.kind not in "US":
        raise CircleError(
            f"{printable(path)}: {what} is {values.dtype} of shape {list(values.shape)}; expected a list of strings"
        )
    return [value.decode() if isinstance(value, bytes) else value for value in values.tolist()]


def _plain_labels(values: np.ndarray, class_names: list[str] | None, path: Path) -> list[str | int]:
    """Python's own ``int`` or ``str`` for each distinct label."""
    if values.dtype.kind in "US":
        return [*_strings(values, "labels", path)]
    if values.dtype.kind not in "iubf":
        raise CircleError(f"{printable(path)}: labels of type {values.dtype}; expected integers or strings")
    for value in values.tolist():
        if not math.isfinite(value) or value != int(value):
            raise CircleError(f"{printable(path)}: holds the label {value}; expected integers or strings")
    numbers = [int(value) for value in values.tolist()]
    if class_names is None:
        return [*numbers]
    for number in numbers:
        if not 0 <= number < len(class_names):
            raise CircleError(
                f"{printable(path)}: holds the label {number}, class_names has {len(class_names)} names; "
                f"expected labels from 0 to {len(class_names) - 1}"
            )
    return [class_names[number] for number in numbers]
