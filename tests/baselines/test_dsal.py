"""DS-AL: both streams against loops in NumPy, residuals after each batch or each task, and ACIL inside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from circle.baselines.dsal import DSAL, DSALConfig
from circle.benchmark.results import same_state
from circle.errors import CircleError
from circle.method import Task

pytestmark = pytest.mark.usefixtures("one_thread")

MakeMethod = Callable[..., Any]
MakeTasks = Callable[..., list[Task]]
Exact = Callable[[Any], Any]
SIZE, GAMMA, COMPENSATION_GAMMA, RATIO = 24, 0.3, 0.7, 0.6


@pytest.fixture
def make_dsal(make_method: MakeMethod, exact: Exact) -> MakeMethod:
    def make(**changes: Any) -> DSAL:
        settings = {"gamma": GAMMA, "compensation_gamma": COMPENSATION_GAMMA, "compensation_ratio": RATIO}
        return exact(make_method("dsal", **{"epochs": 0, **settings, **changes}))

    return make


def pixels_of(task: Task) -> Tensor:
    return torch.from_numpy(task.images).permute(0, 3, 1, 2).contiguous()


def values_of(method: DSAL, task: Task) -> np.ndarray:
    """v = P f of a task's images, [N, D]."""
    return method.projected(method.features(pixels_of(task))).numpy()


def columns_of(method: DSAL, task: Task) -> np.ndarray:
    return np.array([list(method.classes).index(label) for label in task.labels.tolist()])


def widened(weight: np.ndarray, columns: int) -> np.ndarray:
    return np.hstack([weight, np.zeros((len(weight), columns - weight.shape[1]))])


class Recursion:
    """The published recursion as it stands: R <- R - R H^T (I + H R H^T)^{-1} H R, then W <- W + R H^T (Y - H W)."""

    def __init__(self, gamma: float) -> None:
        self.inverse, self.weight = np.eye(SIZE) / gamma, np.zeros((SIZE, 0))

    def update(self, values: np.ndarray, targets: np.ndarray) -> None:
        middle = np.linalg.inv(np.eye(len(values)) + values @ self.inverse @ values.T)
        self.inverse = self.inverse - self.inverse @ values.T @ middle @ values @ self.inverse
        self.weight = self.weight + self.inverse @ values.T @ (targets - values @ self.weight)


@pytest.mark.parametrize("size", [1, 7, 16, 256])
def test_residuals_after_every_batch(size: int, make_dsal: MakeMethod, make_tasks: MakeTasks) -> None:
    method: DSAL = make_dsal(incremental_batch_size=size)
    main, compensation = Recursion(GAMMA), Recursion(COMPENSATION_GAMMA)
    for task in make_tasks(((0, 1), (2, 3))):
        method.learn(task)
        classes = len(method.classes)
        main.weight, compensation.weight = widened(main.weight, classes), widened(compensation.weight, classes)
        values, columns = values_of(method, task), columns_of(method, task)
        order = [index for column in range(classes) for index in np.flatnonzero(columns == column)]
        assert size in (1, 256) or len(order) % size
        for start in range(0, len(order), size):
            batch = order[start : start + size]
            hidden, goals = np.maximum(values[batch], 0), np.eye(classes)[columns[batch]]
            main.update(hidden, goals)
            left_over = goals - hidden @ main.weight
            for column in range(classes):
                if column not in columns:
                    left_over[:, column] = 0
            compensation.update(np.tanh(values[batch]), left_over)
        assert np.allclose(method.main.weight.numpy(), main.weight, rtol=0, atol=1e-8)
        assert np.allclose(method.compensation.weight.numpy(), compensation.weight, rtol=0, atol=1e-8)
        scores = np.maximum(values, 0) @ main.weight + RATIO * np.tanh(values) @ compensation.weight
        assert np.allclose(method.scores(task.images).numpy(), scores, rtol=0, atol=1e-7)


