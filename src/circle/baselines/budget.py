"""How many epochs fit into a budget of wall-clock time: measured on noise before a run, then fixed in its settings."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from circle.baselines.settings import TrainerConfig
from circle.benchmark.method import Step, Task
from circle.extractors import ImageShape
from circle.registry import entry

Settings = TypeVar("Settings", bound=TrainerConfig)

STEPS = 4  # of a probe; the first is not timed
HEAD_SHARE = 0.3  # of the budget that training a head on features may take


@dataclass(frozen=True)
class Costs:
    """Seconds per sample of each kind of step, and of the rest of a task, in the first task and in later ones."""

    first: dict[str, float]
    later: dict[str, float]
    rest: float  # seconds of a task that are no steps, per image


def fit_budget(config: Settings, sizes: Sequence[int], shape: ImageShape, seconds: float) -> Settings:
    """The config with as many epochs as its training of all tasks may have to end within ``seconds``, at least one.

    ``sizes`` are the images of each task. Milestones keep their places in proportion. Methods that go on training
    get equally many epochs in every task; those with a frozen network spend what the rest of the work leaves on
    the first task, and up to a share of the budget on later heads.
    """
    costs = probe(config, shape)
    left = max(0.0, seconds - costs.rest * sum(sizes))
    fields, changes = config.field_names(), {}
    first = sizes[0] * costs.first.get("train", 0.0)
    if "train" in costs.later:
        epochs = max(1, int(left / (first + sum(sizes[1:]) * costs.later["train"])))
        changes = {name: epochs for name in ("initial_epochs", "epochs") if name in fields}
    else:
        if "head" in costs.later and len(sizes) > 1:
            # In every task after the first, real or made features of all classes so far.
            epoch = float(np.cumsum(sizes)[1:].sum()) * costs.later["head"]
            most: int = getattr(config, "epochs", 1)
            changes["epochs"] = max(1, min(most, int(HEAD_SHARE * seconds / epoch)))
            left = max(0.0, left - changes["epochs"] * epoch)
        changes["initial_epochs"] = max(1, int(left / first))
    return config.replace(**changes, **_milestones(config, changes))


def _milestones(config: TrainerConfig, changes: dict[str, int]) -> dict[str, Any]:
    """Milestones at the same shares of the new numbers of epochs."""
    pairs = {
        "initial_milestones": "initial_epochs",
        "milestones": "epochs",
        "learning_rate_milestones": "initial_epochs",
    }
    scaled = {}
    for name, epochs in pairs.items():
        if name in config.field_names() and epochs in changes:
            share = changes[epochs] / max(1, getattr(config, epochs))
            scaled[name] = tuple(max(1, round(share * each)) for each in getattr(config, name))
    return scaled


def probe(config: TrainerConfig, shape: ImageShape) -> Costs:
    """Learn two tasks of noise with one epoch each, and time their steps."""
    short = {name: 1 for name in ("initial_epochs", "epochs") if name in config.field_names()}
    method = entry("method", config.name).part(config.replace(**short), seed=0)
    count = STEPS * int(getattr(config, "batch_size", 1))
    random = np.random.default_rng(0)
    found: list[dict[str, float]] = []
    rest = 0.0
    for task in range(2):
        images = random.integers(0, 256, (count, shape.height, shape.width, shape.channels), dtype=np.uint8)
        times: dict[str, list[float]] = defaultdict(list)
        steps: dict[str, int] = {}

        def note(step: Step, times: dict = times, steps: dict = steps) -> None:
            times[step.stage].append(time.perf_counter())
            steps[step.stage] = step.steps

        method.on_step = note
        started = time.perf_counter()
        method.learn(Task(images, np.arange(count) % 2 + 2 * task))
        spent = time.perf_counter() - started
        # Per step, without the first, which pays for what is made only once.
        per_step = {name: (each[-1] - each[0]) / (len(each) - 1) for name, each in times.items()}
        found.append({name: value / config.batch_size for name, value in per_step.items()})  # pyright: ignore
        rest = (spent - sum(per_step[name] * steps[name] for name in steps)) / count
    return Costs(found[0], found[1], max(0.0, rest))
