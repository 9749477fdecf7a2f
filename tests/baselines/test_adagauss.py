"""AdaGauss: classes carried along by hand, scores against NumPy, long streams, resuming. Losses: its other file."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from circle.baselines.adagauss import AdaGauss, AdaGaussConfig
from circle.baselines.trainer import TaskData, count_parameters
from circle.benchmark.results import load_state, same_state, save_state
from circle.errors import CircleError
from circle.method import Step, Task, TaskImages

pytestmark = pytest.mark.usefixtures("one_thread")

MakeTasks = Callable[..., list[Task]]
MakeAdaGauss = Callable[..., AdaGauss]


class LeftError(Exception):
    """Ends learning after a step."""


@pytest.fixture
def make(make_method: Callable[..., Any]) -> MakeAdaGauss:
    """A method with features of five values and a training of few steps, without batch norm unless asked for."""

    def make(**changes: Any) -> AdaGauss:
        small = {"network": "convnet", "epochs": 2, "feature_size": 5, "multiplier": 3, "draws": 40}
        return make_method("adagauss", **{**small, **changes})

    return make


def inputs(images: TaskImages) -> Tensor:
    return (torch.from_numpy(np.ascontiguousarray(np.asarray(images))).permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25


def features_of(method: AdaGauss, images: TaskImages) -> np.ndarray:
    with torch.no_grad():
        return method.network.eval()(inputs(images)).double().numpy()


def through(network: nn.Module, values: np.ndarray) -> np.ndarray:
    """W_2 gelu(W_1 v + b_1) + b_2 with gelu(x) = x Phi(x), in float64."""
    state = {name: value.double().numpy() for name, value in network.state_dict().items()}
    hidden = values @ state["weights.0"].T + state["biases.0"]
    hidden = hidden * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2))) / 2
    return hidden @ state["weights.1"].T + state["biases.1"]


def means_and_covariances(method: AdaGauss) -> tuple[np.ndarray, np.ndarray]:
    assert method.bank.covariances is not None
    return method.bank.means.numpy().copy(), method.bank.covariances.numpy().copy()


def test_old_classes_are_carried_along(
    make: MakeAdaGauss, make_tasks: MakeTasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draws of each old class, in the order of their columns, sent through the trained map; class 1 comes again."""
    first, second = make_tasks(((0, 1, 2), (1, 3)))
    method = make()
    method.learn(first)
    kept: list[Any] = []
    carry = method._carry_along

    def keep(data: TaskData) -> None:
        kept.extend([copy.deepcopy(method.extra["adapter"]), method.generator.get_state()])
        carry(data)

    monkeypatch.setattr(method, "_carry_along", keep)
    old_means, old_covariances = means_and_covariances(method)
    counts = list(method.bank.counts)
    method.learn(second)
    means, covariances = means_and_covariances(method)
    generator = torch.Generator()
    generator.set_state(kept[1])
    for column in (0, 2):
        noise = torch.randn(40, 5, generator=generator, dtype=torch.float64).numpy()
        drawn = old_means[column] + np.array([np.linalg.cholesky(old_covariances[column]) @ row for row in noise])
        mapped = through(kept[0], drawn)
        assert np.allclose(means[column], mapped.sum(0) / 40, rtol=1e-4, atol=1e-5)
        away = mapped - mapped.sum(0) / 40
        expected = sum(np.outer(row, row) for row in away) / 39
        assert np.allclose(covariances[column], expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
        assert not np.allclose(means[column], old_means[column], rtol=0.1), "they did move"
        assert method.bank.counts[column] == counts[column]


def test_old_classes_may_stay(make: MakeAdaGauss, make_tasks: MakeTasks) -> None:
    first, second = make_tasks()
    method, steps = make(compensation="none"), []
    method.learn(first)
    old_means, old_covariances = means_and_covariances(method)
    method.on_step = steps.append
    method.learn(second)
    means, covariances = means_and_covariances(method)
    assert np.array_equal(means[:2], old_means) and np.array_equal(covariances[:2], old_covariances)
    assert len(means) == 4 and {step.stage for step in steps} == {"train"}
    assert list(method.stage_seconds) == ["warm-up", "train", "statistics"]


def test_new_classes_are_described_by_images_and_mirror_images(make: MakeAdaGauss, make_tasks: MakeTasks) -> None:
    """Also one that comes again."""
    tasks, method = make_tasks(((0, 1), (3, 0))), make()
    for task in tasks:
        method.learn(task)
        means, covariances = means_and_covariances(method)
        for label in set(task.labels.tolist()):
            images = task.images[task.labels == label]
            own = np.concatenate([features_of(method, images), features_of(method, images[:, :, ::-1])])
            column = list(method.classes).index(label)
            assert method.bank.counts[column] == 2 * len(images) == len(own)
            assert np.allclose(means[column], own.mean(0), rtol=1e-5, atol=1e-6)
            expected = np.cov(own, rowvar=False)
            assert np.allclose(covariances[column], expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize(("normalise", "shrink"), [(True, 3.0), (False, 3.0), (True, 0.5)])
def test_scores(make: MakeAdaGauss, make_tasks: MakeTasks, normalise: bool, shrink: float) -> None:
    tasks = make_tasks()
    method = make(normalise=normalise, inference_shrink=shrink)
    assert AdaGaussConfig().inference_shrink == 3.0 and AdaGaussConfig().normalise
    images = make_tasks(((0, 1, 2, 3),), count=12, seed=5)[0].images
    for task in tasks:
        method.learn(task)
        means, covariances = means_and_covariances(method)
        values = features_of(method, images)
        expected = np.zeros((len(images), len(means)))
        for column, (mean, covariance) in enumerate(zip(means, covariances, strict=True)):
            wide = covariance + shrink * np.mean([covariance[j, j] for j in range(5)]) * np.eye(5)
            correlation = np.array(
                [[wide[i, j] / math.sqrt(wide[i, i] * wide[j, j]) for j in range(5)] for i in range(5)]
            )
            inverse = np.linalg.inv(correlation)
            for row, value in enumerate(values):
                u, v = value, mean
                if normalise:
                    u, v = value / math.sqrt(value @ value), mean / math.sqrt(mean @ mean)
                expected[row, column] = -(u - v) @ inverse @ (u - v)
        scores = method.scores(images)
        assert np.allclose(scores.numpy(), expected, rtol=1e-4, atol=1e-5)
        assert np.array_equal(means, means_and_covariances(method)[0]), "scoring leaves them as they are"
        assert np.array_equal(covariances, means_and_covariances(method)[1])


def test_a_class_that_does_not_vary(make: MakeAdaGauss, make_tasks: MakeTasks) -> None:
    """Its correlations are those of independent values, here and after it was carried along."""
    method, tasks = make(), make_tasks()
    method.learn(tasks[0])
    mean = method.bank.means[0].clone()
    method.bank.put(0, 2, mean, torch.zeros(5, 5, dtype=torch.float64))
    values = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    u = values.double().numpy() / np.linalg.norm(values.double().numpy(), axis=1, keepdims=True)
    v = mean.numpy() / np.linalg.norm(mean.numpy())
    assert np.allclose(method.scores_of(values)[:, 0].numpy(), -((u - v) ** 2).sum(1), rtol=1e-6)
    method.learn(tasks[1])
    assert bool(method.scores(tasks[0].images).isfinite().all())


def test_heads_are_dropped(make: MakeAdaGauss, make_tasks: MakeTasks) -> None:
    method = make()
    for task in make_tasks():
        method.learn(task)
        state = method.state_dict()
        assert state["head"]["weight"].shape == (0, 5) and len(method.extra) == 0
        assert "pending" not in state
    assert method.parameter_count().learnable == count_parameters(method.network)
    published = AdaGauss(AdaGaussConfig())
    network = published.new_network(3, published.generator)
    assert count_parameters(network) == 11_168_832 + 512 * 64 + 64


def test_the_previous_network_stays_as_it_was(
    make: MakeAdaGauss, make_tasks: MakeTasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, averages of batch norm, and evaluation mode, in all stages."""
    monkeypatch.setattr("circle.baselines.adagauss.WARMUP_SHARE", 0.5)
    first, second = make_tasks()
    method, stages = make(network="resnet18", batch_size=400), []
    method.learn(first)
    before = method.state_dict()["backbone"]

    def check(step: Step) -> None:
        stages.append(step.stage)
        former = method.extra["network"]
        assert same_state(dict(former.state_dict()), before)
        assert not any(module.training for module in former.modules())

    method.on_step = check
    method.learn(second)
    assert stages == ["warm-up", "train", "adapter"]
    assert not same_state(method.state_dict()["backbone"], before)


def test_a_long_stream_of_single_classes(make: MakeAdaGauss, caplog: pytest.LogCaptureFixture) -> None:
    """Classes sent through a map again and again lose rank; the published code ended near task 110."""
    caplog.set_level(logging.ERROR)  # hundreds of covariances are mended
    random = np.random.default_rng(0)
    tiny = {"network": "convnet", "width": 2, "feature_size": 4, "epochs": 1, "draws": 50, "multiplier": 2}
    method = make(**tiny, batch_size=8, augmentations=())
    images = random.integers(0, 256, (112, 5, 8, 8, 3), dtype=np.uint8)
    for label in range(112):
        method.learn(Task(images[label], np.full(5, label)))
    scores = method.scores(images[:, 0])
    assert scores.shape == (112, 112) and bool(scores.isfinite().all())
    assert len({tuple(row) for row in scores.tolist()}) > 60, "they depend on the image"
    assert method.bank.jittered > 100


@pytest.mark.parametrize(("stage", "step"), [("train", 3), ("adapter", 1)])
def test_taken_up_again_in_the_second_task(
    make: MakeAdaGauss, make_tasks: MakeTasks, tmp_path: Path, caplog: pytest.LogCaptureFixture, stage: str, step: int
) -> None:
    """In another object. Batches have fewer samples than features have values: those mended are counted on."""
    first, second = make_tasks()
    settings = {"network": "resnet18", "feature_size": 20, "turned": False}
    whole, method = make(**settings), make(**settings)
    for each in (whole, method):
        each.learn(first)
    caplog.clear()
    steps: list[Step] = []
    whole.on_step = steps.append
    with caplog.at_level(logging.WARNING, logger="circle.baselines.adagauss"):
        whole.learn(second)
    count = (2 + 1) * (len(second.images) // 16)  # epochs of training and of the adapter
    assert len(steps) == count and whole.mended == 0
    told = [record.getMessage() for record in caplog.records if record.name == "circle.baselines.adagauss"]
    assert told == [f"adagauss: covariances of {count} batches were singular in task 2"]

    def leave(place: Step) -> None:
        if (place.stage, (place.epoch - 1) * place.steps + place.step) == (stage, step):
            save_state(tmp_path / "state", method.state_dict(), {})
            raise LeftError

    method.on_step = leave
    with pytest.raises(LeftError):
        method.learn(second)
    saved = load_state(tmp_path / "state")[0]
    parts = {name.partition(".")[0] for name in saved["pending"]["extra"]}
    assert parts == {"head", "network", "distiller", "adapter"}
    resumed = make(**settings, seed=9)
    resumed.load_state_dict(saved)
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="circle.baselines.adagauss"):
        resumed.learn(second)
    assert [record.getMessage() for record in caplog.records if record.name == "circle.baselines.adagauss"] == told
    assert same_state(resumed.state_dict(), whole.state_dict())
    assert torch.equal(resumed.scores(first.images), whole.scores(first.images))


def test_scores_follow_a_loaded_state(make: MakeAdaGauss, make_tasks: MakeTasks) -> None:
    """What was made for scoring with other statistics is not used again."""
    first, second = make_tasks()
    methods = [make(seed=seed) for seed in (0, 1)]
    for method in methods:
        method.learn(first)
    images = second.images
    one, other = (method.scores(images) for method in methods)
    assert not torch.allclose(one, other)
    methods[0].load_state_dict(methods[1].state_dict())
    assert torch.equal(methods[0].scores(images), other)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("feature_size", 0), ("multiplier", 0), ("draws", 1), ("spread_limit", 0.0), ("inference_shrink", -1.0)),
        *(("distillation_weight", -1.0), ("spread_weight", -1.0), ("adapter_learning_rate", 0.0)),
    ],
)
def test_settings_out_of_range_are_refused(setting: str, value: float) -> None:
    with pytest.raises(CircleError, match=rf"adagauss.{setting} = {value}: expected"):
        AdaGaussConfig(**{setting: value})  # pyright: ignore[reportArgumentType]


def test_defaults() -> None:
    config = AdaGaussConfig()
    assert (config.batch_size, config.epochs, config.learning_rate, config.weight_decay) == (256, 200, 0.1, 5e-4)
    assert (config.distillation_weight, config.spread_weight, config.spread_limit) == (10.0, 1.0, 1.0)
    assert (config.feature_size, config.multiplier, config.draws) == (64, 32, 10_000)
    assert (config.adapter_learning_rate, config.adapter_milestones) == (0.01, (30, 60, 90))
    assert config.turned and config.augmentations == ("crop", "flip", "trivial_augment")
    assert set(config.published_names.values()) <= set(config.field_names())
