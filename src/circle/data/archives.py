"""Images in zip archives, read one member at a time and never unpacked to disk."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from circle.data.folders import is_image_name
from circle.data.guard import MAXIMUM_BYTES, printable, reason
from circle.errors import CircleError, UnreadableImageError

_ENCRYPTED = 1  # bit of the general purpose flags


@contextlib.contextmanager
def open_zip(path: Path, expected: str) -> Iterator[zipfile.ZipFile]:
    """An open archive; whatever goes wrong with it becomes one line that names it."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except CircleError:
        raise
    except Exception as error:  # a damaged directory raises all sorts, from BadZipFile to struct.error
        raise CircleError(f"{printable(path)}: cannot be read ({reason(error)}); expected {expected}") from error


def list_images(path: Path) -> list[str]:
    """Relative names of all images in an archive, sorted."""
    with open_zip(path, "a zip archive") as archive:
        return sorted(_images(archive))


def read_images(path: Path, names: Iterable[str]) -> Iterator[bytes | UnreadableImageError]:
    """The content of each named member, or why it cannot be read; one at a time."""
    with open_zip(path, "a zip archive") as archive:
        images = _images(archive)
        for name in names:
            yield _read(archive, images.get(name), f"{path}/{name}")


def _images(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Members that are images, by their tidied name; of equal names the last counts, as in any unpacker."""
    found = {}
    for member in archive.infolist():
        # Some archivers on Windows write backslashes.
        parts = [part for part in member.filename.replace("\\", "/").split("/") if part not in ("", ".")]
        name = "/".join(parts)
        if not member.is_dir() and is_image_name(name):
            found[name] = member
    return found


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo | None, name: str) -> bytes | UnreadableImageError:
    """One member's bytes; ``zipfile`` never reads more than the size that the member declares."""
    if member is None:
        return UnreadableImageError(f"{printable(name)}: no longer in the archive; expected it unchanged")
    if member.flag_bits & _ENCRYPTED:
        return UnreadableImageError(f"{printable(name)}: encrypted; expected an archive without password")
    if member.file_size > MAXIMUM_BYTES:
        return UnreadableImageError(
            f"{printable(name)}: {member.file_size} bytes; expected at most {MAXIMUM_BYTES >> 20} MiB"
        )
    try:
        return archive.read(member)
    except Exception as error:
        return UnreadableImageError(f"{printable(name)}: damaged ({reason(error)}); expected a whole image")
