"""What a method's training takes, known before a run: seconds, timed on noise, and memory, counted from the sizes.

From the seconds follows how many epochs fit into a budget of wall-clock time; they are then fixed in the settings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from circle.baselines.trainer import (
    SCORING_BATCH,
    Moment,
    TrainedMethod,
    TrainerConfig,
    count_parameters,
    now,
    seconds_between,
)
from circle.extractors import ImageShape
from circle.method import Step, Task
from circle.registry import entry

PROBE_STEPS = 4  # the first is not timed
MIN_PROBE_IMAGES = 128  # in a task of a probe
REHEARSAL_PROBE_IMAGES = 4  # in a task that is there for what it rehearses
PROBE_CLASSES = 2  # in a task of a probe
NETWORK_COPIES = 5  # weights, their gradients, up to two moments, the teacher
EPOCHS = ("initial_epochs", "epochs", "balanced_epochs")
MAX_REHEARSAL_FRACTION = 0.3  # of a budget that training a head on features may take

Settings = TypeVar("Settings", bound=TrainerConfig)


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
    drawn: float | None = None  # of a rehearsal, per feature drawn, where one of the task's own images costs more

    def epoch(self, config: TrainerConfig, course: Course) -> tuple[float, float]:
        """One pass over the first task's images, and one over those of every later task that is trained on."""
        later = sum(share * self.later.get(stage, 0.0) for stage, share in config.stage_epochs.items())
        return course.images[0] * self.first.get("train", 0.0), sum(course.images[1:]) * later

    def rehearsal(self, config: TrainerConfig, course: Course) -> float:
        """One pass over real and made features of all classes so far, in every task after the first."""
        rate = sum(self.later.get(stage, 0.0) for stage in config.rehearsals)
        real = sum(course.images[1:])
        made = float(np.cumsum(course.images)[:-1].sum())
        return real * rate + made * (rate if self.drawn is None else self.drawn)

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
    """Learn tasks of noise with one epoch each, and time the steps; once for configs that differ in epochs only."""
    changes: dict[str, Any] = {name: 1 for name in EPOCHS if name in config.field_names()}
    changes |= dict.fromkeys(config.rehearsals.values(), PROBE_STEPS)  # an epoch may be a single step
    changes |= {name: () for name in config.field_names() if name.endswith("milestones")}
    if "learning_rate_step" in config.field_names():
        changes["learning_rate_step"] = 1
    return _probe(config.replace(**changes), shape)


@dataclass(frozen=True)
class Timing:
    """One task of a probe: seconds of an epoch of each stage that takes steps, of all the rest, and of drift in it."""

    epochs: dict[str, float]
    rest: float
    drift: float


@lru_cache(maxsize=16)
def _probe(config: TrainerConfig, shape: ImageShape) -> Costs:
    method = entry("method", config.name).part(config, seed=0)
    count = max(MIN_PROBE_IMAGES, PROBE_STEPS * int(getattr(config, "batch_size", 1)))
    first, later = (_learn(method, task, count, shape) for task in range(2))
    rates = {name: seconds / count for name, seconds in later.epochs.items()}
    drawn, old_class = None, 0.0
    if config.per_old_class:
        # A third task has twice as many old classes, and as many images as the second. Noise may hide the growth, but
        # a stage that goes from class to class spends at least half its time on them.
        drift = _learn(method, 2, count, shape).drift
        old_class = max(drift - later.drift, drift / 4) / PROBE_CLASSES
    if config.rehearses_images:
        # A third task of next to no images rehearses what is drawn for the two before it.
        alone = _learn(method, 2, REHEARSAL_PROBE_IMAGES, shape).epochs
        drawn = sum(alone[name] for name in config.rehearsals) / (2 * count + REHEARSAL_PROBE_IMAGES)
    for name in config.rehearsals:  # of a real image, beside as many drawn features
        rates[name] = rates[name] / 2 if drawn is None else max(drawn, rates[name] - drawn)
    return Costs(
        {name: seconds / count for name, seconds in first.epochs.items()},
        rates,
        rest=max(0.0, later.rest - min(later.drift, PROBE_CLASSES * old_class)) / count,
        rest_first=max(0.0, first.rest) / count,
        old_class=old_class,
        drawn=drawn,
    )


