"""Beside a run: states saved in the middle of a task, limits of time, and the user's wish to stop."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from circle.baselines import FineTune, FineTuneConfig, LwF, LwFConfig
from circle.benchmark import results
from circle.benchmark.results import load_state
from circle.benchmark.runner import STATE, Plan, Progress, run_stream
from circle.data.datasets import Dataset
from circle.data.decode import ImageConfig
from circle.data.images import Images
from circle.data.tasks import Stream
from circle.method import Step

PLAN = Plan("lwf", "LwF", None, ("3",), 0, {})


class Noise(Images):
    """Six classes, each with a level of grey of its own."""

    def __init__(self, per_class: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.labels = random.permutation(np.repeat(np.arange(6), per_class))
        levels = 20 + 40 * self.labels[:, None, None, None]
        self.pixels = np.clip(levels + random.normal(0, 10, (len(self.labels), 8, 8, 1)), 0, 255).astype(np.uint8)

    def _fingerprint(self) -> str:
        return str(self.pixels.sum())

    def _read(self, indices: np.ndarray) -> np.ndarray:
        return self.pixels[indices]


@pytest.fixture
def stream() -> Stream:
    image = ImageConfig(height=8, width=8, channels=1)
    return Stream.of(Dataset("grey", list("abcdef"), image, Noise(8, 0), Noise(4, 1)), 0)


def lwf(**settings: int) -> LwF:
    wishes = {"network": "convnet", "width": 4, "batch_size": 8, "initial_epochs": 3, "epochs": 3, **settings}
    return LwF(LwFConfig(**wishes), seed=0)  # pyright: ignore[reportArgumentType]


class KilledError(Exception):
    """The process is gone."""


def told_steps(step: Callable[[Step], object]) -> Progress:
    progress = Progress()
    progress.step = step  # pyright: ignore[reportAttributeAccessIssue]
    return progress


def killed_after(steps: int) -> Progress:
    count = itertools.count(1)

    def step(step: Step) -> None:
        if next(count) > steps:
            raise KilledError

    return told_steps(step)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_run_killed_every_few_steps_ends_with_the_same_numbers(stream: Stream, tmp_path: Path, steps: int) -> None:
    """Two images of a class fill a batch of eight: six steps a task. Every new process gets a few steps further."""
    reference = run_stream(PLAN, stream, lwf(), tmp_path / "whole")
    assert reference.complete
    kills = 0
    while True:
        try:
            run = run_stream(
                *(PLAN, stream, lwf(), tmp_path / "pieces"), progress=killed_after(steps), save_seconds=0.0
            )
            break
        except KilledError:
            kills += 1
            assert kills < 40
    assert kills >= 18 // steps - 1
    assert [row.correct for row in run.rows] == [row.correct for row in reference.rows]
    assert [row.samples for row in run.rows] == [row.samples for row in reference.rows]
    assert run.rows[-1].learning_seconds > 0
    assert not (tmp_path / "pieces" / STATE).exists()


def test_a_stop_in_the_middle_of_a_task_keeps_the_seconds_that_it_took(stream: Stream, tmp_path: Path) -> None:
    seen: list[Step] = []
    run = run_stream(
        *(PLAN, stream, lwf(), tmp_path),
        progress=told_steps(seen.append),
        should_stop=lambda: len(seen) == 4,
    )
    assert not run.rows and "stopped" not in run.info
    state, progress = load_state(tmp_path / STATE)
    assert progress["classes_seen"] == 0 and progress["task_seconds"] > 0
    assert state["pending"]["fit"]["epoch"] == 1 and state["pending"]["fit"]["step"] == 2
    finished = run_stream(PLAN, stream, lwf(), tmp_path)
    assert finished.rows[0].learning_seconds > progress["task_seconds"]


def test_a_time_limit_ends_the_run_and_says_where_and_a_larger_one_goes_on(stream: Stream, tmp_path: Path) -> None:
    reference = run_stream(PLAN, stream, lwf(epochs=4), tmp_path / "whole")
    limit = reference.rows[0].learning_seconds * 0.5
    run = run_stream(PLAN, stream, lwf(epochs=4), tmp_path / "limited", time_limit=0.0)
    assert not run.rows and run.info["stopped"] == "time limit of 0 s of learning reached"
    assert results.read_run(tmp_path / "limited").info["stopped"] == run.info["stopped"]
    slow = lwf(epochs=4, initial_epochs=100_000)
    stopped = run_stream(PLAN, stream, slow, tmp_path / "slow", time_limit=max(limit, 0.05))
    assert "in task 1, epoch " in stopped.info["stopped"] and stopped.info["parameters"]["learnable"] > 0
    assert (tmp_path / "slow" / STATE).exists()
    whole = run_stream(PLAN, stream, lwf(epochs=4), tmp_path / "limited", time_limit=3600.0)
    assert whole.complete and "stopped" not in whole.info
    assert "stopped" not in results.read_run(tmp_path / "limited").info
    assert [row.correct for row in whole.rows] == [row.correct for row in reference.rows]


def test_a_stop_between_tasks_keeps_the_finished_ones(stream: Stream, tmp_path: Path) -> None:
    method = FineTune(FineTuneConfig(epochs=1), seed=0)
    learn, calls = method.learn, []

    def slow(task: object) -> None:
        calls.append(task)
        learn(task)  # pyright: ignore[reportArgumentType]
        if len(calls) == 2:
            wish[0] = True

    wish = [False]
    method.learn = slow  # pyright: ignore[reportAttributeAccessIssue]
    run = run_stream(PLAN, stream, method, tmp_path, should_stop=lambda: wish[0])
    assert [row.classes_seen for row in run.rows] == [2, 4]
    assert (tmp_path / STATE).exists()


def test_losses_are_reported_step_by_step(stream: Stream, tmp_path: Path) -> None:
    steps: list[Step] = []
    run_stream(PLAN, stream, lwf(), tmp_path, progress=told_steps(steps.append))
    assert [(step.task, step.epoch, step.step) for step in steps] == [
        (task, epoch, step) for task in (1, 2, 3) for epoch in (1, 2, 3) for step in (1, 2)
    ]
    assert set(steps[0].losses) == {"cross entropy"}
    assert set(steps[-1].losses) == {"cross entropy", "distillation"}
