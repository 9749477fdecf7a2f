"""What every registered benchmark method promises, CIRCLE included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from circle import BiRC2DConfig, CircleClassifier
from circle.benchmark.method import CircleMethod, Method, Task, predict
from circle.registry import entry, list_methods


def make(name: str, seed: int) -> Method:
    if name == "circle":
        return CircleMethod(CircleClassifier(BiRC2DConfig(stem_channels=(4,), width=4, grid=2), seed=seed))
    registered = entry("method", name)
    return registered.part(registered.config(), seed=seed)


@pytest.fixture(params=["circle", *list_methods()])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def tasks(make_stream: Any) -> list[Task]:
    images, labels = make_stream(160)
    return [Task(images[np.isin(labels, pair)], labels[np.isin(labels, pair)]) for pair in ([0, 1], [2, 3])]


def test_learns_what_it_is_shown(name: str, tasks: list[Task]) -> None:
    method = make(name, seed=0)
    assert isinstance(method, Method)
    for task in tasks:
        method.learn(task)
        right = np.array(predict(method, task.images)) == task.labels
        assert right.mean() > 0.8
    assert sorted(method.classes) == [0, 1, 2, 3]
    scores = method.scores(tasks[0].images)
    assert scores.shape == (len(tasks[0].images), 4)
    assert bool(torch.isfinite(scores).all())


def test_the_seed_decides(name: str, tasks: list[Task]) -> None:
    def state(seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(seed + 100)  # the global generator has no say
        method = make(name, seed)
        for task in tasks:
            method.learn(task)
        return {key: value for key, value in method.state_dict().items() if isinstance(value, torch.Tensor)}

    one, again, other = state(0), state(0), state(1)
    assert all(torch.equal(one[key], again[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


def test_one_class_per_task_is_legal(name: str, tasks: list[Task]) -> None:
    method = make(name, seed=0)
    for label in (3, 1):
        task = next(each for each in tasks if label in each.labels)
        method.learn(Task(task.images[task.labels == label], task.labels[task.labels == label]))
    assert method.scores(tasks[0].images).shape[1] == 2
