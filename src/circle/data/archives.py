"""Image files by one string each, also inside zip archives, which are never unpacked: ``photos/train.zip/cat/1.jpg``.

Worker processes use this file too, so it imports nothing that takes long.
"""

from __future__ import annotations

import contextlib
import functools
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from circle.data.decode import MAXIMUM_BYTES, ImageConfig, read_bytes, read_pixels
from circle.errors import CircleError, UnreadableImageError, printable, reason

_INSIDE = ".zip/"
_ENCRYPTED = 1  # bit of the general purpose flags


@contextlib.contextmanager
def open_zip(path: Path, expected: str = "a zip archive") -> Iterator[zipfile.ZipFile]:
    """An open archive; whatever goes wrong with it becomes one line that names it."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except CircleError:
        raise
    except Exception as error:  # a damaged directory raises all sorts, from BadZipFile to struct.error
        raise CircleError(f"{printable(path)}: cannot be read ({reason(error)}); expected {expected}") from error


def members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Files in an archive by their tidied name; of equal names the last counts, as in any unpacker."""
    found = {}
    for member in archive.infolist():
        # Some archivers on Windows write backslashes.
        parts = [part for part in member.filename.replace("\\", "/").split("/") if part not in ("", ".")]
        if parts and not member.is_dir():
            found["/".join(parts)] = member
    return found


def first_bytes(archive: zipfile.ZipFile, member: zipfile.ZipInfo, count: int) -> bytes:
    """How a member begins; nothing of one that is encrypted or damaged."""
    try:
        with archive.open(member) as file:
            return file.read(count)
    except Exception:  # whatever is wrong with it, it is not read as an image
        return b""


@functools.lru_cache(maxsize=64)
def _is_file(path: str) -> bool:
    return Path(path).is_file()


def split_archive(file: str) -> tuple[str, str] | None:
    """The archive and the member that a name means, or nothing if it means a file of its own."""
    position = file.lower().find(_INSIDE)
    while position >= 0:
        archive, member = file[: position + len(_INSIDE) - 1], file[position + len(_INSIDE) :]
        if _is_file(archive):
            return archive, member
        position = file.lower().find(_INSIDE, position + 1)
    return None


class FileReader:
    """Reads files and members of archives; an archive stays open from its first use."""

    def __init__(self) -> None:
        self._opened = contextlib.ExitStack()
        self._archives: dict[str, tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]] = {}

    def read(self, file: str) -> bytes:
        """The bytes of one file.

        Raises:
            UnreadableImageError: it is not there, cannot be read, or is too large.
            CircleError: the archive that it is in cannot be read.
        """
        inside = split_archive(file)
        if inside is None:
            return read_bytes(Path(file), file)
        path, name = inside
        if path not in self._archives:
            archive = self._opened.enter_context(open_zip(Path(path)))
            self._archives[path] = archive, members(archive)
        archive, found = self._archives[path]
        return _read_member(archive, found.get(name), file)

    def decode(self, files: Sequence[str], image: ImageConfig, pixels: np.ndarray) -> None:
        """Fill ``pixels``, uint8 ``[len(files), height, width, channels]``; the first bad file is an error."""
        for file, place in zip(files, pixels, strict=True):
            place[:] = read_pixels(self.read(file), image, file).transpose(1, 2, 0)

    def close(self) -> None:
        self._archives.clear()
        self._opened.close()


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo | None, name: str) -> bytes:
    """One member's bytes; ``zipfile`` never reads more than the size that the member declares."""
    if member is None:
        raise UnreadableImageError(f"{printable(name)}: no longer in the archive; expected it unchanged")
    if member.flag_bits & _ENCRYPTED:
        raise UnreadableImageError(f"{printable(name)}: encrypted; expected an archive without password")
    if member.file_size > MAXIMUM_BYTES:
        raise UnreadableImageError(
            f"{printable(name)}: {member.file_size} bytes; expected at most {MAXIMUM_BYTES >> 20} MiB"
        )
    try:
        return archive.read(member)
    except Exception as error:
        raise UnreadableImageError(f"{printable(name)}: damaged ({reason(error)}); expected a whole image") from error


def file_sizes(files: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Bytes of each file, and the checksum where an archive already knows it (else 0)."""
    known: dict[str, dict[str, zipfile.ZipInfo]] = {}
    for file in files:
        inside = split_archive(file)
        if inside is None:
            try:
                yield Path(file).stat().st_size, 0
            except OSError as error:
                raise UnreadableImageError(f"{file}: {reason(error)}; expected an image file") from error
            continue
        path, name = inside
        if path not in known:
            with open_zip(Path(path)) as archive:
                known[path] = members(archive)
        member = known[path].get(name)
        yield (-1, 0) if member is None else (member.file_size, member.CRC)