@pytest.mark.parametrize("size", [7, 256])
def test_residuals_after_every_task_are_two_direct_solutions(
    size: int, make_dsal: MakeMethod, make_tasks: MakeTasks
) -> None:
    method: DSAL = make_dsal(residuals="task", incremental_batch_size=size)
    products, sums = GAMMA * np.eye(SIZE), np.zeros((SIZE, 0))
    products_left, sums_left = COMPENSATION_GAMMA * np.eye(SIZE), np.zeros((SIZE, 0))
    for task in make_tasks(((0, 1), (2,), (1, 3))):  # a class that comes again, too
        method.learn(task)
        classes = len(method.classes)
        sums, sums_left = widened(sums, classes), widened(sums_left, classes)
        values, columns = values_of(method, task), columns_of(method, task)
        hidden, odd, goals = np.maximum(values, 0), np.tanh(values), np.eye(classes)[columns]
        products, sums = products + hidden.T @ hidden, sums + hidden.T @ goals
        weight = np.linalg.solve(products, sums)
        left_over = (goals - hidden @ weight) * np.isin(np.arange(classes), columns)
        products_left, sums_left = products_left + odd.T @ odd, sums_left + odd.T @ left_over
        assert np.allclose(method.main.weight.numpy(), weight, rtol=0, atol=1e-8)
        expected = np.linalg.solve(products_left, sums_left)
        assert np.allclose(method.compensation.weight.numpy(), expected, rtol=0, atol=1e-8)


def test_whether_order_and_batches_have_a_say(make_dsal: MakeMethod, make_tasks: MakeTasks) -> None:
    tasks = make_tasks()
    order = [np.random.default_rng(index).permutation(len(task.labels)) for index, task in enumerate(tasks)]
    shuffled = [Task(task.images[own], task.labels[own]) for task, own in zip(tasks, order, strict=True)]

    def learned(own: list[Task], size: int, residuals: str) -> tuple[Tensor, Tensor]:
        method: DSAL = make_dsal(residuals=residuals, incremental_batch_size=size)
        for task in own:
            method.learn(task)
        return method.main.weight, method.compensation.weight

    for residuals in ("task", "batch"):
        main, compensation = learned(tasks, 8, residuals)
        for own, size in ((shuffled, 8), (tasks, 13)):
            other, left_over = learned(own, size, residuals)
            assert torch.allclose(other, main, rtol=0, atol=1e-8), "the main stream is exact in any case"
            if residuals == "task":
                assert torch.allclose(left_over, compensation, rtol=0, atol=1e-8)
            else:
                assert float((left_over - compensation).abs().max()) > 1e-4


@pytest.mark.parametrize("residuals", ["batch", "task"])
def test_without_compensation_it_is_acil(
    residuals: str, make_method: MakeMethod, make_dsal: MakeMethod, make_tasks: MakeTasks, exact: Exact
) -> None:
    dsal = make_dsal(epochs=1, compensation_ratio=0.0, residuals=residuals, incremental_batch_size=11)
    acil = exact(make_method("acil", epochs=1, gamma=GAMMA))
    for task in make_tasks():
        for method in (dsal, acil):
            method.learn(task)
        assert same_state(dsal.state_dict()["backbone"], acil.state_dict()["backbone"])
        assert torch.equal(dsal.projection, acil.projection)
        assert torch.allclose(dsal.scores(task.images), acil.scores(task.images), rtol=0, atol=1e-8)


def test_learned_from_the_network_itself(make_method: MakeMethod, make_tasks: MakeTasks) -> None:
    """The same with real features, which agree to single precision only."""
    method: DSAL = make_method("dsal", residuals="task", gamma=GAMMA, incremental_batch_size=10)
    tasks = make_tasks()
    products, sums = GAMMA * np.eye(SIZE), np.zeros((SIZE, 4))
    for task in tasks:
        method.learn(task)
        features = method.features(pixels_of(task)).double().numpy()
        hidden = np.maximum(features @ method.projection.double().numpy().T, 0)
        products, sums = products + hidden.T @ hidden, sums + hidden.T @ np.eye(4)[task.labels]
    assert np.allclose(method.main.weight.numpy(), np.linalg.solve(products, sums), rtol=0, atol=1e-4)


def test_number_of_parameters(make_dsal: MakeMethod, make_tasks: MakeTasks) -> None:
    method: DSAL = make_dsal()
    for task in make_tasks():
        method.learn(task)
    count = method.parameter_count()
    network = sum(parameter.numel() for parameter in method.network.parameters())
    assert (count.learnable, count.fixed) == (network + 2 * SIZE * 4, SIZE * 32)


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(CircleError, match="dsal.compensation_gamma = 0.0: expected a positive number"):
        DSALConfig(compensation_gamma=0.0)
    with pytest.raises(CircleError, match="dsal.incremental_batch_size = 0: expected 1 or more"):
        DSALConfig(incremental_batch_size=0)
