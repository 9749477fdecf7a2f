"""Bounded queues with one thread behind each: the writer, who alone changes anything, and the predictor."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Hashable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from circle.errors import CircleError
from circle.serve.limits import BusyError, ConflictError, StorageError
from circle.serve.model_store import LearnRequest, ModelStore
from circle.serve.snapshot import Snapshot, SnapshotUpdater

_log = logging.getLogger(__name__)

MAX_BATCH = 32  # images in one journal frame, predictions in one batch
CHECKPOINT_JOURNAL_BYTES = 8 * 2**20  # of journal, after which the model file is written
CHECKPOINT_IDLE_SECONDS = 30.0  # after the last image, when nobody is learning
CHECKPOINT_RETRY_SECONDS = 30.0  # after a checkpoint that failed

Job = TypeVar("Job")


class Worker(ABC, Generic[Job]):
    """A thread that takes waiting jobs, several at once where they go together."""

    def __init__(self, name: str, positions: int) -> None:
        self._places = positions
        self._condition = threading.Condition()
        self._waiting: deque[tuple[Job, Future[Any]]] = deque()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> Future[Any]:
        """Have a job done; with all places taken, be told so at once."""
        future: Future[Any] = Future()
        with self._condition:
            if self._ended:
                raise BusyError("the server is shutting down")
            if len(self._waiting) >= self._places:
                raise BusyError(f"{self._places} requests are waiting already: try again in a moment")
            self._waiting.append((job, future))
            self._condition.notify()
        return future

    def close(self) -> None:
        """Take nothing more, finish what waits, and end."""
        with self._condition:
            self._ended = True
            self._condition.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._ended or self._waiting, self.idle_seconds())
                if not self._waiting and self._ended:
                    return
                batch = [self._waiting.popleft()] if self._waiting else []
                while self._waiting and len(batch) < MAX_BATCH and self.can_batch(batch[0][0], self._waiting[0][0]):
                    batch.append(self._waiting.popleft())
            batch = [(job, future) for job, future in batch if future.set_running_or_notify_cancel()]
            try:
                if batch:
                    self.run_batch(batch)
                else:
                    self.on_idle()
            except BaseException as error:
                for _, future in batch:
                    with suppress(Exception):  # some may have their answer already
                        future.set_exception(error)

    def idle_seconds(self) -> float | None:
        """Seconds to wait for a job before :meth:`idle` is called."""
        return None

    @abstractmethod
    def can_batch(self, first: Job, following: Job) -> bool:
        """Whether a waiting job may be done in one step with the first of a batch."""

    @abstractmethod
    def run_batch(self, batch: list[tuple[Job, Future[Any]]]) -> None:
        """Do the jobs of a batch and give each future its result; what is raised becomes the result of all."""

    def on_idle(self) -> None:
        """Called when nothing has come for a while; most workers have nothing to do then."""
        return


class Writer(Worker[Any]):
    """Images to learn, several in one step, and other changes (functions of the model store) one by one, in order."""

    def __init__(self, store: ModelStore, snapshot_updater: SnapshotUpdater, positions: int) -> None:
        self._store = store
        self._snapshot_updater = snapshot_updater
        self._next_checkpoint = 0.0
        self.status = _status_of(store)
        super().__init__("circle-writer", positions)

    def can_batch(self, first: Any, following: Any) -> bool:
        return isinstance(first, LearnRequest) and isinstance(following, LearnRequest)

    def idle_seconds(self) -> float | None:
        return CHECKPOINT_IDLE_SECONDS if self._store.journal_bytes else None

    def run_batch(self, batch: list[tuple[Any, Future[Any]]]) -> None:
        store = self._store
        try:
            if isinstance(batch[0][0], LearnRequest):
                results = store.learn([learn_request for learn_request, _ in batch])
            else:
                results = [batch[0][0](store)]
        finally:
            self._snapshot_updater.notify()
            self.status = _status_of(store)
        for (_, future), result in zip(batch, results, strict=True):
            if isinstance(result, CircleError):
                future.set_exception(result)
            else:
                future.set_result(result)
        if store.journal_bytes > CHECKPOINT_JOURNAL_BYTES:
            self.on_idle()

    def on_idle(self) -> None:
        """Write the model file, so that a restart has little to read again."""
        if not self._store.journal_bytes or time.monotonic() < self._next_checkpoint:
            return
        try:
            self._store.checkpoint()
        except StorageError as error:
            _log.warning("the journal goes on: %s", error)
            self._next_checkpoint = time.monotonic() + CHECKPOINT_RETRY_SECONDS
        self.status = _status_of(self._store)


@dataclass(frozen=True)
class StoreStatus:
    """What everyone may know of the model store after its last change; never changed itself."""

    version: int
    classes: dict[Hashable, tuple[int, int]]  # images learned and held back
    undo: tuple[tuple[Hashable, ...], int]  # classes of the change that would be undone, and its images
    warning: str

    @property
    def samples(self) -> int:
        return sum(learned for learned, _ in self.classes.values())


def _status_of(store: ModelStore) -> StoreStatus:
    counts, held_out, last_edit = store.counts(), store.edit_history.held_out_counts(), store.edit_history.last_edit()
    classes = {label: (counts.get(label, 0), held_out.get(label, 0)) for label in store.labels()}
    labels = tuple(dict.fromkeys(example.label for example in last_edit))
    return StoreStatus(store.version, classes, (labels, len(last_edit)), store.warning)


@dataclass(frozen=True)
class Prediction:
    """Probabilities of one image, by the snapshot that was the newest when it was its turn."""

    snapshot: Snapshot
    probabilities: np.ndarray


class PredictionWorker(Worker[np.ndarray]):
    """Images that wait are predicted together."""

    def __init__(self, snapshot_updater: SnapshotUpdater, positions: int) -> None:
        self._snapshot_updater = snapshot_updater
        super().__init__("circle-predictor", positions)

    def can_batch(self, first: np.ndarray, following: np.ndarray) -> bool:
        return first.shape == following.shape

    def run_batch(self, batch: list[tuple[np.ndarray, Future[Any]]]) -> None:
        snapshot = self._snapshot_updater.snapshot
        if snapshot.model is None:
            raise ConflictError("nothing was learned yet: teach some images first")
        rows = snapshot.model.predict_proba(torch.from_numpy(np.stack([pixels for pixels, _ in batch])))
        for (_, future), row in zip(batch, rows, strict=True):
            future.set_result(Prediction(snapshot, row))
