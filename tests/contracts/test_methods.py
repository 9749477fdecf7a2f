"""What every registered benchmark method promises, CIRCLE included."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from circle import BiRC2DConfig, CircleClassifier
from circle.benchmark.results import load_state, same_state, save_state
from circle.config import Config
from circle.data.decode import ImageConfig
from circle.method import CircleMethod, Method, Task, predict
from circle.registry import entry, list_methods


def make(name: str, seed: int, resize: Callable[[Config], Config]) -> Method:
    if name == "circle":
        return CircleMethod(CircleClassifier(BiRC2DConfig(stem_channels=(4,), width=4, grid=2), seed=seed))
    registered = entry("method", name)
    return registered.part(resize(registered.config()), seed=seed)


def small(config: Config) -> Config:
    """The same method with a network that learns fast and a training for a few small images."""
    adam = config.name in ("finetune", "pass", "il2a", "efc_plus_plus")
    wishes = {
        "width": 16 if config.name == "finetune" else 8,
        "batch_size": 20,
        "network": "convnet",
        # FeTrIL: of a head alone. The others hold the features so fast that few epochs are not enough.
        "epochs": {"fetril": 30, "lwf": 20, "pass": 20, "il2a": 20}.get(config.name, 6),
        "initial_epochs": 6,
        "learning_rate": 0.003 if adam else 0.02 if config.name == "lwf" else 0.05,
        "initial_learning_rate": 0.003 if adam else 0.02 if config.name == "lwf" else 0.1,
        "balanced_epochs": 10,
        "balanced_learning_rate": 0.05,
        "balanced_batch_size": 20,
        "feature_distillation_weight": 1.0,
        "feature_size": 8,
        "draws": 200,
        "milestones": (),
        "initial_milestones": (),
        "buffer_size": 200,
        "augmentations": ("flip",),
    }
    return config.replace(**{name: value for name, value in wishes.items() if name in config.field_names()})


def brief(config: Config) -> Config:
    """The same method with the published network and only as much training as shows whether two runs are alike."""
    epochs = dict.fromkeys(("epochs", "initial_epochs", "balanced_epochs"), 2)
    wishes = {**epochs, "network": "resnet18", "width": 4}
    return small(config).replace(**{name: value for name, value in wishes.items() if name in config.field_names()})


@pytest.fixture(params=["circle", *list_methods()])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def tasks(make_stream: Any) -> list[Task]:
    return pairs(*make_stream(120))


@pytest.fixture
def few(make_stream: Any) -> list[Task]:
    """For what does not ask for good answers: a few images of a quarter of the size."""
    images, labels = make_stream(60)
    return pairs(images[:, ::2, ::2], labels)


def pairs(images: np.ndarray, labels: np.ndarray) -> list[Task]:
    """Two tasks of two classes each."""
    return [Task(images[np.isin(labels, pair)], labels[np.isin(labels, pair)]) for pair in ([0, 1], [2, 3])]


def test_learns_what_it_is_shown(name: str, tasks: list[Task]) -> None:
    method = make(name, 0, small)
    assert isinstance(method, Method)
    for task in tasks:
        method.learn(task)
        right = np.array(predict(method, task.images)) == task.labels
        assert right.mean() > 0.8
    assert sorted(method.classes) == [0, 1, 2, 3]
    scores = method.scores(tasks[0].images)
    assert scores.shape == (len(tasks[0].images), 4)
    assert bool(torch.isfinite(scores).all())


GLOBAL_SEEDS = count(100)


def taught(name: str, seed: int, tasks: list[Task]) -> Method:
    torch.manual_seed(next(GLOBAL_SEEDS))  # the global generator has no say
    method = make(name, seed, brief)
    for task in tasks:
        method.learn(task)
    return method


def test_the_seed_decides(name: str, few: list[Task]) -> None:
    one, again, other = (taught(name, seed, few).state_dict() for seed in (0, 0, 1))
    assert same_state(one, again)
    assert not same_state(one, other)


def test_goes_on_from_a_saved_state(name: str, few: list[Task], tmp_path: Path) -> None:
    """A method made anew and given the state after the first task ends up where an uninterrupted one does."""
    save_state(tmp_path / "state", taught(name, 0, few[:1]).state_dict(), {})
    resumed = make(name, 0, brief)
    if isinstance(resumed, CircleMethod):
        resumed.classifier.prepare(ImageConfig(height=8, width=8, channels=3))
    resumed.load_state_dict(load_state(tmp_path / "state")[0])
    resumed.learn(few[1])
    whole = taught(name, 0, few)
    assert same_state(resumed.state_dict(), whole.state_dict())
    assert torch.equal(resumed.scores(few[0].images), whole.scores(few[0].images))
    assert resumed.parameter_count() == whole.parameter_count()


def test_one_class_per_task_is_legal(name: str, few: list[Task]) -> None:
    method = make(name, 0, brief)
    for label in (3, 1):
        task = next(each for each in few if label in each.labels)
        method.learn(Task(task.images[task.labels == label], task.labels[task.labels == label]))
    assert method.scores(few[0].images).shape[1] == 2
