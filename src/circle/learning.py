"""Teach a model file labelled images: checkpoints, interruption, no image twice."""

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

from circle.data.decode import ImageConfig
from circle.data.folders import check_none_ignored
from circle.data.image_sizes import AUTO, side_for
from circle.data.images import DuplicateFinder, Images, Sample
from circle.data.user_images import open_images, open_unlabelled
from circle.ensemble import IMAGES_PER_TILE
from circle.errors import CircleError, UnreadableImageError, counted
from circle.files import Ledger
from circle.labels import check_one_kind
from circle.learner import CircleClassifier
from circle.presets import list_presets
from circle.presets.forms import family_of, form_note
from circle.registry import resolve
from circle.runtime import container
from circle.statistics import check_room


@dataclass
class LearningProgress:
    """How far one run of :func:`teach` has come, and in the end what came of it.

    Attributes
    ----------
    total
        Images there are.
    learned, known
        Images that were learned, and that had been learned before.
    unreadable
        Why images were skipped, one reason each.
    stopped
        Whether the run was stopped before the end.
    notes
        What the user should know of how the images were read.
    duplicates
        Pictures that are in two classes.
    """

    total: int
    learned: int = 0
    known: int = 0
    unreadable: list[str] = field(default_factory=list)
    stopped: bool = False
    notes: Sequence[str] = ()
    duplicates: DuplicateFinder = field(default_factory=DuplicateFinder)

    @property
    def looked_at(self) -> int:
        return self.learned + self.known + len(self.unreadable)


def teach(
    path: Path,
    images: Images,
    model: CircleClassifier,
    *,
    strict: bool = False,
    checkpoint_seconds: float = 30.0,
    should_stop: Callable[[], bool] = lambda: False,
    report: Callable[[LearningProgress], None] = lambda progress: None,
) -> LearningProgress:
    """Learn all ``images`` that ``model``, the one at ``path`` or a new one, has not learned yet.

    The model is written to ``path`` at the end, when ``should_stop`` says so, and in between at most every
    ``checkpoint_seconds``. Statistics and ledger are in one file that is replaced in one step, so a process killed
    at any moment leaves a model that knows exactly which images it has learned.

    An unreadable image is skipped and counted. With ``strict`` all images are tried before the first is learned: one
    that cannot be read, a file beside them that would be ignored, or a picture that is in two classes is an error that
    leaves the model unchanged.
    """
    image = check_learnable(images, model)
    book = Bookkeeper(model.ledger_, images)
    if strict:
        check_strictly(images, image)
    saved = time.monotonic()
    for batch in _batches(images, book, image, should_stop, report):
        learn_batch(model, [(pixels, sample) for pixels, sample, _ in batch])
        book.add([(sample.label, digest) for _, sample, digest in batch])
        report(book.progress)
        if time.monotonic() - saved >= checkpoint_seconds:
            model.save(path)
            saved, book.unsaved = time.monotonic(), 0
    if book.unsaved:
        model.save(path)
    check_outcome(book.progress, images)
    return book.progress


def suited(model: CircleClassifier, images: Images) -> tuple[CircleClassifier, list[str]]:
    """A new model of the preset's form that suits the images, where the size was left to them, and why, in one line.

    Parameters
    ----------
    model : CircleClassifier
        One that has learned nothing.
    images : Images
        A fixed sample of them is looked at, so that the same images always decide for the same form.
    """
    size = images.typical_size() if model.image_size == AUTO else None
    if size is None:
        return model, []
    family = family_of(resolve("extractor", model.extractor))
    return model.with_form(*size), [form_note(family, *size)]


class Bookkeeper:
    """Which images are new to a model, and what becomes of all of them.

    Parameters
    ----------
    ledger : Ledger
        The model's; images are entered when they are learned.
    images : Images
        All images to learn.

    Attributes
    ----------
    progress : LearningProgress
        What has become of the images so far.
    unsaved : int
        Images learned since the last save; whoever saves sets it to zero.
    """

    def __init__(self, ledger: Ledger, images: Images) -> None:
        self.progress = LearningProgress(len(images), notes=images.notes)
        self.unsaved = 0
        self._ledger = ledger
        self._occurrences: Counter[bytes] = Counter()

    def new_digest(self, label: Hashable, digest: bytes) -> bytes | None:
        """The digest to enter an image under once it is learned; None, and counted, where the model knows it."""
        digest = numbered(digest, self._occurrences)
        if (label, digest) in self._ledger:
            self.progress.known += 1
            return None
        return digest

    def add(self, entries: Sequence[tuple[Hashable, bytes]]) -> None:
        """These images, by label and digest, are learned."""
        for label, digest in entries:
            self._ledger.add(label, digest)
        self.progress.learned += len(entries)
        self.unsaved += len(entries)


