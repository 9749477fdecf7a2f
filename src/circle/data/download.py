"""Where data sets are kept, and how they get there: fetched, checked, unpacked, and in place whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import json
import os
import shutil
import stat
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from circle.config import check_names
from circle.errors import CircleError, printable, reason

MANIFEST = ".circle.json"
IMAGENET = "CIRCLE_IMAGENET"  # the variable that says where ImageNet is

_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_OMNIGLOT = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/"


@dataclass(frozen=True)
class Download:
    """A data set's official files (URL: checksum), and names under which people keep it unpacked."""

    files: dict[str, str]
    also: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        return [url.rpartition("/")[2] for url in self.files]


DOWNLOADS = {
    "cifar100": Download(
        {"https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz": "md5:03b5dce01913d631647c71ecec9e9cb8"},
        also=("cifar-100-binary",),
    ),
    "tinyimagenet": Download(
        {"http://cs231n.stanford.edu/tiny-imagenet-200.zip": "md5:90528d7ca1a48142e341f4ef8d21d0de"},
        also=("tiny-imagenet-200",),
    ),
    "fashion_mnist": Download(
        {
            f"{_FASHION}train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            f"{_FASHION}train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
            f"{_FASHION}t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
            f"{_FASHION}t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
    "omniglot": Download(
        {
            f"{_OMNIGLOT}images_background.zip": "md5:68d2efa1b9178cc56df9314c21c6e718",
            f"{_OMNIGLOT}images_evaluation.zip": "md5:6b91aef0f799c5bb55b94e3f2daec811",
        },
        also=("omniglot.npz",),
    ),
}


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


def whereabouts(name: str) -> tuple[bool, str]:
    """Whether a data set is on this machine, and where it is or how it gets there."""
    if name in DOWNLOADS:
        found = find(name)
        return (False, f"circle data fetch {name}") if found is None else (True, str(found))
    if name == "digits":
        return True, "comes with scikit-learn"
    if name == "folder":
        return False, "--data, a path to your own images"
    folder = os.environ.get(IMAGENET)
    return (True, folder) if folder and Path(folder).is_dir() else (False, f"{IMAGENET} or --data")


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


# --- unpacking ---


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
