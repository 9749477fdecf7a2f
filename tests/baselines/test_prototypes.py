"""What PASS and IL2A share: the distance to previous features, means that never move, and when the rate falls."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from circle.baselines.optimisers import Optimiser
from circle.baselines.prototypes import PrototypeMethod, feature_norm
from circle.baselines.trainer import TaskData
from circle.benchmark.results import same_state
from circle.errors import CircleError
from circle.method import Step, Task
from circle.registry import entry

pytestmark = pytest.mark.usefixtures("one_thread")

MakeMethod = Callable[..., Any]
MakeTasks = Callable[..., list[Task]]


@pytest.fixture(params=["pass", "il2a"])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def features_of(method: PrototypeMethod[Any], task: Task) -> np.ndarray:
    """f(x) of images as they are, by another copy of the network, float64 [N, d]."""
    images = torch.from_numpy((np.moveaxis(np.asarray(task.images), 3, 1) / 255 - 0.5) / 0.25).float()
    with torch.no_grad():
        return copy.deepcopy(method.network).eval()(images).double().numpy()


def test_distance_to_previous_features(
    name: str, make_method: MakeMethod, make_tasks: MakeTasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """w |F - F_old|_F, of which F alone is learned."""
    first, second = make_tasks()
    method: PrototypeMethod[Any] = make_method(name, epochs=1, feature_distillation_weight=1.7)
    method.learn(first)
    images = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    features = torch.rand(6, method.network.size, generator=torch.Generator().manual_seed(1)).requires_grad_()
    with torch.no_grad():
        former = copy.deepcopy(method.network).eval()(images).double().numpy()
    values: list[Tensor] = []

    def begin(data: TaskData) -> None:
        with torch.no_grad():
            for parameter in method.network.parameters():
                parameter.mul_(1.3)  # the new network is another one
        before = copy.deepcopy(method.extra["network"].state_dict())
        values.append(method.distance(images, features))
        assert same_state(method.extra["network"].state_dict(), before), "its running averages, too"

    monkeypatch.setattr(method, "begin", begin)
    method.learn(second)
    total, now = 0.0, features.detach().double().numpy()
    for i in range(6):
        for j in range(now.shape[1]):
            total += (now[i, j] - former[i, j]) ** 2
    assert values[0].item() == pytest.approx(1.7 * total**0.5, rel=1e-5)
    (gradient,) = torch.autograd.grad(values[0], features)
    assert np.allclose(gradient.numpy(), 1.7 * (now - former) / total**0.5, rtol=1e-4, atol=1e-6)


def test_the_teacher_rests_and_stays(name: str, make_method: MakeMethod, make_tasks: MakeTasks) -> None:
    first, second = make_tasks()
    method: PrototypeMethod[Any] = make_method(name, epochs=1)
    looks: list[int] = []

    def look(step: Step) -> None:
        looks.append(step.task)
        assert ("network" in method.extra) == (step.task == 2)
        if step.task == 2:
            teacher = method.extra["network"]
            assert not any(module.training for module in teacher.modules())
            assert all(module.training for module in method.network.modules())
            assert same_state(teacher.state_dict(), before)
            assert not same_state(method.network.state_dict(), before)

    method.on_step = look
    method.learn(first)
    before = method.state_dict()["backbone"]
    method.learn(second)
    assert set(looks) == {1, 2} and len(method.extra) == 0


def test_means_are_those_of_their_own_task_for_ever(name: str, make_method: MakeMethod, make_tasks: MakeTasks) -> None:
    """Plain images, after training, in evaluation mode; a class that comes again is measured again."""
    tasks = make_tasks(((0, 1), (2,), (1, 3)))
    method: PrototypeMethod[Any] = make_method(name, augmentations=("crop", "flip", "brightness"))
    for task, later in zip(tasks, ([], [0, 1], [0, 2]), strict=True):
        before, spreads = method.bank.means.clone(), method.bank.spreads.clone()
        method.learn(task)
        after, features = method.bank.means, features_of(method, task)
        for label in sorted(set(task.labels.tolist())):
            own = features[task.labels == label]
            assert np.allclose(after[label].numpy(), own.mean(0), rtol=1e-4, atol=1e-6)
            spread = np.trace(np.cov(own, rowvar=False)) / own.shape[1]
            assert float(method.bank.spreads[label]) == pytest.approx(spread, rel=1e-3)
            assert method.bank.counts[label] == len(own)
        for label in later:
            assert torch.equal(after[label], before[label]) and torch.equal(method.bank.spreads[label], spreads[label])
    drifted = features_of(method, tasks[0])[tasks[0].labels == 0].mean(0)
    assert np.abs(drifted - method.bank.means[0].numpy()).max() > 0.01, "though the features have moved"


def test_old_classes_are_drawn_alike(name: str, make_method: MakeMethod) -> None:
    data = TaskData(torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.tensor([5, 6, 5, 6]), 5)
    method: PrototypeMethod[Any] = make_method(name, seed=3)
    columns = method.old_classes(5000, data)
    counts = np.bincount(columns.numpy(), minlength=5)
    assert columns.shape == (5000,) and len(counts) == 5
    assert ((counts - 1000) ** 2 / 1000).sum() < 18.5, "chi-square with 4 degrees of freedom, 0.1 %"
    assert torch.equal(make_method(name, seed=3).old_classes(5000, data), columns)
    assert not torch.equal(method.old_classes(5000, data), columns)


def test_the_rate_falls_every_few_epochs(
    name: str, make_method: MakeMethod, make_tasks: MakeTasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """StepLR, begun anew with every task; Adam with the decay in its gradient."""
    settings = {"learning_rate": 0.01, "learning_rate_step": 2, "learning_rate_decay": 0.3, "weight_decay": 0.07}
    method: PrototypeMethod[Any] = make_method(name, epochs=5, batch_size=100, **settings)
    taken: list[Optimiser] = []
    rates: list[float] = []

    def take(optimiser: Optimiser, gradients: Any, rate: float) -> None:
        taken.append(optimiser)
        rates.append(rate)

    monkeypatch.setattr(Optimiser, "step", take)
    for task in make_tasks():
        method.learn(task)
    assert rates == pytest.approx([0.01 * 0.3 ** (epoch // 2) for epoch in range(5)] * 2)
    assert len({id(optimiser) for optimiser in taken}) == 2
    for optimiser in taken:
        assert (optimiser.training.optimiser, optimiser.training.weight_decay) == ("adam", 0.07)
        assert set(optimiser.scales) == {1.0} and optimiser.training.clip is None
        assert not optimiser.training.drop_last


def test_published_settings(name: str) -> None:
    method: PrototypeMethod[Any] = entry("method", name).part()
    training = method.training()
    rates = [training.rate(epoch) for epoch in (0, 44, 45, 89, 90, 100)]
    assert rates == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4, 1e-5, 1e-5])
    assert (training.epochs, training.batch_size, training.weight_decay) == (101, 64, 2e-4)
    config = method.config
    assert (config.softmax_temperature, config.feature_distillation_weight, config.prototype_weight) == (0.1, 10, 10)


def test_settings_out_of_range_are_refused(name: str) -> None:
    config = entry("method", name).config()
    for setting, value in (
        ("learning_rate_step", 0),
        ("softmax_temperature", 0.0),
        ("feature_distillation_weight", -1.0),
        ("prototype_weight", -1.0),
    ):
        with pytest.raises(CircleError, match=f"{name}.{setting} = {value}: expected"):
            config.replace(**{setting: value})


def test_feature_norm_is_one_norm_over_the_whole_batch() -> None:
    now_values, before = np.random.default_rng(0).normal(size=(2, 7, 4))
    now = torch.tensor(now_values, requires_grad=True)
    value = feature_norm(now, torch.tensor(before))
    expected = np.sqrt(((now_values - before) ** 2).sum())
    assert np.isclose(value.item(), expected)
    (gradient,) = torch.autograd.grad(value, now)
    assert np.allclose(gradient.numpy(), (now_values - before) / expected)