def check_learnable(images: Images, model: CircleClassifier) -> ImageConfig:
    """Refuse images that the model cannot learn before any of them is read; the shape they are brought to."""
    known = list(model.classes_) if hasattr(model, "classes_") else []
    check_one_kind([*(label.item() if isinstance(label, np.generic) else label for label in known), *images.classes])
    image = model.input_config()
    if model.image_size == AUTO and not hasattr(model, "image_"):
        size = images.typical_size()
        image = image if size is None else image.replace(height=side_for(*size), width=side_for(*size))
    check_room(model.prepare(image).statistics_, images.classes)
    return image


def check_strictly(images: Images, image: ImageConfig) -> None:
    """Look at everything before anything is learned, and refuse what would be skipped or is in doubt."""
    check_none_ignored(images)
    duplicates = DuplicateFinder()
    for sample in images:
        sample.pixels(image)
        duplicates.add(sample)
    duplicates.check()


def check_outcome(progress: LearningProgress, images: Images) -> None:
    """Whoever had images to learn and could read none wants to know."""
    if not progress.learned and not progress.known and not progress.stopped:
        first = progress.unreadable[0] if progress.unreadable else "no image"
        raise CircleError(
            f"{images.path}: none of {counted(progress.total, 'image')} is readable ({first}); nothing was learned"
        )


def learn_batch(model: CircleClassifier, batch: Sequence[tuple[np.ndarray, Sample]]) -> None:
    """Learn images given as pixels uint8 [C, H, W], with the sample that each comes from."""
    pixels = torch.from_numpy(np.stack([pixels for pixels, _ in batch]))
    model.partial_fit(pixels, [sample.label for _, sample in batch])


def _batches(
    images: Images,
    book: Bookkeeper,
    image: ImageConfig,
    should_stop: Callable[[], bool],
    report: Callable[[LearningProgress], None],
) -> Iterator[list[tuple[np.ndarray, Sample, bytes]]]:
    """Readable images that were not learned yet, a working set at a time."""
    progress = book.progress
    batch: list[tuple[np.ndarray, Sample, bytes]] = []
    for sample in images:
        if should_stop():
            progress.stopped = True
            break
        try:
            digest = book.new_digest(sample.label, sample.digest())
            progress.duplicates.add(sample)
            if digest is None:
                if progress.known % IMAGES_PER_TILE == 0:
                    report(progress)
                continue
            batch.append((sample.pixels(image), sample, digest))
        except UnreadableImageError as error:
            progress.unreadable.append(str(error))
        if len(batch) == IMAGES_PER_TILE:
            yield batch
            batch = []
    if batch:
        yield batch


def numbered(digest: bytes, occurrences: Counter[bytes]) -> bytes:
    """Tell copies of an image apart, so that they count as often as they are given."""
    occurrences[digest] += 1
    number = occurrences[digest]
    return digest if number == 1 else hashlib.blake2b(digest + number.to_bytes(8, "little"), digest_size=16).digest()


def merge_files(inputs: Sequence[Path], output: Path) -> tuple[CircleClassifier, int]:
    """Merge model files into a new one; also the number of images that more than one of them had learned.

    The output may be one of the inputs: its lock is held from before the first is read, so that nothing that others
    teach it meanwhile is lost.
    """
    with container.exclusive(output):
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
        images = open_images(path)
        images = images.subset(np.flatnonzero(images.labels == list(images.classes).index(label)))
    except CircleError:  # no class folders: all images are of the class
        images = open_unlabelled(path)
    except ValueError:
        raise CircleError(f"{path}: no images of class {label!r} in it") from None
    unreadable: list[str] = []  # they were skipped when the class was learned, too
    found = images.readable_batches(model.input_config(), IMAGES_PER_TILE, unreadable.append)
    pixels = [torch.from_numpy(batch) for _, batch in found]
    if not pixels:
        raise CircleError(
            f"{path}: none of {counted(len(images), 'image')} is readable ({unreadable[0]}); nothing was forgotten"
        )
    return torch.cat(pixels)
