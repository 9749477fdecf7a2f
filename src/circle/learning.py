"""Teach a model file from a source of labelled images: checkpoints, interruption, no image twice."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from circle import files
from circle.data.decode import ImageConfig
from circle.data.sources import Sample, Source, open_source, open_unlabelled
from circle.ensemble import IMAGES_PER_TILE
from circle.errors import CircleError, UnreadableImageError, counted
from circle.files import Ledger
from circle.labels import check_one_kind
from circle.learner import CircleClassifier
from circle.presets import list_presets
from circle.statistics import check_room


@dataclass
class Lesson:
    """What came of one run of :func:`teach`."""

    total: int
    learned: int = 0
    known: int = 0
    unreadable: list[str] = field(default_factory=list)
    stopped: bool = False

    @property
    def looked_at(self) -> int:
        return self.learned + self.known + len(self.unreadable)


def teach(
    path: Path,
    source: Source,
    model: CircleClassifier,
    *,
    strict: bool = False,
    checkpoint_seconds: float = 30.0,
    should_stop: Callable[[], bool] = lambda: False,
    report: Callable[[Lesson], None] = lambda lesson: None,
) -> Lesson:
    """Learn all images of ``source`` that ``model``, the one at ``path`` or a new one, has not learned yet.

    The model is written to ``path`` at the end, when ``should_stop`` says so, and in between at most every
    ``checkpoint_seconds``. Statistics and ledger are in one file that is replaced in one step, so a process killed
    at any moment leaves a model that knows exactly which images it has learned.

    An unreadable image is skipped and counted; with ``strict`` all images are tried before the first is learned,
    and the first unreadable one is an error that leaves the model unchanged.
    """
    image = check_lesson(source, model)
    book = Bookkeeper(model.ledger_, len(source))
    if strict:
        for sample in source:
            sample.pixels(image)
    saved = time.monotonic()
    for tile in _tiles(source, book, image, should_stop, report):
        learn_tile(model, [(pixels, sample) for pixels, sample, _ in tile])
        book.add([(sample.label, digest) for _, sample, digest in tile])
        report(book.lesson)
        if time.monotonic() - saved >= checkpoint_seconds:
            model.save(path)
            saved, book.unsaved = time.monotonic(), 0
    if book.unsaved:
        model.save(path)
    check_outcome(book.lesson, source)
    return book.lesson


class Bookkeeper:
    """Which images of a source are new to a model, and what becomes of all of them.

    Parameters
    ----------
    ledger : Ledger
        The model's; images are entered when they are learned.
    total : int
        Images in the source.

    Attributes
    ----------
    lesson : Lesson
        What has become of the images so far.
    unsaved : int
        Images learned since the last save; whoever saves sets it to zero.
    """

    def __init__(self, ledger: Ledger, total: int) -> None:
        self.lesson = Lesson(total)
        self.unsaved = 0
        self._ledger = ledger
        self._occurrences: Counter[bytes] = Counter()

    def new_digest(self, label: Hashable, digest: bytes) -> bytes | None:
        """The digest to enter an image under once it is learned; None, and counted, where the model knows it."""
        digest = numbered(digest, self._occurrences)
        if (label, digest) in self._ledger:
            self.lesson.known += 1
            return None
        return digest

    def add(self, entries: Sequence[tuple[Hashable, bytes]]) -> None:
        """These images, by label and digest, are learned."""
        for label, digest in entries:
            self._ledger.add(label, digest)
        self.lesson.learned += len(entries)
        self.unsaved += len(entries)


def check_lesson(source: Source, model: CircleClassifier) -> ImageConfig:
    """Refuse a source that the model cannot learn before any of its images is read; the shape they are brought to."""
    known = list(model.classes_) if hasattr(model, "classes_") else []
    check_one_kind([*(label.item() if isinstance(label, np.generic) else label for label in known), *source.labels])
    image = model.input_config()
    check_room(model.prepare(image).statistics_, source.labels)
    return image


def check_outcome(lesson: Lesson, source: Source) -> None:
    """Whoever had images to learn and could read none wants to know."""
    if not lesson.learned and not lesson.known and not lesson.stopped:
        first = lesson.unreadable[0] if lesson.unreadable else "no image"
        raise CircleError(
            f"{source.path}: none of {counted(lesson.total, 'image')} is readable ({first}); nothing was learned"
        )


def learn_tile(model: CircleClassifier, tile: Sequence[tuple[np.ndarray, Sample]]) -> None:
    """Learn images given as pixels uint8 [C, H, W], with the sample that each comes from."""
    model.partial_fit(torch.from_numpy(np.stack([pixels for pixels, _ in tile])), [sample.label for _, sample in tile])


def _tiles(
    source: Source,
    book: Bookkeeper,
    image: ImageConfig,
    should_stop: Callable[[], bool],
    report: Callable[[Lesson], None],
) -> Iterator[list[tuple[np.ndarray, Sample, bytes]]]:
    """Readable images that were not learned yet, a working set at a time."""
    lesson = book.lesson
    tile: list[tuple[np.ndarray, Sample, bytes]] = []
    for sample in source:
        if should_stop():
            lesson.stopped = True
            break
        try:
            digest = book.new_digest(sample.label, sample.digest())
            if digest is None:
                if lesson.known % IMAGES_PER_TILE == 0:
                    report(lesson)
                continue
            tile.append((sample.pixels(image), sample, digest))
        except UnreadableImageError as error:
            lesson.unreadable.append(str(error))
        if len(tile) == IMAGES_PER_TILE:
            yield tile
            tile = []
    if tile:
        yield tile


def numbered(digest: bytes, occurrences: Counter[bytes]) -> bytes:
    """Tell copies of an image within one source apart, so that they count as often as they are given."""
    occurrences[digest] += 1
    number = occurrences[digest]
    return digest if number == 1 else hashlib.blake2b(digest + number.to_bytes(8, "little"), digest_size=16).digest()


def merge_files(inputs: Sequence[Path], output: Path) -> tuple[CircleClassifier, int]:
    """Merge model files into a new one; also the number of images that more than one of them had learned.

    The output may be one of the inputs: its lock is held from before the first is read, so no lesson is lost between.
    """
    with files.exclusive(output):
        model = CircleClassifier.load(inputs[0])
        # A server's journal lies beside the file that it belongs to, so only that file keeps what was noted of it.
        metadata = model.metadata_ if _are_one(inputs[0], output) else {}
        twice = 0
        for path in inputs[1:]:
            other = CircleClassifier.load(path)
            metadata = other.metadata_ if _are_one(path, output) else metadata
            twice += model.ledger_.overlap(other.ledger_)
            try:
                model.merge(other)
            except CircleError as error:
                raise CircleError(f"{inputs[0]} and {path}: {error}") from error
        model.metadata_ = metadata
        model.save(output)
    return model, twice


def preset_of(model: CircleClassifier) -> str | None:
    """The preset whose extractor, head, groups and members a model has, whatever its seed and image size."""

    def decisive(settings: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in settings.items() if name not in ("seed", "image")}

    has = decisive(model.part_settings())
    for name in list_presets():
        if decisive(CircleClassifier.from_preset(name).part_settings()) == has:
            return name
    return None


def _are_one(one: Path, other: Path) -> bool:
    return other.exists() and one.samefile(other)


def find_label(model: CircleClassifier, text: str) -> Hashable:
    """The class that a word on the command line means: labels may be strings or numbers."""
    for label in model.statistics_[0].classes:
        if str(label) == text:
            return label
    raise CircleError(f"class {text!r} is not in the model; it has {', '.join(map(str, model.classes_[:10]))}")


def new_label(model: CircleClassifier, text: str) -> Hashable:
    """The label that a word on the command line means as a new class: of the type that the model's labels have."""
    kinds = {type(label) for label in model.statistics_[0].classes}
    if not text.strip() or not text.isprintable():
        raise CircleError(f"class {text!r}: expected a name of printable characters")
    if kinds <= {str}:
        return text
    if kinds != {int}:
        raise CircleError(f"class {text!r}: this model's classes are neither words nor whole numbers; expected those")
    try:
        return int(text)
    except ValueError as error:
        raise CircleError(f"class {text!r}: this model's classes are whole numbers; expected one") from error


def class_pixels(path: Path, label: Hashable, model: CircleClassifier) -> torch.Tensor:
    """All images of one class, uint8 [N, C, H, W], from its own folder or from data with a folder per class."""
    try:
        samples: list[Sample] = [sample for sample in open_source(path) if sample.label == label]
    except CircleError:
        samples = list(open_unlabelled(path))
    if not samples:
        raise CircleError(f"{path}: no images of class {label!r} in it")
    image, pixels, reason = model.input_config(), [], ""
    for sample in samples:
        try:
            pixels.append(sample.pixels(image))
        except UnreadableImageError as error:  # it was skipped when the class was learned, too
            reason = reason or str(error)
    if not pixels:
        raise CircleError(
            f"{path}: none of {counted(len(samples), 'image')} is readable ({reason}); nothing was forgotten"
        )
    return torch.from_numpy(np.stack(pixels))