def _learn(method: TrainedMethod[Any], task: int, count: int, shape: ImageShape) -> Timing:
    """Teach a method so many images of noise, of classes of their own."""
    images = np.random.default_rng(task).integers(
        0, 256, (count, shape.height, shape.width, shape.channels), dtype=np.uint8
    )
    times: dict[str, list[Moment]] = defaultdict(list)
    steps: dict[str, int] = {}

    def note(step: Step) -> None:
        times[step.stage].append(now())
        steps[step.stage] = step.steps

    method.on_step = note
    started = now()
    method.learn(Task(images, np.arange(count) % PROBE_CLASSES + PROBE_CLASSES * task))
    spent = seconds_between(started, now(), method.config.device)
    # Per step, without the first, which pays for what is made only once.
    per_step = {
        name: seconds_between(each[0], each[-1], method.config.device) / (len(each) - 1)
        if len(each) > 1
        else method.stage_seconds[name]
        for name, each in times.items()
    }
    rest = spent - sum(per_step[name] * len(each) for name, each in times.items())
    drift = sum(method.stage_seconds.get(name, 0.0) for name in method.config.per_old_class)
    return Timing({name: value * steps[name] for name, value in per_step.items()}, rest, drift)


def memory_needed(config: TrainerConfig, shape: ImageShape, course: Course) -> int:
    """Bytes at the end of the stream, in the middle of its largest task:

    images of the task and an augmented copy; weights with gradients, moments and a teacher; what the gradient of
    a batch needs; features of the task; and what the method keeps of all classes.
    """
    method = entry("method", config.name).part(config, seed=0)
    network = method.new_network(shape.channels, torch.Generator().manual_seed(0))
    pixels = shape.channels * shape.height * shape.width
    largest, classes = max(course.images), sum(course.classes)
    batch = max(int(getattr(config, "batch_size", 1)) * method.copies, SCORING_BATCH // 2)
    return (
        2 * largest * pixels
        + 4 * NETWORK_COPIES * (count_parameters(network) + method.rows_per_class * classes * network.size)
        + batch * (activation_bytes(network, shape) + 4 * pixels)
        + 2 * 4 * largest * network.size
        + method.kept_bytes(classes, network.size)
    )


def activation_bytes(network: torch.nn.Module, shape: ImageShape) -> int:
    """Bytes that the gradient of one image keeps until it is taken, counted in a pass of two."""
    seen: dict[int, int] = {}
    own = {parameter.data_ptr() for parameter in network.parameters()}

    def note(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in own:
            seen[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    images = torch.zeros(2, shape.channels, shape.height, shape.width)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = network(images)
    del result
    return sum(seen.values()) // 2


def is_fitted(setting: str) -> bool:
    """Whether a budget decides about a setting."""
    return setting.endswith(("epochs", "milestones")) or setting == "learning_rate_step"


def fit_budget(config: Settings, course: Course, shape: ImageShape, seconds: float) -> Settings:
    """The config with as many epochs as its training of all tasks may have to end within ``seconds``, at least one.

    The epochs of later tasks are as many as fit if those of the first task keep their proportion to them; what is left
    of the budget, less than another epoch of all tasks, is spent on the first task, as is everything with a frozen
    network. Milestones keep their places. Training heads on features of all classes so far may take up to a
    fraction of it.
    """
    costs = probe(config, shape)
    left = seconds - costs.others(course)
    changes: dict[str, int] = {}
    for name in config.rehearsals.values():
        epoch = costs.rehearsal(config, course)
        most: int = getattr(config, name)
        changes[name] = max(1, min(most, int(MAX_REHEARSAL_FRACTION * seconds / epoch))) if epoch else most
        left -= changes[name] * epoch
    first, later = costs.epoch(config, course)
    if "epochs" in config.field_names() and "epochs" not in changes:
        share = config.first_epochs / max(1, config.epochs)  # pyright: ignore[reportAttributeAccessIssue]
        changes["epochs"] = max(1, int(max(0.0, left) / (share * first + later)))
        left -= changes["epochs"] * later
    if "initial_epochs" in config.field_names():
        changes["initial_epochs"] = max(1, int(max(0.0, left) / first))
    return config.replace(**changes, **_milestones(config, changes))


def _milestones(config: TrainerConfig, changes: dict[str, int]) -> dict[str, Any]:
    """Milestones at the same shares of the new numbers of epochs."""
    pairs = {
        "initial_milestones": "initial_epochs",
        "milestones": "epochs",
        "learning_rate_milestones": "initial_epochs",
        "adapter_milestones": "epochs",
    }
    scaled: dict[str, Any] = {}
    for name, epochs in pairs.items():
        if name in config.field_names() and epochs in changes:
            share = changes[epochs] / max(1, getattr(config, epochs))
            scaled[name] = tuple(max(1, round(share * each)) for each in getattr(config, name))
    if "learning_rate_step" in config.field_names() and "epochs" in changes:
        share = changes["epochs"] / max(1, config.epochs)  # pyright: ignore[reportAttributeAccessIssue]
        step: int = config.learning_rate_step  # pyright: ignore[reportAttributeAccessIssue]
        scaled["learning_rate_step"] = max(1, round(share * step))
    return scaled
