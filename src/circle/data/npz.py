"""Images and labels as arrays in one npz file: streamed in order, or mapped where they lie; never loaded as a whole."""

from __future__ import annotations

import contextlib
import functools
import math
import struct
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy_format

from circle.data.archives import open_zip
from circle.data.decode import MAXIMUM_BYTES, ImageConfig
from circle.data.image_sizes import Size
from circle.data.images import ArrayImages, Label, Sample, digest
from circle.errors import CircleError, counted, printable, reason

IMAGES = ("x", "X", "images", "data", "x_train")
LABELS = ("y", "labels", "targets", "target", "y_train")
CHUNK_BYTES = 4 * 2**20

_EXPECTED = "an npz file as numpy.savez writes it"
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, then the lengths of the name and of the extra field


def array_names(path: Path) -> set[str]:
    """The names of the arrays in an npz file."""
    with open_zip(path, _EXPECTED) as archive:
        return {name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")}


class NpzImages(ArrayImages):
    """An npz file of images and labels, in the order of the file.

    Iterating streams the file. Positions are read from a memory map, which is made when first needed: ``numpy.savez``
    stores the images as they are, so they can be mapped inside the npz file. Those of ``numpy.savez_compressed`` are
    unpacked into a temporary file without a name, which ends with the images.

    Parameters
    ----------
    path
        The file.
    images, labels
        The names under which the two arrays may be found, the first that exists counts. Labels are integers or
        strings; an array ``class_names`` may name the integers.
    image
        The shape that the images are brought to; by default their own.

    Attributes
    ----------
    array_shape, array_dtype
        Of the images, as they are in the file.

    Examples
    --------
    >>> path = Path(tempfile.mkdtemp()) / "two.npz"
    >>> np.savez(path, x=np.zeros((2, 8, 8), np.uint8), y=["cat", "dog"])
    >>> images = NpzImages(path)
    >>> len(images), images.classes, [sample.label for sample in images]
    (2, ['cat', 'dog'], ['cat', 'dog'])
    """

    def __init__(
        self,
        path: Path,
        images: Sequence[str] = IMAGES,
        labels: Sequence[str] = LABELS,
        image: ImageConfig | None = None,
    ) -> None:
        with open_zip(path, _EXPECTED) as archive:
            members = {
                info.filename.removesuffix(".npy"): info
                for info in archive.infolist()
                if info.filename.endswith(".npy")
            }
            member = _choose(members, images, "images", path)
            shape, dtype = _check_images(archive, member, path)
            given = _read_whole(archive, _choose(members, labels, "labels", path), path)
            if given.shape not in ((shape[0],), (shape[0], 1)):
                raise CircleError(
                    f"{printable(path)}: {counted(shape[0], 'image')}, but labels of shape {list(given.shape)}; "
                    "expected one each"
                )
            names = members.get("class_names")
            class_names = None if names is None else _strings(_read_whole(archive, names, path), "class_names", path)
            values, codes = np.unique(given.ravel(), return_inverse=True)
            named = _plain_labels(values, class_names, path)
        # Two numbers may share a name; then they are one class.
        self.classes: Sequence[Label] = sorted(set(named))
        position = {label: index for index, label in enumerate(self.classes)}
        self.labels = np.array([position[label] for label in named], dtype=np.int64)[codes]
        self.path, self._name = path, str(path)
        self.member = member.filename
        self.array_shape, self.array_dtype = shape, dtype
        if image is not None:
            self.image = image

    @functools.cached_property
    def image(self) -> ImageConfig:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Grey or colour with alpha lose the alpha. Found when asked for: not every array is one of pictures."""
        shape = self.array_shape
        found = shape[3] if len(shape) == 4 else 1
        return ImageConfig(height=shape[1], width=shape[2], channels={1: 1, 2: 1, 3: 3, 4: 3}.get(found, found))

    def listing(self) -> str:
        kind = repr((self.array_shape, self.array_dtype.str, self.classes)).encode()
        return digest(kind, self.labels.tobytes())

    def typical_size(self) -> Size | None:
        return self.array_shape[1], self.array_shape[2]

    def rows(self) -> Iterator[np.ndarray]:
        """Each image in the order of the file, ``CHUNK_BYTES`` or one image in memory at a time."""
        shape, dtype = self.array_shape, self.array_dtype
        row_bytes = math.prod(shape[1:]) * dtype.itemsize
        rows_per_chunk = max(1, CHUNK_BYTES // row_bytes)
        with self._opened() as (_, _, file):
            for start in range(0, shape[0], rows_per_chunk):
                count = min(rows_per_chunk, shape[0] - start)
                content = file.read(count * row_bytes)
                chunk = np.frombuffer(content, dtype).reshape(count, *shape[1:])
                yield from map(np.ndarray.copy, chunk)  # a view would keep the whole chunk alive
                del content, chunk  # before the next is read

    def mapped(self) -> np.ndarray:
        """The images as a read-only memory map.

        Raises:
            CircleError: the checksum does not match, or there is no room for the temporary file.
        """
        with self._opened() as (path, member, content):
            if member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 1:
                while content.read(1 << 22):  # to the end, where zipfile compares the checksum
                    pass
                return np.memmap(path, self.array_dtype, "r", _data_offset(path, member), self.array_shape)
            with tempfile.TemporaryFile() as file:
                _unpack(content, file, path)
                return np.memmap(file, self.array_dtype, "r", 0, self.array_shape)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[Path, zipfile.ZipInfo, IO[bytes]]]:
        """The file that the array is in, its entry, and its numbers; refused if it is not what it was."""
        assert self.path is not None
        with open_zip(self.path, _EXPECTED) as archive, archive.open(self.member) as file:
            if _header(file) != (self.array_shape, False, self.array_dtype):
                raise CircleError(f"{printable(self.path)}: changed since it was opened; expected it unchanged")
            yield self.path, archive.getinfo(self.member), file

    @functools.cached_property
    def _array(self) -> np.ndarray:  # pyright: ignore[reportIncompatibleVariableOverride]
        array = self.mapped()
        return array if array.ndim == 4 else array[..., None]

    def _samples(self, positions: np.ndarray) -> Iterator[Sample]:
        if np.all(np.diff(positions) > 0):
            wanted = iter(positions.tolist())
            position = next(wanted, None)
            for number, row in enumerate(self.rows()):
                if number == position:
                    yield Sample(self.name_of(number), self.label(number), row)
                    position = next(wanted, None)
            return
        for position in positions:
            row = self._array[position].reshape(self.array_shape[1:])
            yield Sample(self.name_of(position), self.label(position), row)


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


def _unpack(content: IO[bytes], file: IO[bytes], path: Path) -> None:
    while part := content.read(1 << 22):
        try:
            file.write(part)
        except OSError as error:
            where = tempfile.gettempdir()
            raise CircleError(f"{printable(path)}: cannot be unpacked to {where} ({reason(error)})") from error
    file.flush()


def _data_offset(path: Path, member: zipfile.ZipInfo) -> int:
    """Where the numbers of a stored array begin in the npz file."""
    with path.open("rb") as file:
        file.seek(member.header_offset)
        _, name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
        file.seek(name + extra, 1)
        _header(file)
        return file.tell()
