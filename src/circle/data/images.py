"""Labelled images wherever they lie: labels in memory, pixels when they are asked for.

Every command and the benchmark read images through :class:`Images`. What differs between folders, zip archives, npz
files and arrays is how the pixels at some positions are had: one method of each reader.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from circle.data.decode import ImageConfig, read_pixels, to_pixels
from circle.data.image_sizes import Size, picture_size, sampled_positions, typical_size
from circle.errors import CircleError, UnreadableImageError, counted, printable

Label = str | int
HASH_BATCH = 1024  # images of an array whose bytes enter a fingerprint at a time


@dataclass(frozen=True, eq=False)
class Sample:
    """One image as it was found, not decoded yet.

    Attributes
    ----------
    name
        Where it comes from, for messages: a path, or an array's name and position.
    label
        Its class; None where there are no labels.
    content
        A file's bytes, an array, or the reason why there is nothing to read: one broken image must not end the stream
        that it is in, so the reason is raised only when the sample is used.

    Examples
    --------
    >>> sample = Sample("grey", "cat", np.full((9, 9), 7, np.uint8))
    >>> sample.pixels(ImageConfig(height=2, width=2, channels=1)).tolist()
    [[[7, 7], [7, 7]]]
    """

    name: str
    label: Label | None
    content: bytes | np.ndarray | UnreadableImageError

    def pixels(self, image: ImageConfig) -> np.ndarray:
        """uint8 ``[channels, height, width]``, or an :class:`UnreadableImageError`."""
        content = self._readable()
        if isinstance(content, np.ndarray):
            return to_pixels(content, image, self.name)
        return read_pixels(content, image, self.name)

    def size(self) -> Size:
        """Height and width as they are stored, without decoding; or an :class:`UnreadableImageError`."""
        return picture_size(self._readable(), self.name)

    def digest(self) -> bytes:
        """16 bytes that are equal for equal label and content, whatever the name."""
        return self._hashed(self.label)

    def content_digest(self) -> bytes:
        """16 bytes that are equal for equal content, whatever the label."""
        return self._hashed(None)

    def _hashed(self, label: Label | None) -> bytes:
        content = self._readable()
        kind = (content.shape, content.dtype.str) if isinstance(content, np.ndarray) else "bytes"
        total = hashlib.blake2b(repr((label, kind)).encode() + b"\0", digest_size=16)
        total.update(content.tobytes() if isinstance(content, np.ndarray) else content)
        return total.digest()

    def _readable(self) -> bytes | np.ndarray:
        if isinstance(self.content, UnreadableImageError):
            raise UnreadableImageError(str(self.content))
        return self.content


class Images(abc.ABC):
    """Labelled images, read or decoded when asked for; they can be indexed like an array uint8 ``[N, H, W, C]``.

    ``images[3:9]`` and ``images[np.array([5, 0])]`` are pixels, a fresh array each time; iterating yields
    :class:`Sample`, which knows its digest and may turn out to be unreadable. A reader defines ``_read`` and
    ``_fingerprint``, and ``_samples`` where it has more to tell than pixels.

    Attributes
    ----------
    labels
        int64 ``[N]``: for every image the index of its class in ``classes``.
    classes
        The labels themselves, sorted; images without labels are all of the one class None.
    path
        The folder, archive or file that was opened, if it was one.
    notes
        What the user should know of how it was read, a line each: which part of it, what was ignored.
    ignored
        (name, reason) of every file beside the images that was not read.

    Examples
    --------
    >>> images = ArrayImages(np.zeros((4, 8, 8), np.uint8), [0, 1, 0, 1], ImageConfig(height=8, width=8, channels=1))
    >>> len(images), images[1:3].shape, images.shard(1, 2).labels.tolist()
    (4, (2, 8, 8, 1), [1, 1])
    """

    labels: np.ndarray
    path: Path | None = None
    notes: Sequence[str] = ()
    ignored: Sequence[tuple[str, str]] = ()

    dtype = np.dtype(np.uint8)
    ndim = 4

    @functools.cached_property
    def classes(self) -> Sequence[Any]:
        return list(range(int(self.labels.max()) + 1)) if len(self.labels) else []

    @property
    def counts(self) -> dict[Any, int]:
        """The number of images of each class that has any."""
        numbers = np.bincount(self.labels, minlength=len(self.classes)).tolist()
        return {label: number for label, number in zip(self.classes, numbers, strict=True) if number}

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), *self[: min(1, len(self))].shape[1:])

    def __getitem__(self, part: int | slice | Sequence[int] | np.ndarray) -> np.ndarray:
        """uint8 ``[B, height, width, channels]`` of a slice or of positions, in their order; one position: without B.

        Raises:
            CircleError: a position that does not exist, or an image that cannot be read, by its name.
        """
        if isinstance(part, int | np.integer):
            return self._read(self._checked([part]))[0]
        return self._read(self._checked(part))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All of them at once, for methods that need a task in memory."""
        return np.asarray(self[:], dtype=dtype)

    def __iter__(self) -> Iterator[Sample]:
        """Every image, not decoded yet, always in the same order."""
        return self._samples(np.arange(len(self)))

    def label(self, position: int) -> Any:
        """The class of one image, by its name."""
        return self.classes[self.labels[position]]

    def name_of(self, position: int) -> str:
        """Where one image comes from, for messages."""
        return f"{self.path or 'images'}[{position}]"

    def batches(self, positions: np.ndarray, size: int) -> Iterator[np.ndarray]:
        """The images at ``positions`` in their order, ``size`` at a time; the last batch may be smaller."""
        if size < 1:
            raise CircleError(f"batches of {size} images: expected at least 1")
        return self._batches(self._checked(positions), size)

    def readable_batches(
        self,
        image: ImageConfig,
        size: int,
        unreadable: Callable[[str], None],
        positions: np.ndarray | None = None,
        inspect: Callable[[Sample], None] | None = None,
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Positions [B] and pixels uint8 [B, C, H, W] of the images that can be read, up to ``size`` at a time.

        ``unreadable`` is told why, for each of the others; ``inspect`` sees every sample that can be read.
        """
        chosen = np.arange(len(self)) if positions is None else self._checked(positions)
        for numbers, pixels in self._readable(chosen, image, size, unreadable, inspect):
            yield chosen[numbers], pixels

    def subset(self, positions: np.ndarray) -> Subset:
        """Some of the images, by their positions."""
        return Subset(self, positions)

    def shard(self, rank: int, size: int) -> Images:
        """One of ``size`` parts that make up the whole: image i is in that of rank i mod size, at i // size."""
        return self if size == 1 else Subset(self, np.arange(rank, len(self), size))

    @functools.cached_property
    def fingerprint(self) -> str:
        """Equal for equal images and labels, wherever they are kept; other data, or another size, has another one.

        Found when first asked for. Arrays are hashed whole, and so are image files of up to 64 MB in all. Larger sets
        of files are told by names, sizes, labels and an archive's own checksums, because reading a million files
        takes longer than most uses of a cache would save.
        """
        return self._fingerprint()

    def listing(self) -> str:
        """A digest of names and labels in their order, so that two processes know that they see the same images.

        Nothing of the images themselves is read for it.
        """
        names = (self.name_of(position).encode(errors="surrogateescape") for position in range(len(self)))
        return digest(repr(list(self.classes)).encode(), self.labels.tobytes(), *names)

    def typical_size(self) -> Size | None:
        """The height and width that stand for those of all images: of the middle one of a fixed sample of them.

        None where none of the sample can be read.
        """
        sizes: list[Size] = []
        for sample in self._samples(sampled_positions(len(self))):
            with contextlib.suppress(UnreadableImageError):
                sizes.append(sample.size())
        return typical_size(sizes)

    def __repr__(self) -> str:
        where = "" if self.path is None else f" {self.path}:"
        return f"<{type(self).__name__}{where} {counted(len(self), 'image')} of {counted(len(self.classes), 'class')}>"

    @abc.abstractmethod
    def _read(self, positions: np.ndarray) -> np.ndarray: ...

    @abc.abstractmethod
    def _fingerprint(self) -> str: ...

    def _samples(self, positions: np.ndarray) -> Iterator[Sample]:
        for position in positions:
            yield Sample(self.name_of(position), self.label(position), self._read(position[None])[0])

    def _readable(
        self,
        positions: np.ndarray,
        image: ImageConfig,
        size: int,
        unreadable: Callable[[str], None],
        inspect: Callable[[Sample], None] | None,
        /,
    ) -> Iterator[tuple[list[int], np.ndarray]]:
        """As :meth:`readable_batches`, but with numbers into ``positions``."""
        numbers: list[int] = []
        pixels: list[np.ndarray] = []
        for number, sample in enumerate(self._samples(positions)):
            try:
                pixels.append(sample.pixels(image))
                numbers.append(number)
                if inspect is not None:
                    inspect(sample)
            except UnreadableImageError as error:
                unreadable(str(error))
            if len(numbers) == size:
                yield numbers, np.stack(pixels)
                numbers, pixels = [], []
        if numbers:
            yield numbers, np.stack(pixels)

    def _batches(self, positions: np.ndarray, size: int) -> Iterator[np.ndarray]:
        for start in range(0, len(positions), size):
            yield self._read(positions[start : start + size])

    def _checked(self, part: Any) -> np.ndarray:
        """Positions int64 [B] of a slice or a list of positions."""
        if isinstance(part, slice):
            return np.arange(len(self))[part]
        values = np.asarray(part)
        # An empty list is an array of floats to NumPy; a mask of bools would silently become zeros and ones.
        if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
            raise CircleError(f"indices {values.dtype} of shape {list(values.shape)}: expected integers [B]")
        values = values.astype(np.int64)
        wrong = (values < 0) | (values >= len(self))
        if wrong.any():
            raise CircleError(f"index {values[wrong][0]} of {len(self)} images: expected 0 to {len(self) - 1}")
        return values


class Subset(Images):
    """Some images of others, by their positions; may be closed, as a task's images are when the task is over.

    Parameters
    ----------
    source
        The images that these are some of.
    indices
        Their positions in it, for whoever has features of it.
    labels
        Other labels than the source's.
    """

    def __init__(self, source: Images, indices: np.ndarray, labels: np.ndarray | None = None) -> None:
        self._source: Images | None = source
        self._indices = np.asarray(indices, dtype=np.int64)
        self.labels = source.labels[self._indices] if labels is None else np.asarray(labels, dtype=np.int64)
        self.path, self.notes, self.ignored = source.path, source.notes, source.ignored

    @functools.cached_property
    def classes(self) -> Sequence[Any]:
        return self.source.classes

    @property
    def source(self) -> Images:
        """The images that these are some of."""
        if self._source is None:
            raise CircleError("images of a past task are gone: no method may look back")
        return self._source

    @property
    def indices(self) -> np.ndarray:
        """Positions in the source."""
        assert self.source is not None  # refused once it is closed
        return self._indices

    def close(self) -> None:
        """Let go of the source: whoever kept these images finds nothing here."""
        self._source = None

    def name_of(self, position: int) -> str:
        return self.source.name_of(self._indices[position])

    def _readable(self, positions: np.ndarray, *how: Any) -> Iterator[tuple[list[int], np.ndarray]]:
        return self.source._readable(self._indices[positions], *how)

    def _read(self, positions: np.ndarray) -> np.ndarray:
        return self.source[self._indices[positions]]

    def _samples(self, positions: np.ndarray) -> Iterator[Sample]:
        return self.source._samples(self._indices[positions])

    def _batches(self, positions: np.ndarray, size: int) -> Iterator[np.ndarray]:
        return self.source.batches(self._indices[positions], size)

    def _fingerprint(self) -> str:
        return digest(self.source.fingerprint.encode(), self._indices.tobytes(), self.labels.tobytes())


class ArrayImages(Images):
    """Images of one array, in memory or mapped from a file, brought to a shape one by one as asked.

    Images that have the shape already are copied as they are.

    Parameters
    ----------
    array
        ``[N, H, W]`` or ``[N, H, W, C]``; may be a ``numpy.memmap``.
    labels
        The index of each image's class.
    image
        The shape that they are brought to.
    name
        What messages call the array.
    classes
        The labels themselves; 0, 1, 2, ... where not given.
    """

    def __init__(
        self,
        array: np.ndarray,
        labels: Sequence[int] | np.ndarray,
        image: ImageConfig,
        name: str = "array",
        classes: Sequence[Any] | None = None,
    ) -> None:
        self._array = array if array.ndim == 4 else array[..., None]
        self.image = image
        self._name = name
        self.labels = np.array(labels, dtype=np.int64)
        if classes is not None:
            self.classes = classes

    def name_of(self, position: int) -> str:
        return f"{self._name}[{position}]"

    def typical_size(self) -> Size | None:
        return (self._array.shape[1], self._array.shape[2]) if len(self) else None

    def _read(self, positions: np.ndarray) -> np.ndarray:
        rows = self._array[positions]
        image = self.image
        if rows.dtype == np.uint8 and rows.shape[1:] == (image.height, image.width, image.channels):
            return np.ascontiguousarray(rows)
        images = np.empty((len(rows), image.height, image.width, image.channels), np.uint8)
        for pixels, row, position in zip(images, rows, positions, strict=True):
            pixels[:] = to_pixels(row, image, self.name_of(position)).transpose(1, 2, 0)
        return images

    def _samples(self, positions: np.ndarray) -> Iterator[Sample]:
        for position in positions:
            yield Sample(self.name_of(position), self.label(position), self._array[position])

    def _fingerprint(self) -> str:
        array = self._array
        total = hashlib.blake2b(repr((array.shape, array.dtype.str, self.image.to_dict())).encode(), digest_size=16)
        total.update(self.labels.tobytes())
        for start in range(0, len(array), HASH_BATCH):
            total.update(np.ascontiguousarray(array[start : start + HASH_BATCH]).data)
        return total.hexdigest()


@dataclass
class DuplicateFinder:
    """Pictures that are in two classes, found by their content.

    Examples
    --------
    >>> finder = DuplicateFinder()
    >>> for name, label in (("cat/1.png", "cat"), ("dog/7.png", "dog"), ("cat/2.png", "cat")):
    ...     finder.add(Sample(name, label, b"the same picture"))
    >>> finder.message()
    'the same picture in two classes: cat/1.png and dog/7.png'
    """

    pairs: list[tuple[str, str]] = field(default_factory=list)
    _first: dict[bytes, tuple[Label | None, str]] = field(default_factory=dict)

    def add(self, sample: Sample) -> None:
        """Look at one more picture; one that cannot be read is an :class:`UnreadableImageError`."""
        label, name = self._first.setdefault(sample.content_digest(), (sample.label, sample.name))
        if label != sample.label:
            self.pairs.append((name, sample.name))

    def message(self) -> str:
        """One line that names the first few pairs; empty where there are none."""
        if not self.pairs:
            return ""
        shown = [" and ".join(map(printable, pair)) for pair in self.pairs[:3]]
        more = f" and {counted(len(self.pairs) - 3, 'more pair')}" if len(self.pairs) > 3 else ""
        return f"the same picture in two classes: {', '.join(shown)}{more}"

    def check(self) -> None:
        """Refuse them, for whoever wants no doubt about a label."""
        if self.pairs:
            raise CircleError(f"{self.message()}; --strict expects each picture in one class")


def digest(*parts: bytes) -> str:
    """A hash of byte strings that tells where one ends and the next begins."""
    total = hashlib.blake2b(digest_size=16)
    for part in parts:
        total.update(len(part).to_bytes(8, "little"))
        total.update(part)
    return total.hexdigest()


def listed(names: Sequence[str], shown: int = 3) -> str:
    """The first few of many names, for one line."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return printable(", ".join(names[:shown])) + more
