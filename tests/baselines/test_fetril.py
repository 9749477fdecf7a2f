"""FeTrIL's made features against NumPy, its head that grows, and networks that stay frozen in all such methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from circle.baselines.fetril import FeTrIL, pseudo_features
from circle.benchmark.results import same_state
from circle.data.images import Images, Subset
from circle.method import Step, Task

pytestmark = pytest.mark.usefixtures("one_thread")

MakeMethod = Callable[..., Any]
MakeTasks = Callable[..., list[Task]]
FROZEN = ("acil", "dsal", "fecam", "fetril")


def pixels_of(task: Task) -> Tensor:
    return torch.from_numpy(task.images).permute(0, 3, 1, 2).contiguous()


@given(
    old=st.integers(0, 4),
    counts=st.lists(st.integers(2, 6), min_size=1, max_size=4),
    size=st.integers(2, 5),
    seed=st.integers(0, 1000),
)
def test_made_features(old: int, counts: list[int], size: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    columns = random.permutation(np.repeat(np.arange(old, old + len(counts)), counts))
    features = random.gamma(1.0, size=(len(columns), size))
    means = np.stack(
        [random.gamma(1.0, size=size) for _ in range(old)]
        + [features[columns == old + index].mean(0) for index in range(len(counts))]
    )
    samples, rehearsed, shifts = pseudo_features(torch.from_numpy(columns), torch.from_numpy(means))
    made = features[samples.numpy()] + shifts.numpy()[rehearsed.numpy()]
    total = 0
    for p in range(old + len(counts)):
        own = made[rehearsed.numpy() == p]
        if p >= old:
            assert sorted(map(tuple, own)) == sorted(map(tuple, features[columns == p])), "new classes come as they are"
            player = p
        else:
            cosines = [
                means[p] @ means[q] / np.sqrt((means[p] @ means[p]) * (means[q] @ means[q]))
                for q in range(old, len(means))
            ]
            player = old + int(np.argmax(cosines))
            assert set(samples.numpy()[rehearsed.numpy() == p]) == set(np.flatnonzero(columns == player))
        assert np.allclose(own.mean(0), means[p], atol=1e-12)
        assert np.allclose(np.cov(own, rowvar=False), np.cov(features[columns == player], rowvar=False), atol=1e-12)
        assert len(own) == counts[player - old]
        total += counts[player - old]
    assert len(samples) == len(rehearsed) == total
    assert shifts.shape == (old + len(counts), size)


def test_direction_counts_and_not_distance() -> None:
    """The old class is nearest to one new class, but points the way of the other."""
    means = torch.tensor([[1.0, 1.0], [10.0, 10.0], [1.0, 0.5]], dtype=torch.float64)
    columns = torch.tensor([1, 2, 1, 2])
    samples, rehearsed, shifts = pseudo_features(columns, means)
    assert sorted(samples[rehearsed == 0].tolist()) == [0, 2]
    assert torch.equal(shifts[0], torch.tensor([-9.0, -9.0], dtype=torch.float64))


def test_classes_that_come_again_are_new() -> None:
    """Column 0 is known, but in this task: its own images are there, and column 1 alone is rehearsed."""
    means = torch.eye(3, dtype=torch.float64) + 0.1
    samples, rehearsed, shifts = pseudo_features(torch.tensor([0, 2, 2, 0, 0]), means)
    assert samples[rehearsed == 0].tolist() == [0, 3, 4] and samples[rehearsed == 2].tolist() == [1, 2]
    assert not shifts[[0, 2]].any() and bool(shifts[1].any())


def test_new_classes_are_not_rehearsed_even_if_they_point_the_same_way() -> None:
    means = torch.tensor([[3.0, 1.0], [1.0, 2.0], [2.0, 4.0], [0.3, 0.6]], dtype=torch.float64)
    samples, rehearsed, shifts = pseudo_features(torch.tensor([3, 1, 2, 1]), means)
    assert [samples[rehearsed == column].tolist() for column in (1, 2, 3)] == [[1, 3], [2], [0]]
    assert not shifts[1:].any()


def test_means_are_those_of_plain_images(make_method: MakeMethod, make_tasks: MakeTasks) -> None:
    method: FeTrIL = make_method("fetril")
    tasks = make_tasks()
    for task in tasks:
        method.learn(task)
    for column, label in enumerate(method.classes):
        task = next(each for each in tasks if label in each.labels)
        features = method.features(pixels_of(task)).double().numpy()
        assert np.allclose(method.bank.means[column].numpy(), features[task.labels == label].mean(0), rtol=1e-6)


def test_the_head_keeps_its_old_rows_when_it_grows(make_method: MakeMethod, make_tasks: MakeTasks) -> None:
    first, second = make_tasks()
    method: FeTrIL = make_method("fetril", initial_epochs=2, epochs=0)
    method.learn(first)
    before = method.state_dict()["head"]
    method.learn(second)
    after = method.state_dict()["head"]
    assert after["weight"].shape == (4, 32)
    for name, rows in before.items():
        assert torch.equal(after[name][:2], rows)
    assert not after["bias"][2:].any() and bool(after["weight"][2:].any())


def test_the_first_step_of_the_head(
    make_method: MakeMethod, make_tasks: MakeTasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One batch of all features, real and made: its loss, and one step of plain gradient descent, by hand."""
    first, second = make_tasks()
    method: FeTrIL = make_method(
        "fetril", initial_epochs=1, epochs=1, learning_rate=0.5, weight_decay=0.01, batch_size=1000
    )
    method.learn(first)
    heads: list[dict[str, Tensor]] = []
    begin = method.begin

    def keep(data: Any) -> None:
        begin(data)
        heads.append({name: value.clone().double() for name, value in method.head.state_dict().items()})

    monkeypatch.setattr(method, "begin", keep)
    steps: list[Step] = []
    method.on_step = steps.append
    method.learn(second)
    features = method.features(pixels_of(second)).double().numpy()
    means = method.bank.means.numpy()
    values, targets = [features], [second.labels]
    for p in (0, 1):
        q = max((2, 3), key=lambda q, p=p: means[p] @ means[q] / np.linalg.norm(means[q]))
        values.append(features[second.labels == q] - means[q] + means[p])
        targets.append(np.full(len(values[-1]), p))
    x, y = np.concatenate(values), np.concatenate(targets)
    weight, bias = heads[0]["weight"].numpy(), heads[0]["bias"].numpy()
    logits = x @ weight.T + bias
    logits -= logits.max(1, keepdims=True)
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert [(step.stage, step.step, step.steps) for step in steps] == [("head", 1, 1)]
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]
    assert steps[0].losses["cross entropy"] == pytest.approx(losses.mean(), rel=1e-4)
    error = (chances - np.eye(4)[y]) / len(y)
    expected = weight - 0.5 * (error.T @ x + 0.01 * weight)
    assert np.allclose(
        method.head.weight.detach().numpy(), expected, rtol=1e-3, atol=1e-4 * np.abs(expected - weight).max()
    )


