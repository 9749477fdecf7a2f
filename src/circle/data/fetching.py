"""Where data sets are kept, and how they get there: fetched, checked, unpacked, and in place whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from circle.config import check_names
from circle.data.downloads import DOWNLOADS
from circle.data.guard import printable, reason
from circle.data.unpacking import intact, unpack, unpacked_here, write_manifest
from circle.errors import CircleError


def cache_folder() -> Path:
    """The folder of all data sets: ``CIRCLE_DATA``, or the platform's place for what can be fetched again."""
    if os.environ.get("CIRCLE_DATA"):
        return Path(os.environ["CIRCLE_DATA"]).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "circle"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "circle"


def find(name: str) -> Path | None:
    """Where a data set lies unpacked in the cache folder, if it does."""
    folder = cache_folder()
    with _readable(folder):
        return next((folder / each for each in (name, *DOWNLOADS[name].also) if _holds_something(folder / each)), None)


def _holds_something(path: Path) -> bool:
    """Whether there is a file, or a folder that is more than a folder."""
    return any(path.iterdir()) if path.is_dir() else path.exists()


def locate(name: str, path: Path | str | None = None) -> Path:
    """The folder or file that holds a data set: ``path`` if given, else its place in the cache folder.

    Archives that were put into the cache folder by hand, or a ``path`` that is one, are checked and unpacked
    into the cache folder first.

    Raises:
        CircleError: not there (what to download and where to put it), or an archive that is damaged.
    """
    check_names([name], DOWNLOADS, "data set to download")
    download = DOWNLOADS[name]
    if path is not None:
        path = Path(path).expanduser()
        with _readable(path):
            path.stat()
        # A zip archive of images is read as it is; a tar archive cannot be.
        if not (path.name in download.names and path.name.endswith(".tar.gz")):
            return path
        return _install(name, [path])
    found = find(name)
    if found is not None:
        return found
    by_hand = _by_hand(name)
    if by_hand:
        return _install(name, by_hand)
    raise CircleError(f"{name}: not on this machine: run `circle data fetch {name}`, or {_instruction(name)}")


def fetch(name: str, progress: Any = None) -> Path:
    """Download, check and unpack a data set into the cache folder; one that is there and whole stays as it is.

    ``progress`` is an object with ``total``, ``update``, ``reset`` and ``close``, as pooch describes it.

    Raises:
        CircleError: no connection, a wrong checksum, no room, a folder that cannot be written; nothing is left
            half-written, and the next call begins anew.
    """
    check_names([name], DOWNLOADS, "data set to download")
    download = DOWNLOADS[name]
    found = find(name)
    if found is not None and intact(found):
        return found
    by_hand = _by_hand(name)
    if by_hand:
        return _install(name, by_hand)
    with _exclusive(name) as temporary:
        inside = temporary / "archives"
        for url, checksum in download.files.items():
            _retrieve(name, url, checksum, inside, progress)
        return _put_in_place(name, [inside / archive for archive in download.names], temporary)


def _by_hand(name: str) -> list[Path]:
    """The archives in the cache folder, if all are there."""
    archives = [cache_folder() / archive for archive in DOWNLOADS[name].names]
    with _readable(cache_folder()):
        return archives if all(archive.is_file() for archive in archives) else []


def _install(name: str, archives: list[Path]) -> Path:
    """Check archives that somebody else has put there, and unpack them into the cache folder."""
    target = cache_folder() / name
    if unpacked_here(target) and intact(target):
        return target
    for archive, (url, expected) in zip(archives, DOWNLOADS[name].files.items(), strict=True):
        found = _checksum(archive, expected)
        if found != expected:
            raise CircleError(
                f"{printable(archive)}: {found}, expected {expected}: damaged or another file; download {url} again"
            )
    with _exclusive(name) as temporary:
        return _put_in_place(name, archives, temporary)


def _put_in_place(name: str, archives: list[Path], temporary: Path) -> Path:
    """Unpack beside the target and rename, so that a folder of that name is always complete."""
    target = cache_folder() / name
    if _holds_something(target) and not unpacked_here(target):
        raise CircleError(f"{printable(target)}: in the way, and not from an archive: move it elsewhere, or use it")
    fresh = temporary / "fresh"
    fresh.mkdir()
    for archive in archives:
        unpack(archive, fresh)
    write_manifest(fresh)
    if target.exists():
        target.rename(temporary / "damaged")
    fresh.rename(target)
    return target


def _retrieve(name: str, url: str, checksum: str, folder: Path, progress: Any) -> None:
    try:
        import pooch
        import requests
    except ImportError as error:
        raise CircleError(
            f"{name}: fetching needs pooch: pip install circle-cil[data], or {_instruction(name)}"
        ) from error
    pooch.get_logger().setLevel("ERROR")
    downloader: Any = pooch.HTTPDownloader(progressbar=progress or False, chunk_size=1 << 16)
    try:
        pooch.retrieve(url, checksum, fname=url.rpartition("/")[2], path=folder, downloader=downloader)
    except requests.exceptions.RequestException as error:
        # Before the others: these errors are OSErrors too, and some are ValueErrors.
        raise CircleError(
            f"{name}: cannot be downloaded ({_problem(error)}): try again, or {_instruction(name)}"
        ) from error
    except ValueError as error:  # pooch's word for a checksum that does not match
        raise CircleError(f"{url}: not the expected file ({reason(error)}); nothing was kept") from error


def _problem(error: Any) -> str:
    """In a few words what requests says in many."""
    if error.response is not None:
        return f"the server answers {error.response.status_code}"
    kind = type(error).__name__  # such as ConnectionError, ConnectTimeout, ChunkedEncodingError
    return "the transfer broke off" if kind == "ChunkedEncodingError" else kind


def _instruction(name: str) -> str:
    urls = list(DOWNLOADS[name].files)
    them = "it" if len(urls) == 1 else "them"
    return f"download {' and '.join(urls)} and put {them} into {printable(cache_folder())}"


def _checksum(path: Path, like: str) -> str:
    """The checksum of a file, by the same algorithm as another one."""
    algorithm = like.partition(":")[0]
    with _readable(path), path.open("rb") as file:
        return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"


@contextlib.contextmanager
def _exclusive(name: str) -> Iterator[Path]:
    """A temporary folder in the cache folder, for one process at a time; what killed ones have left is removed."""
    folder = cache_folder()
    temporary = folder / f".{name}.tmp"
    with contextlib.ExitStack() as stack:
        stack.enter_context(_written(name))
        folder.mkdir(parents=True, exist_ok=True)
        # The folder itself is locked: a lock file would stay behind, and removing it is a race of its own.
        descriptor = os.open(folder, os.O_RDONLY)
        stack.callback(os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CircleError(
                f"{name}: another process is fetching into {printable(folder)}; wait for it to end"
            ) from error
        stack.callback(shutil.rmtree, temporary, ignore_errors=True)
        if temporary.exists():
            shutil.rmtree(temporary)
        temporary.mkdir()
        yield temporary


@contextlib.contextmanager
def _written(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CircleError(
            f"{name}: cannot be written to {printable(cache_folder())} ({reason(error)}); nothing was kept: "
            "make room or set CIRCLE_DATA to another folder, then run it again"
        ) from error


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CircleError(f"{printable(path)}: cannot be read ({reason(error)})") from error
