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
from circle.serve.classroom import Classroom, Lesson
from circle.serve.errors import BusyError, ConflictError, StorageError
from circle.serve.snapshot import Refresher, Snapshot

_log = logging.getLogger(__name__)

TOGETHER = 32  # lessons in one journal frame, predictions in one batch
CHECKPOINT_BYTES = 8 * 2**20  # of journal, after which the model file is written
CHECKPOINT_SECONDS = 30.0  # after the last lesson, when nobody is learning
RETRY_SECONDS = 30.0  # after a checkpoint that failed

Job = TypeVar("Job")


class Worker(ABC, Generic[Job]):
    """A thread that takes waiting jobs, several at once where they go together."""

    def __init__(self, name: str, places: int) -> None:
        self._places = places
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
                raise BusyError("the server is ending")
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
                self._condition.wait_for(lambda: self._ended or self._waiting, self.patience())
                if not self._waiting and self._ended:
                    return
                batch = [self._waiting.popleft()] if self._waiting else []
                while self._waiting and len(batch) < TOGETHER and self.together(batch[0][0], self._waiting[0][0]):
                    batch.append(self._waiting.popleft())
            batch = [(job, future) for job, future in batch if future.set_running_or_notify_cancel()]
            try:
                if batch:
                    self.do(batch)
                else:
                    self.idle()
            except BaseException as error:
                for _, future in batch:
                    with suppress(Exception):  # some may have their answer already
                        future.set_exception(error)

    def patience(self) -> float | None:
        """Seconds to wait for a job before :meth:`idle` is called."""
        return None

    @abstractmethod
    def together(self, first: Job, following: Job) -> bool:
        """Whether a waiting job may be done in one step with the first of a batch."""

    @abstractmethod
    def do(self, batch: list[tuple[Job, Future[Any]]]) -> None:
        """Do the jobs of a batch and give each future its result; what is raised becomes the result of all."""

    def idle(self) -> None:
        """Called when nothing has come for a while; most workers have nothing to do then."""
        return


class Writer(Worker[Any]):
    """Lessons, several in one step, and other changes (functions of the classroom) one by one, in order."""

    def __init__(self, room: Classroom, refresher: Refresher, places: int) -> None:
        self._room = room
        self._refresher = refresher
        self._not_before = 0.0
        self.published = _published(room)
        super().__init__("circle-writer", places)

    def together(self, first: Any, following: Any) -> bool:
        return isinstance(first, Lesson) and isinstance(following, Lesson)

    def patience(self) -> float | None:
        return CHECKPOINT_SECONDS if self._room.journal_bytes else None

    def do(self, batch: list[tuple[Any, Future[Any]]]) -> None:
        room = self._room
        try:
            if isinstance(batch[0][0], Lesson):
                results = room.teach([lesson for lesson, _ in batch])
            else:
                results = [batch[0][0](room)]
        finally:
            self._refresher.changed()
            self.published = _published(room)
        for (_, future), result in zip(batch, results, strict=True):
            if isinstance(result, CircleError):
                future.set_exception(result)
            else:
                future.set_result(result)
        if room.journal_bytes > CHECKPOINT_BYTES:
            self.idle()

    def idle(self) -> None:
        """Write the model file, so that a restart has little to read again."""
        if not self._room.journal_bytes or time.monotonic() < self._not_before:
            return
        try:
            self._room.checkpoint()
        except StorageError as error:
            _log.warning("the journal goes on: %s", error)
            self._not_before = time.monotonic() + RETRY_SECONDS
        self.published = _published(self._room)


@dataclass(frozen=True)
class Published:
    """What everyone may know of the classroom after its last change; never changed itself."""

    version: int
    classes: dict[Hashable, tuple[int, int]]  # images learned and held back
    undo: tuple[tuple[Hashable, ...], int]  # classes of the last lesson, and how many pictures it has
    warning: str

    @property
    def samples(self) -> int:
        return sum(learned for learned, _ in self.classes.values())


def _published(room: Classroom) -> Published:
    counts, held, lesson = room.counts(), room.session.held_counts(), room.session.last_lesson()
    classes = {label: (counts.get(label, 0), held.get(label, 0)) for label in room.labels()}
    labels = tuple(dict.fromkeys(picture.label for picture in lesson))
    return Published(room.version, classes, (labels, len(lesson)), room.warning)


@dataclass(frozen=True)
class Prediction:
    """Probabilities of one image, by the snapshot that was the newest when it was its turn."""

    snapshot: Snapshot
    probabilities: np.ndarray


class Predictor(Worker[np.ndarray]):
    """Images that wait are predicted together."""

    def __init__(self, refresher: Refresher, places: int) -> None:
        self._refresher = refresher
        super().__init__("circle-predictor", places)

    def together(self, first: np.ndarray, following: np.ndarray) -> bool:
        return first.shape == following.shape

    def do(self, batch: list[tuple[np.ndarray, Future[Any]]]) -> None:
        snapshot = self._refresher.snapshot
        if snapshot.model is None:
            raise ConflictError("nothing was learned yet: teach some images first")
        rows = snapshot.model.predict_proba(torch.from_numpy(np.stack([pixels for pixels, _ in batch])))
        for (_, future), row in zip(batch, rows, strict=True):
            future.set_result(Prediction(snapshot, row))
