"""What predictions are made with: the newest heads, computed aside while learning goes on.

Closed forms take a moment (0.4 s for the preset ``fast``), so they are not made after every image. One thread makes
them whenever there is something new; images that come meanwhile wait for the next round together.
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
from circle.predictor import Predictor
from circle.serve.edit_history import LabelledImage
from circle.serve.model_store import ModelStore

_log = logging.getLogger(__name__)
MAX_CURVE_POINTS = 200  # points of the learning curve that are kept


@dataclass(frozen=True)
class Snapshot:
    """A model that predicts and never changes, and how well it does on the images held back."""

    version: int = -1  # of the model store
    epoch: int = 0
    model: Predictor | None = None  # none: nothing was learned
    labels: tuple[Hashable, ...] = ()  # of the columns
    correct: dict[Hashable, int] = field(default_factory=dict)  # held-back images answered rightly
    tested: dict[Hashable, int] = field(default_factory=dict)
    samples: int = 0
    renames: int = 0  # of the model store's, how many are in the labels

    def renamed(self, label: Hashable, new: Hashable) -> Snapshot:
        """The same under another name: no number changes."""
        return replace(
            self,
            labels=tuple(new if each == label else each for each in self.labels),
            correct={new if each == label else each: count for each, count in self.correct.items()},
            tested={new if each == label else each: count for each, count in self.tested.items()},
            renames=self.renames + 1,
        )

    @property
    def accuracy(self) -> float | None:
        total = sum(self.tested.values())
        return sum(self.correct.values()) / total if total else None


class SnapshotUpdater:
    """The thread that keeps ``snapshot`` near the model store; readers take the attribute and are never blocked."""

    def __init__(self, store: ModelStore) -> None:
        self._store = store
        self._condition = threading.Condition()
        self._ended = False
        self._wanted = -1  # the version that somebody waits for
        self.snapshot = Snapshot()
        self.curve: list[tuple[int, float]] = []  # samples learned, accuracy
        self.failure = ""
        self._refresh()
        self._thread = threading.Thread(target=self._run, name="circle-snapshot", daemon=True)
        self._thread.start()

    def notify(self) -> None:
        """Tell that the model store has changed; names follow at once, heads when they are ready."""
        with self._condition, self._store.lock:
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
                self._condition.wait_for(lambda: self._ended or self.snapshot.version < self._store.version)
                if self._ended:
                    return
            started = time.monotonic()
            self._refresh()
            with self._condition:  # half of the time at most, so that those who learn and ask get the rest
                self._condition.wait_for(lambda: self._ended or self._wanted > self.snapshot.version, _pause(started))

    def _refresh(self) -> None:
        store = self._store
        with store.lock:
            version, epoch, renames = store.version, store.epoch, len(store.renames)
            model, held_out = store.model.copy(), list(store.edit_history.held_out.values())
        try:
            made = replace(_make_snapshot(model, held_out), version=version, epoch=epoch, renames=renames)
            self.failure = ""
        except Exception as error:  # a head that cannot be computed must not end the thread that makes the next one
            _log.warning("no new heads: %s", error)
            self.failure = " ".join(str(error).split())[:200]
            old = self.snapshot
            made = replace(old, version=version) if old.epoch == epoch else Snapshot(version, epoch, renames=renames)
        with self._condition, store.lock:
            if epoch == store.epoch:
                self._extend_curve(made)
                self.snapshot = self._with_names(made)
            self._condition.notify_all()

    def _with_names(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot under the names that the classes have now."""
        for label, new in self._store.renames[snapshot.renames :]:
            snapshot = snapshot.renamed(label, new)
        return snapshot

    def _extend_curve(self, made: Snapshot) -> None:
        """Add a point to the learning curve."""
        if made.epoch != self.snapshot.epoch:
            self.curve = []
        if made.accuracy is not None:
            self.curve = [*self.curve, (made.samples, made.accuracy)][-MAX_CURVE_POINTS:]


def _pause(started: float) -> float:
    """Seconds to rest after work that began then."""
    return min(1.0, time.monotonic() - started)


def _make_snapshot(model: CircleClassifier, held_out: Sequence[LabelledImage]) -> Snapshot:
    tested = Counter(example.label for example in held_out)
    if not model.samples_:
        return Snapshot(tested=dict(tested))
    predictor = model.for_prediction()
    labels = tuple(predictor.labels)
    correct: Counter[Hashable] = Counter()
    if held_out:
        best = predictor.probabilities(_features(model, held_out)).argmax(1).tolist()
        correct.update(each.label for each, index in zip(held_out, best, strict=True) if labels[index] == each.label)
    return Snapshot(model=predictor, labels=labels, correct=dict(correct), tested=dict(tested), samples=model.samples_)


def _features(model: CircleClassifier, held_out: Sequence[LabelledImage]) -> list[Tensor]:
    """Features of the held-back images, one tensor [N, size] per group, computed once for each image."""
    new = [example for example in held_out if not example.features]
    if new:
        values = model.features(torch.from_numpy(np.stack([example.pixels for example in new])))
        for index, example in enumerate(new):
            example.features.extend(part[index : index + 1] for part in values)
    return [torch.cat(parts) for parts in zip(*(example.features for example in held_out), strict=True)]
