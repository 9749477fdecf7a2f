"""FeCAM: shrinkage, correlations and distances against explicit inverses; what decides while there is one task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from circle.baselines.fecam import FeCAM, FeCAMConfig
from circle.baselines.networks import CosineHead
from circle.benchmark.results import same_state
from circle.errors import CircleError
from circle.method import Task

pytestmark = pytest.mark.usefixtures("one_thread")

MakeMethod = Callable[..., Any]
MakeTasks = Callable[..., list[Task]]


def pixels_of(task: Task) -> Tensor:
    return torch.from_numpy(task.images).permute(0, 3, 1, 2).contiguous()


def features_of(method: FeCAM, task: Task) -> np.ndarray:
    return method.features(pixels_of(task)).double().numpy()


def shrink(covariance: np.ndarray, alpha1: float, alpha2: float) -> np.ndarray:
    """S + alpha_1 v I + alpha_2 o (1 1^T - I), entry by entry."""
    size = len(covariance)
    on = np.mean([covariance[i, i] for i in range(size)])
    off = np.mean([covariance[i, j] for i in range(size) for j in range(size) if i != j])
    result = covariance.copy()
    for i in range(size):
        for j in range(size):
            result[i, j] += alpha1 * on if i == j else alpha2 * off
    return result


def normalised(values: np.ndarray) -> np.ndarray:
    return values / np.sqrt((values**2).sum(-1, keepdims=True))


def expected_score(own: np.ndarray, values: np.ndarray, config: FeCAMConfig) -> np.ndarray:
    """Scores of a class with features ``own`` for features ``values``, [N]."""
    covariance = np.cov(own**config.beta, rowvar=False)
    for _ in range(2):
        covariance = shrink(covariance, config.alpha1, config.alpha2)
    deviation = np.sqrt(np.diag(covariance))
    inverse = np.linalg.inv(covariance / deviation[:, None] / deviation[None, :])
    away = normalised(values**config.beta) - normalised(own.mean(0) ** config.beta)
    return -np.array([each @ inverse @ each for each in away])


@pytest.mark.parametrize("settings", [{}, {"alpha1": 0.5, "alpha2": 0.0}, {"alpha1": 3.0, "alpha2": 0.3, "beta": 1.0}])
def test_scores_after_two_tasks(settings: dict[str, float], make_method: MakeMethod, make_tasks: MakeTasks) -> None:
    method: FeCAM = make_method("fecam", **settings)
    tasks = make_tasks(((0, 3), (1, 2)))
    for task in tasks:
        method.learn(task)
    assert list(method.classes) == [0, 3, 1, 2]
    for task in tasks:
        values = features_of(method, task)
        assert values.min() >= 0.0
        columns = []
        for label in method.classes:
            home = next(each for each in tasks if label in each.labels)
            columns.append(expected_score(features_of(method, home)[home.labels == label], values, method.config))
        scores = method.scores(task.images)
        assert scores.dtype == torch.float64
        assert np.allclose(scores.numpy(), np.stack(columns, 1), rtol=1e-5, atol=1e-8)
    assert method.bank.jittered == 0


def test_scores_after_the_first_task_rank_as_distances_to_the_head(
    make_method: MakeMethod, make_tasks: MakeTasks
) -> None:
    method: FeCAM = make_method("fecam")
    (task,) = make_tasks(((0, 1, 2, 3),))
    method.learn(task)
    assert isinstance(method.head, CosineHead)
    values, weight = normalised(features_of(method, task)), normalised(method.head.weight.detach().double().numpy())
    distances = ((values[:, None, :] - weight[None, :, :]) ** 2).sum(2)
    scores = method.scores(task.images).double().numpy()
    assert np.array_equal(np.argsort(-scores, axis=1), np.argsort(distances, axis=1))
    # One is a falling function of the other, so that images can be ranked, too.
    assert np.allclose(distances, 2 - 2 * scores, atol=1e-5)


def test_order_of_later_classes_does_not_matter(make_method: MakeMethod, make_tasks: MakeTasks) -> None:
    first, second, third = make_tasks(((0, 1), (2,), (3,)))
    scores = []
    for tasks in ((first, second, third), (first, third, second)):
        method: FeCAM = make_method("fecam")
        for task in tasks:
            method.learn(task)
        scores.append(method.scores(first.images)[:, np.argsort(np.array(method.classes))])
    assert torch.allclose(scores[0], scores[1], rtol=1e-9, atol=0)


def test_the_first_task_counts_as_soon_as_there_are_two(make_method: MakeMethod, make_tasks: MakeTasks) -> None:
    """Statistics of the first task's classes were taken with it: a task of new classes does not touch them."""
    first, second = make_tasks()
    method: FeCAM = make_method("fecam")
    method.learn(first)
    before = method.bank.state_dict()
    method.learn(second)
    after = method.bank.state_dict()
    assert len(before["means"]) == 2 and len(after["means"]) == 4
    assert torch.equal(after["means"][:2], before["means"])
    assert torch.equal(after["covariances"][:2], before["covariances"])
    diagonals = torch.diagonal(after["covariances"], dim1=1, dim2=2)
    assert torch.allclose(diagonals, torch.ones_like(diagonals)), "correlations"
    assert torch.allclose(torch.linalg.vector_norm(after["means"], dim=1), torch.ones(4, dtype=torch.float64))


def test_a_class_that_comes_again_is_described_by_its_latest_images(
    make_method: MakeMethod, make_tasks: MakeTasks
) -> None:
    first, second = make_tasks(((0, 1), (2,)))
    (again,) = make_tasks(((1,),), seed=5)
    method: FeCAM = make_method("fecam")
    for task in (first, second):
        method.learn(task)
    before = method.scores(first.images)
    method.learn(again)
    values, after = features_of(method, first), method.scores(first.images)
    expected = expected_score(features_of(method, again), values, method.config)
    assert np.allclose(after[:, 1].numpy(), expected, rtol=1e-5)
    assert torch.equal(after[:, [0, 2]], before[:, [0, 2]])


def test_features_that_are_tiny(make_method: MakeMethod, make_tasks: MakeTasks, exact: Callable[[Any], Any]) -> None:
    """Scores do not depend on the scale of all features, however small: the transform only scales with it."""
    tasks, scores = make_tasks(), []
    for scale in (1.0, 1e-12):
        method: FeCAM = make_method("fecam", epochs=0)
        plain = exact(method).features
        method.features = lambda pixels, plain=plain, scale=scale: plain(pixels) * scale
        for task in tasks:
            method.learn(task)
        scores.append(method.scores(tasks[0].images))
    assert torch.allclose(scores[0], scores[1], rtol=1e-4)


def test_scoring_leaves_the_state_alone(make_method: MakeMethod, make_tasks: MakeTasks) -> None:
    """With no variance added, covariances of few images are singular and mended when they are first used."""
    method: FeCAM = make_method("fecam", epochs=1, alpha1=0.0, alpha2=0.0)
    tasks = make_tasks(count=40)
    for task in tasks:
        method.learn(task)
    before = method.state_dict()
    method.scores(tasks[0].images)
    assert same_state(method.state_dict(), before)


def test_settings_out_of_range_are_refused() -> None:
    for setting in ("alpha1", "alpha2"):
        with pytest.raises(CircleError, match=f"fecam.{setting} = -0.1: expected zero or a positive number"):
            FeCAMConfig.from_dict({setting: -0.1})
    with pytest.raises(CircleError, match="fecam.beta = 0.0: expected a positive number"):
        FeCAMConfig(beta=0.0)
