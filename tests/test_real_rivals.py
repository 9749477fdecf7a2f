"""How the rivals behave on photographs, where these are present: small networks, few epochs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from circle.baselines import ACIL, DSAL, FeCAM, FeTrIL, FineTune, LwF
from circle.method import Method, Task, predict
from circle.registry import entry

pytestmark = pytest.mark.real_data

CLASSES, TASKS = 20, 4
SETTINGS = {
    "network": "convnet",
    "optimiser": "sgd",
    "width": 16,
    "batch_size": 32,
    "initial_epochs": 10,
    "epochs": 8,
    "initial_learning_rate": 0.05,
    "learning_rate": 0.05,
    "initial_milestones": (8,),
    "milestones": (7,),
    "learning_rate_milestones": (8,),
    "augmentations": ("crop", "flip"),
    "buffer_size": 600,
    "gamma": 10.0,
}
# One of them has the published network, if a narrow one: it takes ten times as long.
RESIDUAL = {"network": "resnet18", "width": 8, "batch_size": 64, "initial_learning_rate": 0.1}


@pytest.fixture(scope="module")
def images(real_data: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """20 classes of CIFAR-100, 60 training images and 30 others of the training set each."""
    records = np.fromfile(real_data / "cifar-100-binary" / "train.bin", np.uint8).reshape(-1, 3074)
    chosen = [np.flatnonzero(records[:, 1] == label)[:90] for label in range(CLASSES)]

    def part(start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        rows = records[np.concatenate([each[start:stop] for each in chosen])]
        return rows[:, 2:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).copy(), rows[:, 1].astype(int)

    return {"train": part(0, 60), "test": part(60, 90)}


def make(kind: Any) -> Method:
    config = kind.config_type
    wishes = {**SETTINGS, **(RESIDUAL if kind is ACIL else {})}
    return kind(config(**{name: value for name, value in wishes.items() if name in config.field_names()}), seed=0)


@dataclass
class Learned:
    """A method after the stream, its state after the first task, and its accuracies."""

    method: Method
    first: dict[str, Any]
    accuracy: np.ndarray


@pytest.fixture(scope="module")
def learned(images: dict) -> Callable[[Any], Learned]:
    """Runs a method; each is run once."""

    @cache
    def run(kind: Any) -> Learned:
        method, states = make(kind), []
        accuracy = learn(method, images, ORDER, after_task=lambda: states.append(copy.deepcopy(method.state_dict())))
        return Learned(method, states[0], accuracy)

    return run


def learn(
    method: Method, images: dict, order: list[int], after_task: Callable[[], Any] = lambda: None, begin: int = 0
) -> np.ndarray:
    """Accuracy on the test images of every task after every task from ``begin`` on, [T, T]; classes come in order."""
    (pixels, labels), (others, answers) = images["train"], images["test"]
    accuracy = np.full((TASKS, TASKS), np.nan)
    parts = np.split(np.array(order), TASKS)
    for task in range(begin, TASKS):
        chosen = np.isin(labels, parts[task])
        method.learn(Task(pixels[chosen], labels[chosen]))
        after_task()
        right = np.zeros(len(answers))
        seen = np.isin(answers, order[: 5 * (task + 1)])
        right[seen] = np.array(predict(method, others[seen])) == answers[seen]
        for earlier in range(task + 1):
            accuracy[task, earlier] = right[np.isin(answers, parts[earlier])].mean()
    return accuracy


def forgetting(accuracy: np.ndarray) -> float:
    """How much of each task's accuracy right after it was learned is gone at the end."""
    return float(np.mean(accuracy.diagonal()[:-1] - accuracy[-1, :-1]))


ORDER = list(range(CLASSES))


def test_lwf_forgets_less_than_fine_tuning(learned: Callable[[Any], Learned]) -> None:
    plain, held = learned(FineTune).accuracy, learned(LwF).accuracy
    assert forgetting(plain) > 0.3, "plain fine-tuning forgets"
    assert forgetting(held) < forgetting(plain) - 0.1
    assert held[-1].mean() > plain[-1].mean()


@pytest.mark.parametrize("kind", [ACIL, DSAL, FeCAM, FeTrIL, LwF])
def test_all_beat_chance_by_far(kind: Any, learned: Callable[[Any], Learned]) -> None:
    """Chance is 5 % at the end."""
    assert learned(kind).accuracy[-1].mean() > 0.11


@pytest.mark.parametrize("kind", [ACIL, FeCAM])
def test_the_order_of_later_tasks_does_not_matter_to_a_frozen_network(
    kind: Any, images: dict, learned: Callable[[Any], Learned]
) -> None:
    """The first task, which trains the network, is the same: it need not be learned twice."""
    other = [*range(5), *np.random.default_rng(0).permutation(np.arange(5, CLASSES)).tolist()]
    one, two = learned(kind).method, make(kind)
    two.load_state_dict(learned(kind).first)
    learn(two, images, other, begin=1)
    assert list(two.classes) != list(one.classes) and set(two.classes) == set(one.classes)
    pixels = images["test"][0][::5]
    columns = [two.classes.index(label) for label in one.classes]
    scores, permuted = one.scores(pixels).numpy(), two.scores(pixels).numpy()[:, columns]
    assert np.allclose(scores, permuted, rtol=1e-6, atol=1e-6 * np.abs(scores).max())
    assert (scores.argmax(1) == permuted.argmax(1)).all()


def test_all_rivals_are_registered() -> None:
    for kind in (ACIL, DSAL, FeCAM, FeTrIL, LwF, FineTune):
        assert entry("method", kind.config_type.name).part is kind
