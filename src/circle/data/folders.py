"""Images in folders and zip archives: which files count, which class each belongs to, and what is ignored.

One rule for users' data everywhere: ``<class>/image``, or ``train/<class>/image`` beside ``test/<class>/image`` (or
``val``, ``valid``, ``validation``), perhaps inside folders that merely wrap all others. What lies deeper belongs to
its class folder. Nothing is left out in silence: every file that is not read has its reason.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np

from circle.data.archives import FileReader, file_sizes, first_bytes, members, open_zip
from circle.data.decode import ImageConfig, image_format
from circle.data.images import Images, Sample, listed
from circle.data.workers import Decoders
from circle.errors import CircleError, UnreadableImageError, counted, printable, reason

EXTENSIONS = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".gif", ".bmp", ".webp", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".pfm"),
)
# Pictures to everybody but the decoder.
NO_READER = (
    *(".heic", ".heif", ".avif", ".jxl", ".jp2", ".svg", ".psd", ".ico", ".tga", ".eps", ".pdf", ".dcm"),
    *(".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2"),
)
TABLES = ("labels.csv", "metadata.csv", "annotations.csv", "metadata.jsonl", "labels.tsv")  # that may hold the labels
TEST_SPLITS = ("test", "val", "valid", "validation")  # the first that is there counts
SPLITS = ("train", *TEST_SPLITS)
UNNAMED = ("images", "image", "imgs", "img")  # folders that say that they hold images, but not of what
HIDDEN, EMPTY, NO_FILE = "hidden", "empty", "not a file"
OUTSIDE = "outside the class folders"
FIRST_BYTES = 32
SHOWN_REASONS = 8

Part = Literal["train", "test"]


@dataclass
class Listing:
    """What a folder or zip archive holds.

    Attributes
    ----------
    path
        The folder or archive.
    names
        Images, as names below it, sorted.
    ignored
        (name, reason) of all other files; a hidden folder counts as one.
    recognised
        (name, format) of images whose name does not say that they are.
    """

    path: Path
    names: list[str] = field(default_factory=list)
    ignored: list[tuple[str, str]] = field(default_factory=list)
    recognised: list[tuple[str, str]] = field(default_factory=list)

    def add(self, name: str, start: Callable[[], bytes]) -> None:
        """One file; ``start`` reads its first bytes, and is asked only where the name does not tell."""
        if name.lower().endswith(EXTENSIONS):
            self.names.append(name)
            return
        content = start()
        extension = PurePosixPath(name).suffix.lower() or "without extension"
        known = image_format(content)
        if known is not None:
            self.names.append(name)
            self.recognised.append((name, f"{extension} that is {known}"))
        else:
            note = " (no reader for this format)" if extension in NO_READER else ""
            self.ignored.append((name, f"{extension}{note}" if content or note else EMPTY))

    def files(self) -> tuple[Path, list[str]]:
        """A folder and the images as names below it; for a zip archive the folder that it is in."""
        if self.path.is_dir():
            return self.path, self.names
        return self.path.parent, [f"{self.path.name}/{name}" for name in self.names]

    def below(self, prefix: str) -> Listing:
        """The same for what begins with ``prefix``, which stays part of the names."""
        ignored = [pair for pair in self.ignored if pair[0].startswith(prefix)]
        recognised = [pair for pair in self.recognised if pair[0].startswith(prefix)]
        return Listing(self.path, [name for name in self.names if name.startswith(prefix)], ignored, recognised)

    def summary(self) -> str:
        """One line on what is ignored, and on what is read although its name does not say that it is an image.

        >>> files = {"cat/a.txt": b"tabby", "cat/2.heic": b"...", "cat/IMG_3": bytes([255, 216, 255]), "dog/4": b""}
        >>> listing = Listing(Path("photos"))
        >>> for name, content in files.items():
        ...     listing.add(name, lambda: content)
        >>> listing.summary()
        '3 files ignored: 1 .txt, 1 .heic (no reader for this format), 1 empty; 1 without extension that is JPEG: read'
        """
        lines = [f"{counted(len(self.ignored), 'file')} ignored: {_reasons(self.ignored)}"] if self.ignored else []
        return "; ".join(lines + ([f"{_reasons(self.recognised)}: read"] if self.recognised else []))


def _reasons(pairs: Sequence[tuple[str, str]]) -> str:
    """How many there are of each reason, the most frequent first."""
    counts = Counter(why for _, why in pairs).most_common()
    shown = [f"{number:,} {printable(why)}" for why, number in counts[:SHOWN_REASONS]]
    rest = sum(number for _, number in counts[SHOWN_REASONS:])
    return ", ".join([*shown, f"{rest:,} others"] if rest else shown)


def check_none_ignored(images: Images) -> None:
    """Refuse images beside which files were ignored, for whoever asked to be strict; hidden ones are no doubt."""
    doubtful = [pair for pair in images.ignored if pair[1] != HIDDEN]
    if doubtful:
        raise CircleError(
            f"{printable(images.path or 'images')}: {counted(len(doubtful), 'file')} would be ignored: "
            f"{_reasons(doubtful)}, such as {printable(doubtful[0][0])}; --strict expects images alone"
        )


# --- listing ---


def list_images(path: Path) -> Listing:
    """All files below a folder or in a zip archive, told apart; of the files themselves next to nothing is read.

    Symbolic links are followed, but never in circles. A dangling link with the name of an image counts as one: it is
    reported as unreadable when loaded, rather than silently left out.
    """
    listing = Listing(path)
    if path.is_dir():
        _list_folder(listing)
    else:
        _list_zip(listing)
    listing.names.sort()
    listing.ignored.sort()
    return listing


def is_hidden(name: str) -> bool:
    """Whether a file or folder is hidden, or what macOS leaves in archives."""
    return name.startswith(".") or name == "__MACOSX"


def _list_folder(listing: Listing) -> None:
    path = listing.path
    home = path.resolve()
    for folder in _entries(listing, ""):
        # Once per folder right below the root, not once in all: two classes may link to the same images.
        seen = {home}
        pending = [folder]
        while pending:
            current = pending.pop()
            real = (path / current).resolve()
            if real not in seen:
                seen.add(real)
                pending += reversed(_entries(listing, f"{current}/"))


def _entries(listing: Listing, prefix: str) -> list[str]:
    """Adds the files right inside a folder; the names of its own folders, those that are links last."""
    folder = listing.path / prefix
    folders: list[tuple[bool, str]] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                name = prefix + entry.name
                if is_hidden(entry.name):
                    listing.ignored.append((name, HIDDEN))
                elif _holds(entry, "folder"):
                    folders.append((entry.is_symlink(), name))
                elif entry.is_symlink() or _holds(entry, "file"):
                    listing.add(name, lambda name=name: _start(listing.path / name))
                else:
                    listing.ignored.append((name, NO_FILE))
    except OSError as error:
        raise CircleError(f"{printable(folder)}: {reason(error)}; expected a readable folder") from error
    return [name for _, name in sorted(folders)]


def _holds(entry: os.DirEntry[str], kind: str) -> bool:
    try:
        return entry.is_dir() if kind == "folder" else entry.is_file()
    except OSError:  # a link to itself
        return False


def _start(path: Path) -> bytes:
    try:
        if path.is_file():  # a link may lead to a pipe, which might never end
            with path.open("rb") as file:
                return file.read(FIRST_BYTES)
    except OSError:
        pass
    return b"-"  # not empty, and no image


def _list_zip(listing: Listing) -> None:
    hidden = set()
    with open_zip(listing.path) as archive:
        for name, member in members(archive).items():
            parts = name.split("/")
            place = next((number for number, part in enumerate(parts) if is_hidden(part)), None)
            if place is not None:
                hidden.add("/".join(parts[: place + 1]))
            else:
                empty = member.file_size == 0
                listing.add(name, lambda member=member, empty=empty: b"" if empty else _zip_start(archive, member))
    listing.ignored += [(name, HIDDEN) for name in hidden]


def _zip_start(archive: Any, member: Any) -> bytes:
    return first_bytes(archive, member, FIRST_BYTES) or b"-"


# --- layout ---


@dataclass
class ClassFolders:
    """Images of class folders: (label, name) of each, sorted, and what to tell the user."""

    pairs: list[tuple[str, str]]
    notes: list[str]
    ignored: list[tuple[str, str]]


def find_splits(listing: Listing) -> dict[Part, str]:
    """What the names of the images to learn from and to be tested on begin with; empty where there are no splits.

    One folder of such a name alone may well be a class: a train among cars and ships.
    """
    parts = [name.split("/") for name in listing.names if "/" in name]
    depth = _wrapping(parts)
    found = {part[depth].lower(): part[depth] for part in parts if len(part) > depth + 1}
    splits = {name: found[name] for name in SPLITS if name in found}
    if len(splits) < 2 or not any(len(part) > depth + 2 and part[depth].lower() in splits for part in parts):
        return {}
    top = "/".join([*parts[0][:depth], ""])
    test = next((splits[name] for name in TEST_SPLITS if name in splits), None)
    if "train" not in splits or test is None:
        names = sorted(splits.values())
        place = listing.path / top
        raise CircleError(
            f"{printable(place)}: holds splits ({', '.join(names)}), not classes; expected train and test, or one of "
            f"them: give {printable(place / names[0])}"
        )
    return {"train": f"{top}{splits['train']}/", "test": f"{top}{test}/"}


def _wrapping(parts: list[list[str]]) -> int:
    """How many folders merely wrap all others, as unpacked archives have them."""
    depth = 0
    while parts and all(len(part) > depth + 2 for part in parts) and len({part[depth] for part in parts}) == 1:
        depth += 1
    return depth


def class_folders(listing: Listing, prefix: str = "") -> ClassFolders:
    """The class of every image of a folder or archive, or of the split in it that begins with ``prefix``.

    Raises:
        CircleError: no images, no class folders, or folders and tables that say that the labels are elsewhere.
    """
    listing = listing.below(prefix) if prefix else listing
    where = listing.path / prefix
    names = [name.removeprefix(prefix) for name in listing.names]
    expected = "expected one folder of images per class"
    if not names:
        found = f" ({listing.summary()})" if listing.ignored else ""
        raise CircleError(f"{printable(where)}: no images in it{found}; {expected}")
    parts = [name.split("/") for name in names if "/" in name]
    depth = _wrapping(parts)
    labelled = [part for part in parts if len(part) > depth + 1]
    labels = sorted({part[depth] for part in labelled})
    unnamed = [label for label in labels if label.lower() in UNNAMED]
    if not unnamed and all(label.lower() in SPLITS for label in labels):
        unnamed = labels
    tables = [name.removeprefix(prefix) for name, _ in listing.ignored if name.split("/")[-1].lower() in TABLES]
    if tables and len(labels) - len(unnamed) < 2:
        raise CircleError(
            f"{printable(where)}: holds {counted(len(names), 'image')} and {listed(tables)}; labels are not read from "
            f"tables: {expected}"
        )
    if not parts:
        raise CircleError(f"{printable(where)}: images, but no class folders; {expected}")
    inside = where.joinpath(*parts[0][:depth])
    if unnamed:
        which = "that name says" if len(unnamed) == 1 else "those names say"
        raise CircleError(
            f"{printable(inside)}: holds images in {listed(unnamed)}, but {which} nothing of their class; {expected}"
        )
    ignored = listing.ignored + [(prefix + name, OUTSIDE) for name in names if name.count("/") < depth + 1]
    deep = [part for part in labelled if len(part) > depth + 2]
    notes = [Listing(listing.path, [], ignored, listing.recognised).summary()]
    if deep:
        place, label = printable("/".join(deep[0][depth:-1])), printable(deep[0][depth])
        notes.append(f"{counted(len(deep), 'image')} deeper than a class folder, such as in {place}: taken for {label}")
    pairs = sorted((part[depth], prefix + "/".join(part)) for part in labelled)
    return ClassFolders(pairs, [note for note in notes if note], ignored)


# --- images ---

READ_AHEAD = 3  # batches that the workers may be ahead
BATCH_OF_WORKERS = 64  # images that the workers are asked for at a time
MAX_HASHED_BYTES = 64 * 2**20  # of files that a fingerprint reads; of more it only takes the names and sizes
MAX_DECODED_HERE = 8  # images that are decoded sooner here than by asking the workers


class FileImages(Images):
    """Images that lie in files of their own, in folders or zip archives; decoded when asked for, never kept.

    Parameters
    ----------
    root
        The folder that the names are below; an archive is part of the name, ``photos.zip/cat/1.jpg``.
    names
        The files, in their order.
    labels
        The index of each image's class.
    image
        The shape that they are brought to.
    workers
        Processes that decode; 0: this one does.
    classes
        The labels themselves; 0, 1, 2, ... where not given.
    """

    def __init__(
        self,
        root: Path,
        names: Sequence[str],
        labels: np.ndarray,
        image: ImageConfig,
        workers: int = 0,
        classes: Sequence[Any] | None = None,
    ) -> None:
        self._root = "" if root == Path() else f"{root}/"
        self._names = names
        self.image = image
        self._workers = workers
        self._reader = FileReader()
        self._decoders: Decoders | None = None
        self._lock = threading.Lock()  # one reader and one set of workers, whatever threads ask
        self.labels = np.array(labels, dtype=np.int64)
        if classes is not None:
            self.classes = classes

    def name_of(self, position: int) -> str:
        return self._root + self._names[position]

    def listing(self) -> str:
        digest = hashlib.blake2b(repr(list(self.classes)).encode() + self.labels.tobytes(), digest_size=16)
        for name in self._names:  # not where they lie: that may differ between machines
            digest.update(os.fsencode(name) + b"\0")
        return digest.hexdigest()

    def _samples(self, positions: np.ndarray) -> Iterator[Sample]:
        reader = FileReader()  # of its own, so that it sees the archive as it is now
        try:
            for position in positions:
                name = self.name_of(position)
                try:
                    content: bytes | UnreadableImageError = reader.read(name)
                except UnreadableImageError as error:
                    content = error
                yield Sample(name, self.label(position), content)
        finally:
            reader.close()

    def _parts(self, positions: np.ndarray, size: int) -> Iterator[list[str]]:
        for start in range(0, len(positions), size):
            yield [self.name_of(position) for position in positions[start : start + size]]

    def _read(self, positions: np.ndarray) -> np.ndarray:
        image = self.image
        pixels = np.empty((len(positions), image.height, image.width, image.channels), np.uint8)
        with self._lock:
            if self._workers == 0 or len(positions) <= MAX_DECODED_HERE:
                self._reader.decode([self.name_of(position) for position in positions], image, pixels)
                return pixels
            if self._decoders is None:
                self._decoders = Decoders(image, self._workers)
            parts = self._parts(positions, BATCH_OF_WORKERS)
            for number, batch in enumerate(self._decoders.batches(parts, BATCH_OF_WORKERS, READ_AHEAD)):
                pixels[number * BATCH_OF_WORKERS : (number + 1) * BATCH_OF_WORKERS] = batch
            return pixels

    def _readable(
        self,
        positions: np.ndarray,
        image: ImageConfig,
        size: int,
        unreadable: Callable[[str], None],
        inspect: Callable[[Sample], None] | None,
        /,
    ) -> Iterator[tuple[list[int], np.ndarray]]:
        if not self._workers or image != self.image or inspect is not None:
            yield from super()._readable(positions, image, size, unreadable, inspect)
            return
        for start in range(0, len(positions), size):
            part = positions[start : start + size]
            try:
                found = [(list(range(len(part))), self._read(part).transpose(0, 3, 1, 2))]
            except UnreadableImageError:  # now one by one, to know which
                found = super()._readable(part, image, size, unreadable, inspect)
            for numbers, pixels in found:
                yield [start + number for number in numbers], pixels

    def _batches(self, positions: np.ndarray, size: int) -> Iterator[np.ndarray]:
        if not self._workers:
            yield from super()._batches(positions, size)
            return
        # Workers of their own, because these run ahead and would stand in the way of `_read`.
        with Decoders(self.image, self._workers) as decoders:
            yield from decoders.batches(self._parts(positions, size), size, READ_AHEAD)

    def _fingerprint(self) -> str:
        total = hashlib.blake2b(repr(self.image.to_dict()).encode(), digest_size=16)
        total.update(self.labels.tobytes())
        files = [self._root + name for name in self._names]
        facts = list(file_sizes(files))
        whole = sum(size for size, _ in facts) <= MAX_HASHED_BYTES
        for name, file, (size, checksum) in zip(self._names, files, facts, strict=True):
            total.update(repr((name, size, checksum)).encode(errors="surrogateescape"))
            if whole and not checksum:
                total.update(self._reader.read(file))
        return total.hexdigest()
