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

from circle.errors import CircleError, counted
from circle.learner import CircleClassifier
from circle.runtime import container
from circle.serve.edit_history import EditHistory, LabelledImage, decode_label, images_of_frame
from circle.serve.journal import Frame, read_frames

JOURNAL = "journal"  # what the model file says of the steps that it holds, among the metadata of the model
REPLAY_BATCH = 256  # pictures learned together


@dataclass
class RecoveredState:
    """Model and edit history as they were acknowledged."""

    model: CircleClassifier
    edit_history: EditHistory
    identity: str
    sequence: int
    follows: str | None = None  # the identity whose journal is obsolete
    notes: list[str] = field(default_factory=list)


def journal_path(model: Path) -> Path:
    """Where the journal of a model lies."""
    return model.with_name(f"{model.name}.journal")


def recover(path: Path, new_model: Callable[[], CircleClassifier]) -> RecoveredState:
    """The state that was acknowledged last; a new model where there is neither model nor journal."""
    journal = journal_path(path)
    container.remove_leftovers(journal)
    if not path.exists():
        if journal.exists():
            raise CircleError(f"{path}: no such model file, but {journal.name} exists; expected both or neither")
        model = new_model()
        return RecoveredState(model.prepare(model.input_config()), EditHistory(), secrets.token_hex(16), 0)
    model = CircleClassifier.load(path)
    mark = model.metadata_.get(JOURNAL)
    if not journal.exists():
        return RecoveredState(model, EditHistory(), secrets.token_hex(16), 0)
    frames, torn = read_frames(journal)
    base = frames[0].header
    if mark is not None and mark.get("follows") == base["identity"]:
        return RecoveredState(model, EditHistory(), mark["identity"], mark["sequence"], mark["follows"])
    if mark is None or mark["identity"] != base["identity"] or mark["sequence"] < base["sequence"]:
        raise CircleError(
            f"{journal}: holds changes of another model than {path.name}; move it away to continue without them, or "
            "bring back the model that it belongs to"
        )
    edit_history = EditHistory.from_frame(frames[0], model.image_)
    found = RecoveredState(model, edit_history, base["identity"], mark["sequence"], mark.get("follows"))
    _replay(found, frames[1:], journal)
    if torn:
        found.notes.append(f"{journal.name}: {torn:,} bytes of a change that was never acknowledged were dropped")
    return found


def pending_steps(model: Path, mark: dict[str, Any] | None) -> int:
    """Steps in the journal beside a model file that is marked so, which the file does not hold yet.

    Raises:
        CircleError: a journal that is damaged, or of another model.
    """
    journal = journal_path(model)
    if not journal.exists():
        return 0
    frames, _ = read_frames(journal)
    identity = frames[0].header["identity"]
    if mark is not None and mark.get("follows") == identity:
        return 0  # of the model that this one has replaced
    if mark is None or mark["identity"] != identity:
        raise CircleError(f"{journal}: holds changes of another model than {model.name}")
    return sum(frame.header["sequence"] > mark["sequence"] for frame in frames[1:])


def _replay(found: RecoveredState, frames: Sequence[Frame], journal: Path) -> None:
    """Make the steps again: all of them in the edit history, and in the model those that it does not have yet."""
    included = found.sequence
    waiting: list[LabelledImage] = []
    for frame in frames:
        header = frame.header
        learn = header["sequence"] > included
        try:
            if header["kind"] == "pictures":
                images = images_of_frame(header["pictures"], frame.blob, found.model.image_)
                found.edit_history.add(images)
                waiting += [example for example in images if learn and not example.held_out]
                if len(waiting) >= REPLAY_BATCH:
                    _learn(found.model, waiting)
            else:
                _learn(found.model, waiting)
                _replay_change(found, header, learn=learn)
        except CircleError as error:
            raise CircleError(f"{journal}: step {header['sequence']} does not fit the model ({error})") from error
        found.sequence = max(found.sequence, header["sequence"])
    _learn(found.model, waiting)
    if frames:
        found.notes.append(f"{journal.name}: {counted(len(frames), 'step')} read again")


def _replay_change(found: RecoveredState, header: dict, *, learn: bool) -> None:
    kind, edit_history = header["kind"], found.edit_history
    if kind == "undo":
        # Older journals hold only how many of the last pictures were taken back.
        positions = header["places"] if "places" in header else range(header["pictures"])
        learned = edit_history.undo(positions)
        if learn:
            found.model = without_images(found.model, learned)
        return
    label = decode_label(header["label"])
    if kind == "class":
        edit_history.classes[label] = None
    elif kind == "rename":
        new = decode_label(header["to"])
        edit_history.rename(label, new)
        if learn and label in found.model.classes_.tolist():
            found.model.rename(label, new)
    elif kind == "forget":
        if learn:
            found.model, _ = without_class(found.model, edit_history, label)
        edit_history.forget(label)
    else:
        raise CircleError(f"unknown kind {kind!r}: written by a newer CIRCLE?")


def _learn(model: CircleClassifier, images: list[LabelledImage]) -> None:
    """Learn what is waiting, and empty the list."""
    if images:
        labels = [example.label for example in images]
        model.learn_features(model.features(torch.from_numpy(np.stack([each.pixels for each in images]))), labels)
        for example in images:
            model.ledger_.add(example.label, example.digest)
        images.clear()


def without_images(model: CircleClassifier, images: Sequence[LabelledImage]) -> CircleClassifier:
    """A model that never saw these pictures, bit for bit."""
    result = model.copy()
    if images:
        result.unlearn(
            torch.from_numpy(np.stack([example.pixels for example in images])),
            [example.label for example in images],
        )
        for example in images:
            result.ledger_.discard(example.label, example.digest)
    return result


def without_class(model: CircleClassifier, edit_history: EditHistory, label: Hashable) -> tuple[CircleClassifier, bool]:
    """A model without a class, and whether without a trace of it: if all its images are still in the history."""
    statistics = model.statistics_[0]
    result = model.copy()
    if label not in statistics.classes:
        return result, True
    images = edit_history.learned_images(label)
    if len(images) == int(statistics.counts[statistics.classes.index(label)]):
        # Other images than those learned can only be there if another program has changed the model in between.
        with suppress(CircleError):
            return result.forget(label, torch.from_numpy(np.stack([each.pixels for each in images]))), True
    return result.forget(label), False
