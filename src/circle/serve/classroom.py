"""The model, the session and the journal together: the only place where anything learned changes.

Every change is checked first, then written to the journal and synced, then made; so whatever was acknowledged is on
the disk, and whatever is refused has changed nothing. From time to time a checkpoint writes the model file with all of
it, and begins a new journal.

The model file says which steps of which journal are in it: ``{"identity": ..., "sequence": ...}`` in its header. A
crash between the two files of a checkpoint therefore counts nothing twice: steps up to that number are only for the
session. A model that replaces another has a new identity and names the one it ``follows``, whose journal is obsolete.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from circle.data.sources import Sample
from circle.errors import CircleError
from circle.learner import CircleClassifier
from circle.model_file import save_model
from circle.serve.errors import ConflictError, StorageError
from circle.serve.journal import Frame, Journal
from circle.serve.labels import find_name
from circle.serve.limits import Limits
from circle.serve.recovery import forgotten, journal_path, recover, subtracted
from circle.serve.session import Picture, Session, encode_label, picture_frame
from circle.statistics import check_room

HOLD_EVERY = 5  # one image in so many is held back, chosen by its content: the same image always stands on one side


@dataclass(frozen=True)
class Lesson:
    """One image and the name of its class, as a request gives them."""

    name: str
    pixels: np.ndarray  # uint8 [channels, height, width]
    file: bytes  # what the pixels were decoded from
    hold: bool = False  # whether it may be held back
    group: str = ""

    def picture(self, label: Hashable) -> Picture:
        """The same with the label that the name means, and the digests that images are known by."""
        digest = Sample("image", label, self.file).digest()  # pyright: ignore[reportArgumentType]
        return Picture(label, self.pixels, digest, hashlib.blake2b(self.file, digest_size=16).digest(), self.group)


class Classroom:
    """Changes by one thread at a time; ``lock`` is held while model and session are between two states."""

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
        self.model, self.session, self.notes = found.model, found.session, found.notes
        self._identity = found.identity
        self._follows = found.follows
        self._sequence = found.sequence
        self._damaged = False
        self.warning = ""  # what goes wrong with the files, while it does
        self._journal: Journal | None = None
        self._replace(self.model, self._mark())
        self._journal = Journal.create(journal_path(path), self.session.base(self._identity, self._sequence))

    # -- questions -------------------------------------------------------------------------------------------

    def labels(self) -> list[Hashable]:
        """All classes: those that were learned, and those that are still empty."""
        return list(dict.fromkeys([*self.model._classes(), *self.session.classes, *self.session.held_counts()]))

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
        return self._journal.grown if self._journal else 0

    # -- changes ---------------------------------------------------------------------------------------------

    def teach(self, lessons: Sequence[Lesson]) -> list[str | CircleError]:
        """Learn pictures, or hold them back, in one step; for each what became of it: learned, held, known."""
        outcomes: list[str | CircleError] = []
        taken: list[Picture] = []
        known = self.labels()
        counts = self.counts()
        held = {(picture.label, picture.digest) for picture in self.session.held.values()}
        fresh: set[tuple[Hashable, bytes]] = set()
        for lesson in lessons:
            try:
                picture = lesson.picture(self._room_for(lesson.name, known))
                self._check_shape(picture.pixels)
            except CircleError as error:
                outcomes.append(error)
                continue
            may = lesson.hold
            entry = (picture.label, picture.digest)
            if entry in self.model.ledger_ or entry in fresh or (entry in held and may):
                outcomes.append("known")
                continue
            may = may and counts.get(picture.label, 0) > 0 and picture.content[0] % HOLD_EVERY == 0
            may = may and self.session.may_hold(picture, [each for each in taken if each.held])
            picture = replace(picture, held=may)
            if not picture.held:
                counts[picture.label] = counts.get(picture.label, 0) + 1
            if picture.label not in known:
                known.append(picture.label)
            fresh.add(entry)
            taken.append(picture)
            outcomes.append("held" if picture.held else "learned")
        if taken:
            self._take(taken)
        return outcomes

    def _take(self, taken: list[Picture]) -> None:
        learned = [picture for picture in taken if not picture.held]
        features: list[torch.Tensor] = []
        if learned:
            check_room(self.model.statistics_, [picture.label for picture in learned])
            features = self.model.features(torch.from_numpy(np.stack([picture.pixels for picture in learned])))
        self._write(picture_frame(self._sequence + 1, taken))
        with self._applied():
            if learned:
                self.model.learn_features(features, [picture.label for picture in learned])
            for picture in learned:
                self.model.ledger_.add(picture.label, picture.digest)
            self.session.add(taken)

    def make_class(self, name: str) -> Hashable:
        """Make an empty class."""
        label = find_name(name, self.labels())
        if label in self.labels():
            raise ConflictError(f"class {name!r} is there already")
        self._room_for(name, self.labels())
        self._write(Frame({"sequence": self._sequence + 1, "kind": "class", "label": encode_label(label)}))
        with self._applied():
            self.session.classes[label] = None
        return label

    def rename(self, name: str, to: str) -> Hashable:
        """Give a class another name; nothing is learned anew."""
        label, new = self.existing(name), find_name(to, self.labels())
        if new == label:
            return new
        if new in self.labels():
            raise ConflictError(f"class {to!r} is there already: expected a name that is free")
        step = {"sequence": self._sequence + 1, "kind": "rename", "label": encode_label(label), "to": encode_label(new)}
        self._write(Frame(step))
        with self._applied():
            if label in self.model._classes():
                self.model.rename(label, new)
            self.session.rename(label, new)
            self.renames.append((label, new))
        return new

    def forget(self, name: str) -> bool:
        """Let a class leave; whether the model has no trace of it, because all its images were still at hand.

        The journal holds the images of its lessons, so it is begun anew at once. Where the disk does not allow that,
        the class is gone all the same, and the next checkpoint clears the journal; ``journal_bytes`` tells.
        """
        label = self.existing(name)
        model, exact = forgotten(self.model, self.session, label)
        self._write(Frame({"sequence": self._sequence + 1, "kind": "forget", "label": encode_label(label)}))
        with self._applied():
            self.model = model
            self.session.forget(label)
        with suppress(StorageError):  # it was noted as a warning
            self.checkpoint()
        return exact

    def undo(self) -> list[Picture]:
        """Take the last lesson back, exactly, by subtraction: all pictures of its group that are at hand."""
        lesson = self.session.last_lesson()
        if not lesson:
            raise ConflictError("there is no lesson to undo")
        model = subtracted(self.model, [picture for picture in lesson if not picture.held])
        places = self.session.places(lesson)
        self._write(Frame({"sequence": self._sequence + 1, "kind": "undo", "places": places}))
        with self._applied():
            self.model = model
            self.session.undo(places)
        return lesson

    def merge(self, other: CircleClassifier) -> int:
        """Add what another model has learned; the number of images that both had learned."""
        if len({*self.labels(), *other._classes()}) > self.limits.classes:
            raise ConflictError(f"together more than {self.limits.classes} classes: the server takes no more")
        twice = self.model.ledger_.overlap(other.ledger_)
        if self.model.settings() != other.settings():
            raise ConflictError("models with different settings do not combine")
        merged = self.model + other if self.model._classes() else other.copy()
        self._replace(merged, {**self._mark(), "sequence": self._sequence + 1})
        with self._applied():
            self.model = merged
            self._sequence += 1
        self._begin_journal()
        return twice

    def load(self, other: CircleClassifier) -> None:
        """Go on with another model; images held back and lessons to undo belong to the old one and leave with it."""
        if len(other._classes()) > self.limits.classes:
            raise ConflictError(f"the model has more than {self.limits.classes} classes: the server takes no more")
        identity = secrets.token_hex(16)
        self._replace(other, {"identity": identity, "sequence": 0, "follows": self._identity})
        with self._applied():
            self.model, self.session = other, Session()
            self._identity, self._follows, self._sequence = identity, self._identity, 0
            self.epoch += 1
        self._begin_journal()

    @contextmanager
    def _applied(self) -> Iterator[None]:
        """Make a change that is on the disk already. It cannot fail; if it does, only a restart knows the truth."""
        with self.lock:
            try:
                yield
                for statistics in self.model.statistics_:
                    statistics.flush()  # so that those who only read never have to write
            except BaseException:
                self._damaged = True
                raise
            self.version += 1

    # -- files -----------------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Write the model file with everything learned, and begin a new journal."""
        self._require_whole()
        self._replace(self.model, self._mark())
        self._begin_journal()

    def close(self) -> None:
        """Checkpoint what the journal alone holds, and let go of it."""
        try:
            if self.journal_bytes and not self._damaged:
                self.checkpoint()
        finally:
            if self._journal:
                self._journal.close()

    def _mark(self) -> dict[str, Any]:
        return {"identity": self._identity, "sequence": self._sequence, "follows": self._follows}

    def _replace(self, model: CircleClassifier, mark: dict[str, Any]) -> None:
        """Write the model file; the old one stays, and the model unchanged, where that fails."""
        before = model._journal_mark
        model._journal_mark = mark
        try:
            save_model(model, self.path, for_prediction=False)
        except CircleError as error:
            model._journal_mark = before
            self.warning = str(error)
            raise StorageError(str(error)) from error
        self.warning = ""

    def _begin_journal(self) -> None:
        """Begin a new journal after the model file was written.

        Where that fails, the old journal goes on, for the model file says which of its steps it holds; unless the
        journal is no longer this model's, or no longer at its place. Then nothing is taken until this succeeds.
        """
        assert self._journal is not None
        try:
            journal = Journal.create(journal_path(self.path), self.session.base(self._identity, self._sequence))
        except CircleError as error:
            self.warning = str(error)
            if self._journal.identity != self._identity or not self._journal.is_current():
                self._journal.broken = str(error)
            return
        self._journal.close()
        self._journal = journal

    def _write(self, frame: Frame) -> None:
        """Keep a step; after this it counts."""
        self._require_whole()
        assert self._journal is not None
        if self._journal.broken:
            self.checkpoint()
        self._journal.append(frame)
        self._sequence += 1

    def _require_whole(self) -> None:
        if self._damaged:
            raise StorageError("a lesson could not be finished, but is kept: restart the server")

    # -- checks ----------------------------------------------------------------------------------------------

    def existing(self, name: str) -> Hashable:
        label = find_name(name, self.labels())
        if label not in self.labels():
            raise ConflictError(f"class {name!r} is not in the model")
        return label

    def _room_for(self, name: str, known: Sequence[Hashable]) -> Hashable:
        label = find_name(name, known)
        if label not in known and len(known) >= self.limits.classes:
            raise ConflictError(f"class {name!r}: the server takes {self.limits.classes} classes, and has them")
        return label

    def _check_shape(self, pixels: np.ndarray) -> None:
        image = self.model.image_
        if pixels.shape != (image.channels, image.height, image.width):
            raise ConflictError("another model was loaded while this image was on its way: send it again")
