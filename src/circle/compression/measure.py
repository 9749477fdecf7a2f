"""Sizes and times of models, all of them in one run, so that their ratios mean something on a shared machine."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from circle.learner import CircleClassifier

LEAST_ROUNDS = 3
MOST_ROUNDS = 200


@dataclass(frozen=True)
class Timing:
    """Medians over all rounds: seconds on the clock, and processor time as a share of the first model's.

    Processor time is what a prediction costs whoever else uses the machine; the clock's ratio is kept, too.
    """

    seconds: float
    clock_ratio: float
    work_ratio: float


def file_bytes(model: CircleClassifier) -> int:
    """Size of the model's file, which is written and removed again."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.circle"
        model.save(path, for_prediction=True)
        return path.stat().st_size


def time_models(models: Sequence[CircleClassifier], images: Tensor, seconds: float) -> list[Timing]:
    """Times of predicting ``images`` for each model, taken in turns: round by round every model once.

    A ratio compares a model with the first one within a round, and is the median of all rounds.
    """
    clock: list[list[float]] = [[] for _ in models]
    work: list[list[float]] = [[] for _ in models]
    started = time.perf_counter()
    rounds = 0
    while rounds < LEAST_ROUNDS or (rounds < MOST_ROUNDS and time.perf_counter() - started < seconds):
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