@pytest.mark.parametrize("name", FROZEN)
def test_later_tasks_leave_the_network_alone(name: str, make_method: MakeMethod, make_tasks: MakeTasks) -> None:
    """Weights, averages of batch norm and all; and the features of an image stay the same."""
    tasks = make_tasks(((0, 1), (2,), (1, 3)))
    method = make_method(name)
    method.learn(tasks[0])
    before, features = method.state_dict()["backbone"], method.features(pixels_of(tasks[0]))
    assert any("running_mean" in each for each in before) and any("num_batches" in each for each in before)
    for task in tasks[1:]:
        method.learn(task)
        method.scores(tasks[0].images)
        assert same_state(method.state_dict()["backbone"], before)
    assert torch.equal(method.features(pixels_of(tasks[0])), features)


class Stored(Images):
    """Images in memory that count how often they are read."""

    def __init__(self, task: Task) -> None:
        self.pixels, self.labels, self.read = np.asarray(task.images), task.labels, 0

    def _read(self, indices: np.ndarray) -> np.ndarray:
        self.read += len(indices)
        return self.pixels[indices]

    def _fingerprint(self) -> str:
        return "stored"


@pytest.mark.parametrize("name", FROZEN)
def test_no_test_image_passes_the_network_twice(name: str, make_method: MakeMethod, make_tasks: MakeTasks) -> None:
    tasks = make_tasks()
    stored = Stored(make_tasks(((0, 1, 2, 3),), count=30, seed=3)[0])
    method = make_method(name, epochs=1)
    for task, seen in zip(tasks, (np.arange(0, 30, 2), np.arange(30)[::-1].copy()), strict=True):
        method.learn(task)
        plain = method.scores(stored.pixels[seen])
        cached = method.scores(Subset(stored, seen))
        assert torch.allclose(cached, plain, rtol=1e-4, atol=1e-4)
        read = stored.read
        assert torch.equal(method.scores(Subset(stored, seen)), cached)
        assert stored.read == read, "the second time nothing is read"


@pytest.mark.parametrize("name", FROZEN)
def test_features_of_test_images_are_forgotten_with_the_network(
    name: str, make_method: MakeMethod, make_tasks: MakeTasks
) -> None:
    tasks = make_tasks()
    stored = Stored(tasks[1])
    methods = [make_method(name, seed=seed, epochs=1) for seed in (0, 1)]
    for method in methods:
        method.learn(tasks[0])
        method.scores(Subset(stored, np.arange(len(stored))))
    methods[0].load_state_dict(methods[1].state_dict())
    one, other = (method.scores(Subset(stored, np.arange(len(stored)))) for method in methods)
    assert torch.equal(one, other)
