"""What predictions are made with: the newest heads, computed aside while learning goes on.

Closed forms take a moment (0.4 s for the preset ``fast``), so they are not made after every lesson. One thread makes
them whenever there is something new; lessons that come meanwhile wait for the next round together.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from circle.learner import CircleClassifier
from circle.serve.classroom import Classroom
from circle.serve.session import Picture

_log = logging.getLogger(__name__)
CURVE = 200  # points of the learning curve that are kept


@dataclass(frozen=True)
class Snapshot:
    """A model that predicts and never changes, and how well it does on the images held back."""

    version: int = -1  # of the classroom
    epoch: int = 0
    model: CircleClassifier | None = None  # none: nothing was learned
    labels: tuple[Hashable, ...] = ()  # of the columns
    right: dict[Hashable, int] = field(default_factory=dict)  # held-back images answered rightly
    tested: dict[Hashable, int] = field(default_factory=dict)
    samples: int = 0
    renames: int = 0  # of the classroom's, how many are in the labels

    def renamed(self, label: Hashable, new: Hashable) -> Snapshot:
        """The same under another name: no number changes."""
        return replace(
            self,
            labels=tuple(new if each == label else each for each in self.labels),
            right={new if each == label else each: count for each, count in self.right.items()},
            tested={new if each == label else each: count for each, count in self.tested.items()},
            renames=self.renames + 1,
        )

    @property
    def accuracy(self) -> float | None:
        total = sum(self.tested.values())
        return sum(self.right.values()) / total if total else None


class Refresher:
    """The thread that keeps ``snapshot`` near the classroom; readers take the attribute and are never blocked."""

    def __init__(self, room: Classroom) -> None:
        self._room = room
        self._condition = threading.Condition()
        self._ended = False
        self._wanted = -1  # the version that somebody waits for
        self.snapshot = Snapshot()
        self.curve: list[tuple[int, float]] = []  # samples learned, accuracy
        self.failure = ""
        self._refresh()
        self._thread = threading.Thread(target=self._run, name="circle-snapshot", daemon=True)
        self._thread.start()

    def changed(self) -> None:
        """Tell that the classroom has changed; names follow at once, heads when they are ready."""
        with self._condition, self._room.lock:
            self.snapshot = self._with_names(self.snapshot)
            self._condition.notify_all()

    def wait(self, version: int, seconds: float) -> bool:
        """Wait until the snapshot holds at least this version."""
        with self._condition:
            self._wanted = max(self._wanted, version)
            self._condition.notify_all()
            return self._condition.wait_for(lambda: self._ended or self.snapshot.version >= version, seconds)

    def close(self) -> None:
        with self._condition:
            self._ended = True
            self._condition.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._ended or self.snapshot.version < self._room.version)
                if self._ended:
                    return
            started = time.monotonic()
            self._refresh()
            with self._condition:  # half of the time at most, so that those who learn and ask get the rest
                self._condition.wait_for(lambda: self._ended or self._wanted > self.snapshot.version, _pause(started))

    def _refresh(self) -> None:
        room = self._room
        with room.lock:
            version, epoch, renames = room.version, room.epoch, len(room.renames)
            model, held = room.model.copy(), list(room.session.held.values())
        try:
            made = replace(_materialised(model, held), version=version, epoch=epoch, renames=renames)
            self.failure = ""
        except Exception as error:  # a head that cannot be computed must not end the thread that makes the next one
            _log.warning("no new heads: %s", error)
            self.failure = " ".join(str(error).split())[:200]
            old = self.snapshot
            made = replace(old, version=version) if old.epoch == epoch else Snapshot(version, epoch, renames=renames)
        with self._condition, room.lock:
            if epoch == room.epoch:
                self._note(made)
                self.snapshot = self._with_names(made)
            self._condition.notify_all()

    def _with_names(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot under the names that the classes have now."""
        for label, new in self._room.renames[snapshot.renames :]:
            snapshot = snapshot.renamed(label, new)
        return snapshot

    def _note(self, made: Snapshot) -> None:
        """Add a point to the learning curve."""
        if made.epoch != self.snapshot.epoch:
            self.curve = []
        if made.accuracy is not None:
            self.curve = [*self.curve, (made.samples, made.accuracy)][-CURVE:]


def _pause(started: float) -> float:
    """Seconds to rest after work that began then."""
    return min(1.0, time.monotonic() - started)


def _materialised(model: CircleClassifier, held: Sequence[Picture]) -> Snapshot:
    tested = Counter(picture.label for picture in held)
    if not model._classes():
        return Snapshot(tested=dict(tested))
    predicting = model.for_prediction()
    labels = tuple(predicting._classes())
    right: Counter[Hashable] = Counter()
    if held:
        best = predicting.probabilities(_features(model, held)).argmax(1).tolist()
        right.update(each.label for each, index in zip(held, best, strict=True) if labels[index] == each.label)
    return Snapshot(model=predicting, labels=labels, right=dict(right), tested=dict(tested), samples=model.samples_)


def _features(model: CircleClassifier, held: Sequence[Picture]) -> list[Tensor]:
    """Features of the held-back images, one tensor [N, size] per group, computed once for each image."""
    new = [picture for picture in held if not picture.features]
    if new:
        values = model.features(torch.from_numpy(np.stack([picture.pixels for picture in new])))
        for index, picture in enumerate(new):
            picture.features.extend(part[index : index + 1] for part in values)
    return [torch.cat(parts) for parts in zip(*(picture.features for picture in held), strict=True)]
