"""What a method's training costs: timed on noise before a run, and added up for the whole stream."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from circle.baselines.settings import TrainerConfig
from circle.benchmark.method import Step, Task
from circle.extractors import ImageShape
from circle.registry import entry

STEPS = 4  # of a probe; the first is not timed
LEAST = 128  # images of a task of a probe, at least
CLASSES = 2  # of a task of a probe
EPOCHS = ("initial_epochs", "epochs", "balanced_epochs")


@dataclass(frozen=True)
class Course:
    """What a stream asks of a method: images and new classes of each task."""

    images: Sequence[int]
    classes: Sequence[int]


@dataclass(frozen=True)
class Costs:
    """Seconds of the steps of each stage, per sample they see, and of what is no step, in first and later tasks."""

    first: dict[str, float]
    later: dict[str, float]
    rest: float  # of a task, per image
    rest_first: float | None = None  # of the first task, where that is another matter
    old_class: float = 0.0  # of a later task, per class before it

    def epoch(self, config: TrainerConfig, course: Course) -> tuple[float, float]:
        """One pass over the first task's images, and one over those of every later task that is trained on."""
        later = sum(share * self.later.get(stage, 0.0) for stage, share in config.stage_epochs.items())
        return course.images[0] * self.first.get("train", 0.0), sum(course.images[1:]) * later

    def rehearsal(self, config: TrainerConfig, course: Course) -> float:
        """One pass over real and made features of all classes so far, in every task after the first."""
        rate = sum(self.later.get(stage, 0.0) for stage in config.rehearsals)
        return float(np.cumsum(course.images)[1:].sum()) * rate

    def others(self, course: Course) -> float:
        """Whatever does not grow with epochs."""
        first = self.rest if self.rest_first is None else self.rest_first
        old = float(np.cumsum(course.classes)[:-1].sum())
        return course.images[0] * first + sum(course.images[1:]) * self.rest + old * self.old_class

    def total(self, config: TrainerConfig, course: Course) -> float:
        """Seconds that a config's training of all tasks takes."""
        first, later = self.epoch(config, course)
        seconds = first * config.first_epochs + later * getattr(config, "epochs", 0)
        for name in config.rehearsals.values():
            seconds += self.rehearsal(config, course) * getattr(config, name)
        return seconds + self.others(course)


def probe(config: TrainerConfig, shape: ImageShape) -> Costs:
    """Learn two tasks of noise with one epoch each, and time the steps; once for configs that differ in epochs only."""
    changes: dict[str, Any] = {name: 1 for name in EPOCHS if name in config.field_names()}
    changes |= {name: () for name in config.field_names() if name.endswith("milestones")}
    if "learning_rate_step" in config.field_names():
        changes["learning_rate_step"] = 1
    return _probe(config.replace(**changes), shape)


Moment = tuple[float, float]  # of the clock on the wall, and of the processors


def now() -> Moment:
    return time.perf_counter(), time.process_time()


def between(start: Moment, stop: Moment, device: str) -> float:
    """Seconds on the wall; on a CPU no more than the processors worked, so that other programs' work is not counted."""
    wall, worked = stop[0] - start[0], stop[1] - start[1]
    return min(wall, worked) if device == "cpu" else wall


@lru_cache(maxsize=16)
def _probe(config: TrainerConfig, shape: ImageShape) -> Costs:
    method = entry("method", config.name).part(config, seed=0)
    count = max(LEAST, STEPS * int(getattr(config, "batch_size", 1)))
    random = np.random.default_rng(0)
    found: list[dict[str, float]] = []
    rests: list[float] = []
    for task in range(2):
        images = random.integers(0, 256, (count, shape.height, shape.width, shape.channels), dtype=np.uint8)
        times: dict[str, list[Moment]] = defaultdict(list)
        steps: dict[str, int] = {}

        def note(step: Step, times: dict = times, steps: dict = steps) -> None:
            times[step.stage].append(now())
            steps[step.stage] = step.steps

        method.on_step = note
        started = now()
        method.learn(Task(images, np.arange(count) % CLASSES + CLASSES * task))
        spent = between(started, now(), config.device)
        # Per step, without the first, which pays for what is made only once.
        per_step = {
            name: between(each[0], each[-1], config.device) / (len(each) - 1)
            if len(each) > 1
            else method.stage_seconds[name]
            for name, each in times.items()
        }
        samples = {name: count * (2 if name in config.rehearsals else 1) for name in per_step}
        found.append({name: value * steps[name] / samples[name] for name, value in per_step.items()})
        rests.append(spent - sum(per_step[name] * steps[name] for name in steps))
    drift = sum(method.stage_seconds.get(name, 0.0) for name in config.per_old_class)
    return Costs(
        *found,
        rest=max(0.0, rests[1] - drift) / count,
        rest_first=max(0.0, rests[0]) / count,
        old_class=drift / CLASSES,
    )
