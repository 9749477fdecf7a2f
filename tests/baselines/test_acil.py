"""ACIL: the weight after every task is the one direct solution, the published recursion's, and that of any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from circle.baselines.acil import ACIL, ACILConfig
from circle.baselines.trainer import TaskData
from circle.errors import CircleError
from circle.heads.ridge import RecursiveLeastSquares
from circle.method import Task

pytestmark = pytest.mark.usefixtures("one_thread")

MakeMethod = Callable[..., Any]
MakeTasks = Callable[..., list[Task]]
GROUPS = ((0, 2), (1,), (3,))


def pixels_of(task: Task) -> Tensor:
    return torch.from_numpy(task.images).permute(0, 3, 1, 2).contiguous()


def hidden(method: ACIL, tasks: list[Task]) -> np.ndarray:
    """h = relu(P f) of all images, of each task at once as in learning."""
    parts = [method.projected(method.features(pixels_of(task))).clamp_min(0.0) for task in tasks]
    return torch.cat(parts).numpy()


def targets(method: ACIL, tasks: list[Task]) -> np.ndarray:
    columns = {label: column for column, label in enumerate(method.classes)}
    return np.eye(len(columns))[[columns[label] for task in tasks for label in task.labels.tolist()]]


def direct(values: np.ndarray, goals: np.ndarray, gamma: float) -> np.ndarray:
    return np.linalg.solve(gamma * np.eye(values.shape[1]) + values.T @ values, values.T @ goals)


@pytest.mark.parametrize("gamma", [0.1, 5.0])
def test_the_direct_solution_after_every_task(gamma: float, make_method: MakeMethod, make_tasks: MakeTasks) -> None:
    method: ACIL = make_method("acil", gamma=gamma)
    tasks = make_tasks(GROUPS)
    for count, task in enumerate(tasks, 1):
        method.learn(task)
        values, goals = hidden(method, tasks[:count]), targets(method, tasks[:count])
        expected = direct(values, goals, gamma)
        assert method.weight.shape == (24, (2, 3, 4)[count - 1])
        assert np.allclose(method.weight.numpy(), expected, rtol=0, atol=1e-8)
        own = method.scores(task.images).numpy()
        assert np.allclose(own, values[-len(task.images) :] @ expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("size", [1, 7, 16, 1000])
def test_the_published_recursion_is_the_same(size: int, make_method: MakeMethod, make_tasks: MakeTasks) -> None:
    method: ACIL = make_method("acil", epochs=1)
    tasks = make_tasks(GROUPS)
    recursion = RecursiveLeastSquares(24, method.config.gamma)
    for task in tasks:
        method.learn(task)
        recursion.grow(len(method.classes))
        values, goals = torch.from_numpy(hidden(method, [task])), torch.from_numpy(targets(method, [task]))
        for batch, goal in zip(values.split(size), goals.split(size), strict=True):
            recursion.update(batch, goal)
        assert torch.allclose(method.weight, recursion.weight, rtol=0, atol=1e-8)


def shuffled(task: Task, seed: int) -> Task:
    order = np.random.default_rng(seed).permutation(len(task.labels))
    return Task(task.images[order], task.labels[order])


def test_order_does_not_matter(make_method: MakeMethod, make_tasks: MakeTasks, exact: Callable[[Any], Any]) -> None:
    """Neither that of samples within a task nor that of tasks; columns follow the order of classes."""
    first, second, third, fourth = make_tasks(((0,), (1,), (2,), (3,)))
    orders = [
        [first, second, third, fourth],
        [shuffled(first, 1), shuffled(second, 2), shuffled(third, 3), shuffled(fourth, 4)],
        [first, fourth, second, third],
        [fourth, third, second, first],
    ]
    weights = []
    for tasks in orders:
        method = exact(make_method("acil", epochs=0))
        for task in tasks:
            method.learn(task)
        weights.append(method.weight[:, np.argsort(method.classes)])
    assert float(weights[0].abs().max()) > 0.01
    for weight in weights[1:]:
        assert torch.allclose(weight, weights[0], rtol=0, atol=1e-9)


def test_classes_that_come_again_are_added_up(
    make_method: MakeMethod, make_tasks: MakeTasks, exact: Callable[[Any], Any]
) -> None:
    """Halves of the same classes are learned as the whole."""
    (task,) = make_tasks(((0, 1, 2),))
    halves = [Task(task.images[start::2], task.labels[start::2]) for start in (0, 1)]
    whole, parts = (exact(make_method("acil", epochs=0)) for _ in range(2))
    whole.learn(task)
    for half in halves:
        parts.learn(half)
    assert torch.allclose(parts.weight, whole.weight, rtol=0, atol=1e-9)


def test_more_samples_than_are_added_up_at_once(
    make_method: MakeMethod, exact: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    task = Task(random.integers(0, 256, (50, 8, 8, 3), dtype=np.uint8), np.arange(50) % 3)
    weights = []
    for tile in (7, 1024):
        monkeypatch.setattr("circle.baselines.acil.SAMPLES_PER_PRODUCT", tile)
        method = exact(make_method("acil", epochs=0))
        method.learn(task)
        weights.append(method.weight)
    assert torch.allclose(weights[0], weights[1], rtol=0, atol=1e-9)


def test_random_layer(make_method: MakeMethod, make_tasks: MakeTasks) -> None:
    """Uniform on +-1/sqrt(d), drawn once, and v is its product with the features in float64."""
    method: ACIL = make_method("acil", epochs=1, buffer_size=300)
    tasks = make_tasks()
    method.learn(tasks[0])
    projection = method.projection.clone()
    bound = 32**-0.5
    assert projection.shape == (300, 32)
    assert 0.99 * bound < float(projection.abs().max()) <= bound
    assert float(projection.var()) == pytest.approx(bound**2 / 3, rel=0.05)
    assert abs(float(projection.mean())) < 5 * bound / np.sqrt(3 * projection.numel())
    features = method.features(pixels_of(tasks[0]))
    values = method.projected(features)
    assert values.dtype == torch.float64
    expected = features.double().numpy() @ projection.double().numpy().T
    assert np.allclose(values.numpy(), expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    method.learn(tasks[1])
    assert torch.equal(method.projection, projection)


def test_the_head_of_the_first_task_has_no_bias(make_method: MakeMethod, make_tasks: MakeTasks) -> None:
    method: ACIL = make_method("acil", epochs=1)
    method.learn(make_tasks()[0])
    assert [tuple(parameter.shape) for parameter in method.head.parameters()] == [(2, 32)]


def test_numbers_of_parameters(make_method: MakeMethod, make_tasks: MakeTasks, monkeypatch: pytest.MonkeyPatch) -> None:
    small: ACIL = make_method("acil", epochs=1)
    for task in make_tasks(GROUPS):
        small.learn(task)
    count = small.parameter_count()
    network = sum(parameter.numel() for parameter in small.network.parameters())
    assert (count.learnable, count.fixed) == (network + 24 * 4, 24 * 32)
    # The published sizes, without the regression: its matrix of products would take half a gigabyte.
    published = ACIL(ACILConfig(initial_epochs=0, augmentations=()))

    def nothing(data: TaskData, features: Tensor) -> None:
        assert len(data) == len(features)

    monkeypatch.setattr(published, "update", nothing)
    published.learn(Task(np.zeros((100, 8, 8, 3), dtype=np.uint8), np.arange(100)))
    count = published.parameter_count()
    assert (count.learnable, count.fixed) == (11_988_032, 4_194_304)


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(CircleError, match="acil.gamma = 0.0: expected a positive number"):
        ACILConfig(gamma=0.0)
    with pytest.raises(CircleError, match="acil.buffer_size = 0: expected 1 or more"):
        ACILConfig(buffer_size=0)
