"""The parts of a server together: model store, writer, snapshots, predictor, decoders."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from circle.data.decode import ImageConfig
from circle.data.workers import ContentDecoder
from circle.learner import CircleClassifier
from circle.serve.limits import BusyError, ByteBudget, Limits
from circle.serve.model_store import LearnRequest, ModelStore
from circle.serve.model_upload import read_upload
from circle.serve.recovery import JOURNAL
from circle.serve.snapshot import SnapshotUpdater
from circle.serve.workers import Prediction, PredictionWorker, Writer

SNAPSHOT_SECONDS = 20.0  # that a change waits at most for the predictions to follow it
TRANSFER_SECONDS = 10.0  # that a download or upload of a model waits at most for the one before it


class Service:
    """Everything behind the API; one per model file, whose lock the caller holds."""

    def __init__(
        self,
        path: Path,
        new_model: Callable[[], CircleClassifier],
        limits: Limits,
        check: Callable[[CircleClassifier], None] = lambda model: None,
    ) -> None:
        self.path = path
        self.limits = limits
        self.started = time.monotonic()
        self.store = ModelStore(path, new_model, limits, check)
        self.snapshot_updater = SnapshotUpdater(self.store)
        self.writer = Writer(self.store, self.snapshot_updater, limits.waiting)
        self.prediction_worker = PredictionWorker(self.snapshot_updater, limits.waiting)
        self.decoders = DecoderPool(limits)
        self.budget = ByteBudget(max(16 * limits.image_bytes, limits.image_bytes + limits.model_bytes))
        self._transfer_slot = asyncio.Semaphore(1)
        self._waiting_transfers = 0

    def close(self) -> None:
        """Finish what waits, end all threads and processes, and write the model file."""
        self.prediction_worker.close()
        self.writer.close()
        self.snapshot_updater.close()
        self.decoders.close()
        self.store.close()

    async def pixels(self, content: bytes) -> np.ndarray:
        """uint8 [channels, height, width] of an image file."""
        return await self.decoders.decode(content, self.store.model.image_)

    async def predict(self, content: bytes) -> Prediction:
        pixels = await self.pixels(content)
        return await asyncio.wrap_future(self.prediction_worker.submit(pixels))

    async def learn(self, name: str, content: bytes, *, hold: bool, group: str) -> str:
        """Learn an image, or hold it back: learned, held or known."""
        pixels = await self.pixels(content)
        return await asyncio.wrap_future(self.writer.submit(LearnRequest(name, pixels, content, hold, group)))

    async def change(self, change: Callable[[ModelStore], Any]) -> Any:
        """Make one change of the model store, when it is its turn."""
        return await asyncio.wrap_future(self.writer.submit(change))

    async def wait_for_snapshot(self) -> None:
        """Wait until predictions know of all changes made so far."""
        await asyncio.to_thread(self.snapshot_updater.wait, self.writer.status.version, SNAPSHOT_SECONDS)

    @asynccontextmanager
    async def transfer(self) -> AsyncIterator[Path]:
        """A temporary folder for one download or upload of a model; one at a time, the others wait their turn.

        A client has its whole download before the server has cleaned up after it, so even a client that asks for one
        model after the other meets its own last transfer: waiting a moment is right, refusing at once is not.

        Raises:
            BusyError: too many are waiting, or the one before takes longer than ``TRANSFER_SECONDS``.
        """
        if self._waiting_transfers >= self.limits.waiting:
            raise BusyError(f"limit of waiting model transfers reached ({self.limits.waiting}): try again in a moment")
        self._waiting_transfers += 1
        try:
            async with asyncio.timeout(TRANSFER_SECONDS):
                await self._transfer_slot.acquire()
        except TimeoutError as error:
            raise BusyError("another model is being transferred: try again in a moment") from error
        finally:
            self._waiting_transfers -= 1
        try:
            with tempfile.TemporaryDirectory(prefix="circle-serve-") as folder:
                yield Path(folder)
        finally:
            self._transfer_slot.release()

    async def import_model(self, file: Path, *, merge: bool) -> Any:
        """Merge an uploaded model, or continue with it."""
        current = self.store.model
        model = await asyncio.to_thread(read_upload, file, current, self.limits)
        return await self.change(lambda store: store.merge(model) if merge else store.load(model))

    async def save_copy(self, file: Path, *, for_prediction: bool) -> None:
        """Write the model as it is now, without holding up those who learn for longer than a copy takes."""

        def save() -> None:
            with self.store.lock:
                model = self.store.model.copy()
            model.metadata_.pop(JOURNAL, None)
            model.save(file, for_prediction=for_prediction)

        await asyncio.to_thread(save)

    def state(self) -> dict[str, Any]:
        """What the page shows: from what was published last, so that nobody waits for anybody."""
        status, snapshot = self.writer.status, self.snapshot_updater.snapshot
        labels, images = status.undo
        tested = sum(snapshot.tested.values())
        return {
            "model": self.path.name,
            "version": status.version,
            "predicting": snapshot.version,
            "samples": status.samples,
            "classes": [
                {
                    "label": str(label),
                    "learned": learned,
                    "held": held_out,
                    "tested": snapshot.tested.get(label, 0),
                    "right": snapshot.correct.get(label, 0),
                }
                for label, (learned, held_out) in status.classes.items()
            ],
            "held_back": {"right": sum(snapshot.correct.values()), "tested": tested, "accuracy": snapshot.accuracy},
            "curve": self.snapshot_updater.curve,
            "undo": {"labels": [str(label) for label in labels], "images": images} if images else None,
            "limits": {"classes": self.limits.classes, "image_bytes": self.limits.image_bytes},
            "warning": status.warning or self.snapshot_updater.failure,
        }


def ranked(prediction: Prediction, top: int) -> list[dict[str, Any]]:
    """The most probable classes first."""
    labels: tuple[Hashable, ...] = prediction.snapshot.labels
    best = np.argsort(-prediction.probabilities, kind="stable")[:top]
    return [{"label": str(labels[index]), "probability": float(prediction.probabilities[index])} for index in best]


class DecoderPool:
    """Decoding processes, each with one image at a time; those who wait are bounded."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._free: list[ContentDecoder] = []
        self._places = asyncio.Semaphore(limits.decoders)
        self._waiting = 0

    async def decode(self, content: bytes, image: ImageConfig) -> np.ndarray:
        if self._waiting >= self._limits.waiting:
            raise BusyError(f"{self._waiting} images are waiting already: try again in a moment")
        self._waiting += 1
        try:
            async with self._places:
                decoder = self._decoder(image)
                try:
                    return await asyncio.to_thread(decoder.decode, content)
                finally:
                    self._free.append(decoder)
        finally:
            self._waiting -= 1

    def _decoder(self, image: ImageConfig) -> ContentDecoder:
        """A free one that makes images of this shape; those of the model before this one end."""
        while self._free:
            decoder = self._free.pop()
            if decoder.config == image:
                return decoder
            decoder.close()
        limits = self._limits
        return ContentDecoder(image, pixels=limits.image_pixels, seconds=limits.image_seconds)

    def close(self) -> None:
        while self._free:
            self._free.pop().close()
