"""What a server finds at its start: the model file, and the steps of the journal that are not in it yet."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from circle import checkpoint
from circle.errors import CircleError
from circle.learner import CircleClassifier
from circle.serve.journal import Frame, read_frames
from circle.serve.session import Picture, Session, decode_label, pictures_of

TILE = 256  # pictures learned together


@dataclass
class Recovered:
    """Model and session as they were acknowledged."""

    model: CircleClassifier
    session: Session
    identity: str
    sequence: int
    follows: str | None = None  # the identity whose journal is obsolete
    notes: list[str] = field(default_factory=list)


def journal_path(model: Path) -> Path:
    """Where the journal of a model lies."""
    return model.with_name(f"{model.name}.journal")


def recover(path: Path, new_model: Callable[[], CircleClassifier]) -> Recovered:
    """The state that was acknowledged last; a new model where there is neither model nor journal."""
    journal = journal_path(path)
    checkpoint.remove_leftovers(journal)
    if not path.exists():
        if journal.exists():
            raise CircleError(f"{path}: no such model file, but {journal.name} is there; expected both or neither")
        model = new_model()
        return Recovered(model.prepare(model.input_config()), Session(), secrets.token_hex(16), 0)
    model = CircleClassifier.load(path)
    try:
        model._require_learning()
    except CircleError as error:
        raise CircleError(f"{path}: {error}") from error
    mark = model._journal_mark
    if not journal.exists():
        return Recovered(model, Session(), secrets.token_hex(16), 0)
    frames, torn = read_frames(journal)
    base = frames[0].head
    if mark is not None and mark.get("follows") == base["identity"]:
        return Recovered(model, Session(), mark["identity"], mark["sequence"], mark["follows"])
    if mark is None or mark["identity"] != base["identity"] or mark["sequence"] < base["sequence"]:
        raise CircleError(
            f"{journal}: holds lessons of another model than {path.name}; move it away to go on without them, or bring "
            "back the model that it belongs to"
        )
    session = Session.from_base(frames[0], model.image_)
    found = Recovered(model, session, base["identity"], mark["sequence"], mark.get("follows"))
    _replay(found, frames[1:], journal)
    if torn:
        found.notes.append(f"{journal.name}: {torn:,} bytes of a lesson that was never acknowledged were dropped")
    return found


def waiting_steps(model: Path, mark: dict[str, Any] | None) -> int:
    """Steps in the journal beside a model file that is marked so, which the file does not hold yet.

    Raises:
        CircleError: a journal that is damaged, or of another model.
    """
    journal = journal_path(model)
    if not journal.exists():
        return 0
    frames, _ = read_frames(journal)
    identity = frames[0].head["identity"]
    if mark is not None and mark.get("follows") == identity:
        return 0  # of the model that this one has replaced
    if mark is None or mark["identity"] != identity:
        raise CircleError(f"{journal}: holds lessons of another model than {model.name}")
    return sum(frame.head["sequence"] > mark["sequence"] for frame in frames[1:])


def _replay(found: Recovered, frames: Sequence[Frame], journal: Path) -> None:
    """Make the steps again: all of them in the session, and in the model those that it does not have yet."""
    included = found.sequence
    waiting: list[Picture] = []
    for frame in frames:
        head = frame.head
        learn = head["sequence"] > included
        try:
            if head["kind"] == "pictures":
                pictures = pictures_of(head["pictures"], frame.blob, found.model.image_)
                found.session.add(pictures)
                waiting += [picture for picture in pictures if learn and not picture.held]
                if len(waiting) >= TILE:
                    _learn(found.model, waiting)
            else:
                _learn(found.model, waiting)
                _change(found, head, learn=learn)
        except CircleError as error:
            raise CircleError(f"{journal}: step {head['sequence']} does not fit the model ({error})") from error
        found.sequence = max(found.sequence, head["sequence"])
    _learn(found.model, waiting)
    if frames:
        found.notes.append(f"{journal.name}: {len(frames):,} steps read again")


def _change(found: Recovered, head: dict, *, learn: bool) -> None:
    kind, session = head["kind"], found.session
    if kind == "undo":
        # Older journals hold only how many of the last pictures were taken back.
        places = head["places"] if "places" in head else range(head["pictures"])
        learned = session.undo(places)
        if learn:
            found.model = subtracted(found.model, learned)
        return
    label = decode_label(head["label"])
    if kind == "class":
        session.classes[label] = None
    elif kind == "rename":
        new = decode_label(head["to"])
        session.rename(label, new)
        if learn and label in found.model._classes():
            found.model.rename(label, new)
    elif kind == "forget":
        if learn:
            found.model, _ = forgotten(found.model, session, label)
        session.forget(label)
    else:
        raise CircleError(f"unknown kind {kind!r}: written by a newer CIRCLE?")


def _learn(model: CircleClassifier, pictures: list[Picture]) -> None:
    """Learn what is waiting, and empty the list."""
    if pictures:
        labels = [picture.label for picture in pictures]
        model.learn_features(model.features(torch.from_numpy(np.stack([each.pixels for each in pictures]))), labels)
        for picture in pictures:
            model.ledger_.add(picture.label, picture.digest)
        pictures.clear()


def subtracted(model: CircleClassifier, pictures: Sequence[Picture]) -> CircleClassifier:
    """A model that never saw these pictures, bit for bit."""
    result = model.copy()
    if pictures:
        result.unlearn(
            torch.from_numpy(np.stack([picture.pixels for picture in pictures])),
            [picture.label for picture in pictures],
        )
        for picture in pictures:
            result.ledger_.discard(picture.label, picture.digest)
    return result


def forgotten(model: CircleClassifier, session: Session, label: Hashable) -> tuple[CircleClassifier, bool]:
    """A model without a class, and whether without a trace of it: if all its images are still in the history."""
    statistics = model.statistics_[0]
    result = model.copy()
    if label not in statistics.classes:
        return result, True
    pictures = session.learned_pictures(label)
    if len(pictures) == int(statistics.counts[statistics.classes.index(label)]):
        # Other images than those learned can only be there if another program has changed the model in between.
        with suppress(CircleError):
            return result.forget(label, torch.from_numpy(np.stack([each.pixels for each in pictures]))), True
    return result.forget(label), False
