"""The model, its edit history and the journal together: the only place where anything learned changes.

Every change is checked first, then written to the journal and synced, then made; so whatever was acknowledged is on
the disk, and whatever is refused has changed nothing. From time to time a checkpoint writes the model file with all of
it, and begins a new journal.

The model file says which steps of which journal are in it: ``{"identity": ..., "sequence": ...}`` in its metadata. A
crash between the two files of a checkpoint therefore counts nothing twice: steps up to that number are only for the
edit history. A model that replaces another has a new identity and names the one it ``follows``, whose journal is
obsolete.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from circle import files
from circle.data.images import Sample
from circle.errors import CircleError, counted
from circle.learner import CircleClassifier
from circle.serve.edit_history import EditHistory, LabelledImage, encode_label, images_frame
from circle.serve.journal import Frame, Journal
from circle.serve.limits import MAX_LABEL_LENGTH, ConflictError, Limits, RequestError, StorageError
from circle.serve.recovery import JOURNAL, journal_path, recover, without_class, without_images
from circle.statistics import check_room

# One image in so many is held back, chosen by its content: the same image always stands on one side.
HOLD_OUT_ONE_IN = 5


@dataclass(frozen=True)
class LearnRequest:
    """One image and the name of its class, as a request gives them."""

    name: str
    pixels: np.ndarray  # uint8 [channels, height, width]
    file: bytes  # what the pixels were decoded from
    hold: bool = False  # whether it may be held back
    group: str = ""

    def example(self, label: Hashable) -> LabelledImage:
        """The same with the label that the name means, and the digests that images are known by."""
        digest = Sample("image", label, self.file).digest()  # pyright: ignore[reportArgumentType]
        return LabelledImage(
            label, self.pixels, digest, hashlib.blake2b(self.file, digest_size=16).digest(), self.group
        )


class ModelStore:
    """Changes by one thread at a time; ``lock`` is held while model and edit history are between two states."""

    def __init__(
        self,
        path: Path,
        new_model: Callable[[], CircleClassifier],
        limits: Limits,
        check: Callable[[CircleClassifier], None] = lambda model: None,
    ) -> None:
        """Find model and journal again as they were acknowledged, or begin; the caller holds the model's lock.

        ``check`` may refuse the model that was found; no file is touched before.
        """
        self.path = path
        self.limits = limits
        self.lock = threading.Lock()
        self.version = 0  # grows with every change
        self.epoch = 0  # grows when another model takes the place of this one
        self.renames: list[tuple[Hashable, Hashable]] = []
        found = recover(path, new_model)
        check(found.model)
        self.model, self.edit_history, self.notes = found.model, found.edit_history, found.notes
        self._identity = found.identity
        self._follows = found.follows
        self._sequence = found.sequence
        self._inconsistent = False
        self.warning = ""  # what goes wrong with the files, while it does
        self._journal: Journal | None = None
        self._save_model(self.model, self._journal_position())
        self._journal = Journal.create(journal_path(path), self.edit_history.to_frame(self._identity, self._sequence))

    # -- questions -------------------------------------------------------------------------------------------

    def labels(self) -> list[Hashable]:
        """All classes: those that were learned, and those that are still empty."""
        return list(
            dict.fromkeys(
                [*self.model.classes_.tolist(), *self.edit_history.classes, *self.edit_history.held_out_counts()]
            )
        )

    def counts(self) -> dict[Hashable, int]:
        """Learned images of each class."""
        statistics = self.model.statistics_[0]
        return dict(zip(statistics.classes, statistics.counts.tolist(), strict=True))

    @property
    def sequence(self) -> int:
        """The number of the last step."""
        return self._sequence

    @property
    def journal_bytes(self) -> int:
        """What the journal has grown by since it was begun."""
        return self._journal.appended_bytes if self._journal else 0

    # -- changes ---------------------------------------------------------------------------------------------

    def learn(self, requests: Sequence[LearnRequest]) -> list[str | CircleError]:
        """Learn pictures, or hold them back, in one step; for each what became of it: learned, held, known."""
        outcomes: list[str | CircleError] = []
        taken: list[LabelledImage] = []
        known = self.labels()
        counts = self.counts()
        held_out = {(example.label, example.digest) for example in self.edit_history.held_out.values()}
        fresh: set[tuple[Hashable, bytes]] = set()
        for learn_request in requests:
            try:
                example = learn_request.example(self._label_within_limit(learn_request.name, known))
                self._check_shape(example.pixels)
            except CircleError as error:
                outcomes.append(error)
                continue
            may = learn_request.hold
            entry = (example.label, example.digest)
            if entry in self.model.ledger_ or entry in fresh or (entry in held_out and may):
                outcomes.append("known")
                continue
            may = may and counts.get(example.label, 0) > 0 and example.content[0] % HOLD_OUT_ONE_IN == 0
            may = may and self.edit_history.can_hold_out(example, [each for each in taken if each.held_out])
            example = replace(example, held_out=may)
            if not example.held_out:
                counts[example.label] = counts.get(example.label, 0) + 1
            if example.label not in known:
                known.append(example.label)
            fresh.add(entry)
            taken.append(example)
            outcomes.append("held" if example.held_out else "learned")
        if taken:
            self._learn_or_hold_out(taken)
        return outcomes

    def _learn_or_hold_out(self, taken: list[LabelledImage]) -> None:
        learned = [example for example in taken if not example.held_out]
        features: list[torch.Tensor] = []
        if learned:
            check_room(self.model.statistics_, [example.label for example in learned])
            features = self.model.features(torch.from_numpy(np.stack([example.pixels for example in learned])))
        self._append(images_frame(self._sequence + 1, taken))
        with self._applying():
            if learned:
                self.model.learn_features(features, [example.label for example in learned])
            for example in learned:
                self.model.ledger_.add(example.label, example.digest)
            self.edit_history.add(taken)

    def create_class(self, name: str) -> Hashable:
        """Make an empty class."""
        label = find_label(name, self.labels())
        if label in self.labels():
            raise ConflictError(f"class {name!r} exists already; expected a name that is free")
        self._label_within_limit(name, self.labels())
        self._append(Frame({"sequence": self._sequence + 1, "kind": "class", "label": encode_label(label)}))
        with self._applying():
            self.edit_history.classes[label] = None
        return label

    def rename(self, name: str, to: str) -> Hashable:
        """Give a class another name; nothing is learned anew."""
        label, new = self.existing_label(name), find_label(to, self.labels())
        if new == label:
            return new
        if new in self.labels():
            raise ConflictError(f"class {to!r} exists already; expected a name that is free")
        step = {"sequence": self._sequence + 1, "kind": "rename", "label": encode_label(label), "to": encode_label(new)}
        self._append(Frame(step))
        with self._applying():
            if label in self.model.classes_.tolist():
                self.model.rename(label, new)
            self.edit_history.rename(label, new)
            self.renames.append((label, new))
        return new

    def forget(self, name: str) -> bool:
        """Let a class leave; whether the model has no trace of it, because all its images were still at hand.

        The journal holds the images of the class, so it is begun anew at once. Where the disk does not allow that,
        the class is gone all the same, and the next checkpoint clears the journal; ``journal_bytes`` tells.
        """
        label = self.existing_label(name)
        model, exact = without_class(self.model, self.edit_history, label)
        self._append(Frame({"sequence": self._sequence + 1, "kind": "forget", "label": encode_label(label)}))
        with self._applying():
            self.model = model
            self.edit_history.forget(label)
        with suppress(StorageError):  # it was noted as a warning
            self.checkpoint()
        return exact

    def undo(self) -> list[LabelledImage]:
        """Take the images learned last back, exactly, by subtraction: all pictures of its group that are at hand."""
        learn_request = self.edit_history.last_edit()
        if not learn_request:
            raise ConflictError("nothing to undo")
        model = without_images(self.model, [example for example in learn_request if not example.held_out])
        positions = self.edit_history.positions(learn_request)
        self._append(Frame({"sequence": self._sequence + 1, "kind": "undo", "places": positions}))
        with self._applying():
            self.model = model
            self.edit_history.undo(positions)
        return learn_request

    def merge(self, other: CircleClassifier) -> int:
        """Add what another model has learned; the number of images that both had learned."""
        self._check_class_limit(len({*self.labels(), *other.classes_.tolist()}))
        twice = self.model.ledger_.overlap(other.ledger_)
        if self.model.settings() != other.settings():
            raise ConflictError("models with different settings do not combine")
        merged = self.model + other if self.model.samples_ else other.copy()
        self._save_model(merged, {**self._journal_position(), "sequence": self._sequence + 1})
        with self._applying():
            self.model = merged
            self._sequence += 1
        self._rotate_journal()
        return twice

    def load(self, other: CircleClassifier) -> None:
        """Continue with another model; images held back and the history belong to the old one and leave with it."""
        self._check_class_limit(len(other.classes_))
        identity = secrets.token_hex(16)
        self._save_model(other, {"identity": identity, "sequence": 0, "follows": self._identity})
        with self._applying():
            self.model, self.edit_history = other, EditHistory()
            self._identity, self._follows, self._sequence = identity, self._identity, 0
            self.epoch += 1
        self._rotate_journal()

    @contextmanager
    def _applying(self) -> Iterator[None]:
        """Make a change that is on the disk already. It cannot fail; if it does, only a restart knows the truth."""
        with self.lock:
            try:
                yield
                for statistics in self.model.statistics_:
                    statistics.flush()  # so that those who only read never have to write
            except BaseException:
                self._inconsistent = True
                raise
            self.version += 1

    # -- files -----------------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Write the model file with everything learned, and begin a new journal."""
        self._require_consistent()
        self._save_model(self.model, self._journal_position())
        self._rotate_journal()

    def close(self) -> None:
        """Checkpoint what the journal alone holds, and let go of it."""
        try:
            if self.journal_bytes and not self._inconsistent:
                self.checkpoint()
        finally:
            if self._journal:
                self._journal.close()

    def _journal_position(self) -> dict[str, Any]:
        return {"identity": self._identity, "sequence": self._sequence, "follows": self._follows}

    def _save_model(self, model: CircleClassifier, mark: dict[str, Any]) -> None:
        """Write the model file; the old one stays, and the model unchanged, where that fails."""
        before = model.metadata_
        model.metadata_ = {**before, JOURNAL: mark}
        try:
            files.save_learner(model, self.path)
        except CircleError as error:
            model.metadata_ = before
            self.warning = str(error)
            raise StorageError(str(error)) from error
        self.warning = ""

    def _rotate_journal(self) -> None:
        """Begin a new journal after the model file was written.

        Where that fails, the old journal goes on, for the model file says which of its steps it holds; unless the
        journal is no longer this model's, or no longer at its place. Then nothing is taken until this succeeds.
        """
        assert self._journal is not None
        try:
            journal = Journal.create(
                journal_path(self.path), self.edit_history.to_frame(self._identity, self._sequence)
            )
        except CircleError as error:
            self.warning = str(error)
            if self._journal.identity != self._identity or not self._journal.is_current():
                self._journal.broken = str(error)
            return
        self._journal.close()
        self._journal = journal

    def _append(self, frame: Frame) -> None:
        """Keep a step; after this it counts."""
        self._require_consistent()
        assert self._journal is not None
        if self._journal.broken:
            self.checkpoint()
        self._journal.append(frame)
        self._sequence += 1

    def _require_consistent(self) -> None:
        if self._inconsistent:
            raise StorageError("a change was recorded but could not be made: restart the server")

    # -- checks ----------------------------------------------------------------------------------------------

    def existing_label(self, name: str) -> Hashable:
        label = find_label(name, self.labels())
        if label not in self.labels():
            raise ConflictError(f"class {name!r} is not in the model")
        return label

    def _label_within_limit(self, name: str, known: Sequence[Hashable]) -> Hashable:
        label = find_label(name, known)
        if label not in known:
            self._check_class_limit(len(known) + 1)
        return label

    def _check_class_limit(self, classes: int) -> None:
        if classes > self.limits.classes:
            raise ConflictError(f"class limit reached ({self.limits.classes}): {counted(classes, 'class')} asked for")

    def _check_shape(self, pixels: np.ndarray) -> None:
        image = self.model.image_
        if pixels.shape != (image.channels, image.height, image.width):
            raise ConflictError("another model was loaded while this image was on its way: send it again")


# -- names of classes as requests give them: text, whatever type the model's labels have


def clean_name(text: object) -> str:
    """A name that can stand in a file, a page and a terminal, or the error that says what it needs.

    >>> clean_name("  Grey  cat ")
    'Grey cat'
    """
    if not isinstance(text, str):
        raise RequestError("label: expected text")
    name = unicodedata.normalize("NFC", " ".join(text.split()))
    if not name or len(name) > MAX_LABEL_LENGTH or not name.isprintable():
        raise RequestError(f"label: expected 1 to {MAX_LABEL_LENGTH} printable characters")
    return name


def find_label(text: object, known: Iterable[Hashable]) -> Hashable:
    """The label that a name means in a model: one that it has, or a new one of the same type."""
    name = clean_name(text)
    kinds: set[type] = set()
    for label in known:
        if str(label) == name:
            return label
        kinds.add(type(label))
    if not kinds or kinds == {str}:
        return name
    if kinds == {int}:
        try:
            return int(name)
        except ValueError as error:
            raise RequestError(f"label {name!r}: this model's classes are whole numbers; expected one") from error
    raise RequestError(f"label {name!r}: not a class of this model, and new ones need text or whole numbers")
