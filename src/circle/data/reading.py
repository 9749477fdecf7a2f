"""Image files by one string each, also inside zip archives: ``folder/train.zip/cat/1.jpg``.

Worker processes use this file too, so it imports nothing that takes long.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from circle.data import archives, folders
from circle.data.decode import ImageConfig, read_pixels
from circle.data.guard import read_bytes, reason
from circle.errors import UnreadableImageError

_MARK = ".zip/"


def list_files(path: Path) -> tuple[Path, list[str]]:
    """A folder and the sorted names of all images below it; for a zip archive the folder that it is in."""
    if path.is_dir():
        return path, folders.list_images(path)
    return path.parent, [f"{path.name}/{name}" for name in archives.list_images(path)]


@functools.lru_cache(maxsize=64)
def _is_file(path: str) -> bool:
    return Path(path).is_file()


def split_archive(file: str) -> tuple[str, str] | None:
    """The archive and the member that a name means, or nothing if it means a file of its own."""
    position = file.lower().find(_MARK)
    while position >= 0:
        archive, member = file[: position + len(_MARK) - 1], file[position + len(_MARK) :]
        if _is_file(archive):
            return archive, member
        position = file.lower().find(_MARK, position + 1)
    return None


class FileReader:
    """Reads files and members of archives; an archive stays open from its first use."""

    def __init__(self) -> None:
        self._archives: dict[str, _OpenArchive] = {}

    def read(self, file: str) -> bytes:
        inside = split_archive(file)
        if inside is None:
            return read_bytes(Path(file), file)
        archive, member = inside
        if archive not in self._archives:
            self._archives[archive] = _OpenArchive(archive)
        return self._archives[archive].read(member)

    def decode(self, files: Sequence[str], config: ImageConfig, images: np.ndarray) -> None:
        """Fill ``images``, uint8 ``[len(files), height, width, channels]``; the first bad file is an error."""
        for file, image in zip(files, images, strict=True):
            image[:] = read_pixels(self.read(file), config, file).transpose(1, 2, 0)


class _OpenArchive:
    """``archives.read_images`` asked for one name after another, so that the directory is read only once."""

    def __init__(self, path: str) -> None:
        self._wanted: deque[str] = deque()
        self._contents = archives.read_images(Path(path), iter(self._wanted.popleft, None))

    def read(self, member: str) -> bytes:
        self._wanted.append(member)
        content = next(self._contents)
        if isinstance(content, UnreadableImageError):
            raise content
        return content


def file_sizes(root: Path, names: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Bytes of each file, and the checksum where an archive already knows it (else 0)."""
    known: dict[str, dict[str, tuple[int, int]]] = {}
    for name in names:
        file = f"{root}/{name}"
        inside = split_archive(file)
        if inside is None:
            try:
                yield Path(file).stat().st_size, 0
            except OSError as error:
                raise UnreadableImageError(f"{file}: {reason(error)}; expected an image file") from error
            continue
        archive, member = inside
        if archive not in known:
            with archives.open_zip(Path(archive), "a zip archive") as opened:
                known[archive] = {info.filename: (info.file_size, info.CRC) for info in opened.infolist()}
        yield known[archive].get(member, (-1, 0))
