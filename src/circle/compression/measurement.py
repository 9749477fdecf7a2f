"""What a compression is measured by: accuracy on labelled images, size of the file, time to predict.

Times of all models are taken in one run, so that their ratios mean something on a shared machine.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from circle.data.batches import ImageBatch
from circle.data.images import Images
from circle.ensemble import IMAGES_PER_TILE, all_features
from circle.errors import CircleError, counted
from circle.labels import plain_labels
from circle.machine import require_memory
from circle.predictor import ImageClassifier, Predictor

TIMED_IMAGES = 64  # of the batch whose time is taken
MIN_ROUNDS = 3
MAX_ROUNDS = 200


@dataclass(frozen=True, eq=False)
class Validation:
    """Labelled images that a compression is chosen by, whose features are computed once.

    Parameters
    ----------
    features : list of Tensor
        Features [N, D] of each group.
    targets : Tensor
        Column of each image's class, int64 [N]; -1 where the model does not know it.
    images : Tensor
        Some images to time predictions with, float32 [at most 64, C, H, W].
    unreadable : list of str
        Why images were left out, one reason each.
    """

    features: list[Tensor]
    targets: Tensor
    images: Tensor
    unreadable: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.targets)

    @classmethod
    def of_images(
        cls, model: ImageClassifier, images: Images, report: Callable[[int], None] = lambda done: None
    ) -> Validation:
        """From folders, archives and npz files; images that cannot be read are left out and named."""
        unreadable: list[str] = []
        predictor = model.for_prediction()
        _check_room(predictor, len(images))
        readable = images.readable_batches(predictor.image_, IMAGES_PER_TILE, unreadable.append)
        batches = (
            (predictor.batch(torch.from_numpy(pixels)), [images.label(position) for position in positions])
            for positions, pixels in readable
        )
        return cls._of_batches(predictor, batches, str(images.path), unreadable, report)

    @classmethod
    def of_arrays(cls, model: ImageClassifier, X: Any, y: Any) -> Validation:
        """From what ``partial_fit`` takes."""
        predictor, labels = model.for_prediction(), plain_labels(y)
        batch = predictor.batch(X)
        if len(labels) != len(batch):
            raise CircleError(f"{counted(len(labels), 'label')} for {counted(len(batch), 'image')}: expected one each")
        _check_room(predictor, len(batch))
        return cls._of_batches(predictor, [(batch, labels)], "the validation images", [], lambda done: None)

    @classmethod
    def _of_batches(
        cls,
        predictor: Predictor,
        batches: Iterable[tuple[ImageBatch, Sequence[Hashable]]],
        name: str,
        unreadable: list[str],
        report: Callable[[int], None],
    ) -> Validation:
        columns = {label: column for column, label in enumerate(predictor.labels)}
        found: list[list[Tensor]] = []
        targets: list[int] = []
        timed: list[Tensor] = []
        for batch, labels in batches:
            found.append(all_features(predictor.groups_, batch))
            targets += [columns.get(label, -1) for label in labels]
            if sum(map(len, timed)) < TIMED_IMAGES:
                timed.append(batch.tile(0, TIMED_IMAGES))
            report(len(targets))
        if not any(target >= 0 for target in targets):
            raise CircleError(f"{name}: no readable image of a class that the model knows; expected some to choose by")
        features = [torch.cat(parts) for parts in zip(*found, strict=True)]
        return cls(features, torch.tensor(targets), torch.cat(timed)[:TIMED_IMAGES], unreadable)


def _check_room(predictor: Predictor, images: int) -> None:
    needed = sum(images * group.size * group.grid.bits // 8 for group in predictor.groups_)
    require_memory(needed, f"features of {images:,} validation images", "give fewer images")


@dataclass(frozen=True)
class Timing:
    """Medians over all rounds: seconds on the clock, and processor time as a share of the first model's.

    Processor time is what a prediction costs whoever else uses the machine; the clock's ratio is kept, too.
    """

    seconds: float
    clock_ratio: float
    work_ratio: float


def file_bytes(model: Predictor) -> int:
    """Size of the model's file, which is written and removed again."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.circle"
        model.save(path)
        return path.stat().st_size


def time_models(models: Sequence[Predictor], images: Tensor, seconds: float) -> list[Timing]:
    """Times of predicting ``images`` for each model, taken in turns: round by round every model once.

    A ratio compares a model with the first one within a round, and is the median of all rounds.
    """
    clock: list[list[float]] = [[] for _ in models]
    work: list[list[float]] = [[] for _ in models]
    started = time.perf_counter()
    rounds = 0
    while rounds < MIN_ROUNDS or (rounds < MAX_ROUNDS and time.perf_counter() - started < seconds):
        for index, model in enumerate(models):
            model.predict_proba(images)  # the others have emptied the caches
            on_clock, at_work = _timed(lambda model=model: model.predict_proba(images))
            clock[index].append(on_clock)
            work[index].append(at_work)
        rounds += 1
    return [
        Timing(statistics.median(clock[index]), _ratio(clock[index], clock[0]), _ratio(work[index], work[0]))
        for index in range(len(models))
    ]


def _timed(call: Callable[[], object]) -> tuple[float, float]:
    clock, work = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - clock, time.process_time() - work


def _ratio(values: Sequence[float], base: Sequence[float]) -> float:
    return statistics.median(value / one for value, one in zip(values, base, strict=True))
