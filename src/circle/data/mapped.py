"""Arrays of an npz file without loading them: mapped where they lie, or from an unpacked copy without a name."""

from __future__ import annotations

import struct
import tempfile
import zipfile
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy_format

from circle.data.archives import open_zip
from circle.data.arrays import LabelledArrays
from circle.data.guard import printable, reason
from circle.errors import CircleError

_EXPECTED = "an npz file as numpy.savez writes it"
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, then the lengths of the name and of the extra field


def array_names(path: Path) -> set[str]:
    """The names of the arrays in an npz file."""
    with open_zip(path, _EXPECTED) as archive:
        return {name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")}


def map_images(opened: LabelledArrays) -> np.ndarray:
    """The images as a read-only memory map.

    ``numpy.savez`` stores them as they are, so they can be mapped inside the npz file. Those of
    ``numpy.savez_compressed`` are unpacked into a temporary file without a name, which ends with the array.

    Raises:
        CircleError: the checksum does not match, or there is no room for the temporary file.
    """
    path = opened.path
    with open_zip(path, _EXPECTED) as archive:
        member = archive.getinfo(opened.member)
        stored = member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 1
        with archive.open(member) as content:
            if stored:
                while content.read(1 << 22):  # to the end, where zipfile compares the checksum
                    pass
                return np.memmap(path, opened.dtype, "r", _data_offset(path, member), opened.shape)
            with tempfile.TemporaryFile() as file:
                return np.memmap(_unpacked(content, file, path), opened.dtype, "r", _npy_offset(file), opened.shape)


def _unpacked(content: IO[bytes], file: IO[bytes], path: Path) -> IO[bytes]:
    while part := content.read(1 << 22):
        try:
            file.write(part)
        except OSError as error:
            where = tempfile.gettempdir()
            raise CircleError(f"{printable(path)}: cannot be unpacked to {where} ({reason(error)})") from error
    file.flush()
    return file


def _data_offset(path: Path, member: zipfile.ZipInfo) -> int:
    """Where the numbers of a stored array begin in the npz file."""
    with path.open("rb") as file:
        file.seek(member.header_offset)
        _, name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
        file.seek(name + extra, 1)
        return _npy_offset(file, file.tell())


def _npy_offset(file: IO[bytes], start: int = 0) -> int:
    """Where the numbers of an npy file begin, which itself begins at ``start``."""
    file.seek(start)
    version = npy_format.read_magic(file)
    (npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0)(file)
    return file.tell()
