"""Archives unpacked without trust: plain files below one folder, nothing else; and a record of what was unpacked."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, cast

from circle.data.guard import printable, reason
from circle.errors import CircleError

MANIFEST = ".circle.json"


def unpack(archive: Path, folder: Path) -> None:
    """Unpack ``.tar.gz``, ``.zip`` or a single ``.gz`` below ``folder``.

    Raises:
        CircleError: damaged, or with a member that is a link, a device or outside of the folder.
        OSError: no room, or no right to write.
    """
    name = archive.name
    try:
        if archive.stat().st_size == 0:  # to gzip that is an archive of nothing
            raise EOFError("empty")
        if name.endswith(".tar.gz"):
            _untar(archive, folder)
        elif name.endswith(".zip"):
            _unzip(archive, folder)
        elif name.endswith(".gz"):
            with gzip.open(archive) as file:
                _copy(cast("IO[bytes]", file), folder / name.removesuffix(".gz"))
        else:
            raise CircleError(f"{printable(archive)}: expected .tar.gz, .zip or .gz")
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise CircleError(f"{printable(archive)}: damaged archive ({reason(error)}); download it again") from error


def _untar(archive: Path, folder: Path) -> None:
    with gzip.open(archive) as file, tarfile.open(fileobj=file, mode="r:") as members:
        for member in members:
            target = _inside(folder, member.name, archive)
            if member.isdir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            content = members.extractfile(member) if member.isreg() else None
            if content is None:
                raise _refused(archive, member.name)
            _copy(content, target)
        # tarfile takes a damaged header for the end. Only at the real end does gzip compare its checksum.
        while file.read(1 << 20):
            pass


def _unzip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as members:
        for member in members.infolist():
            target = _inside(folder, member.filename, archive)
            if member.is_dir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG):
                raise _refused(archive, member.filename)
            with members.open(member) as content:
                _copy(content, target)


def _inside(folder: Path, name: str, archive: Path) -> Path:
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\\" in name or "\0" in name:
        raise _refused(archive, name)
    return folder.joinpath(*parts)


def _refused(archive: Path, name: str) -> CircleError:
    return CircleError(f"{printable(archive)}: holds {printable(name)!r}; expected plain files inside one folder")


def _copy(content: IO[bytes], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        shutil.copyfileobj(content, file, 1 << 20)


def write_manifest(folder: Path) -> None:
    """Record what a folder holds, for :func:`intact`."""
    (folder / MANIFEST).write_text(json.dumps({"digest": _digest(folder)}), encoding="utf-8")


def unpacked_here(folder: Path) -> bool:
    """Whether a folder is our work, rather than somebody's own."""
    return (folder / MANIFEST).exists()


def intact(folder: Path) -> bool:
    """Whether a folder still holds exactly what was unpacked; nobody knows that of one not unpacked here."""
    if not unpacked_here(folder):
        return True
    try:
        return json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["digest"] == _digest(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _digest(folder: Path) -> str:
    """A hash of all names and contents below a folder."""
    total = hashlib.blake2b(digest_size=16)
    for place, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            path = Path(place, name)
            if path != folder / MANIFEST:
                with path.open("rb") as file:
                    content = hashlib.file_digest(file, "blake2b").digest()
                total.update(repr((str(path.relative_to(folder)), content)).encode(errors="surrogateescape"))
    return total.hexdigest()
