"""EFC++: the feature matrix against its double sum, drift and balance by hand, and what must stand still."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from circle.baselines.efc_plus_plus import (
    EFCPlusPlus,
    EFCPlusPlusConfig,
    drift_weights,
    feature_matrix,
    quadratic_distance,
)
from circle.baselines.optimisers import Optimiser, Training
from circle.benchmark.results import same_state
from circle.errors import CircleError
from circle.method import Step, Task

pytestmark = pytest.mark.usefixtures("one_thread")

MakeMethod = Callable[..., Any]
MakeTasks = Callable[..., list[Task]]
Learned = Callable[..., tuple[EFCPlusPlus, Any, list[Task]]]
CALM = {"initial_learning_rate": 0.003, "learning_rate": 0.003, "balanced_epochs": 1}  # chances stay away from 0 and 1
SMALL = {"network": "convnet", "width": 1}  # 32 features as well, where batch norms do not matter


def softmax(values: np.ndarray) -> np.ndarray:
    powers = np.exp(values - values.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def double_sum(features: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """E = 1/N sum_i sum_c pi_ic g_ic g_ic^T with g_ic = W^T (e_c - pi_i), term by term as in the official code."""
    total = np.zeros((features.shape[1], features.shape[1]))
    for chances in softmax(features @ weight.T):
        for c, one in enumerate(np.eye(len(weight))):
            gradient = weight.T @ (one - chances)
            total += chances[c] * np.outer(gradient, gradient)
    return total / len(features)


def looped_weights(features: np.ndarray, means: np.ndarray, matrix: np.ndarray, sigma: float) -> np.ndarray:
    """w_ji = exp(q_ji / (2 sigma^2)) / sum_i, q_ji = -(f_i - p_j)^T E (f_i - p_j) between 0 and 1 over all j and i."""
    nearness = np.array([[-(f - p) @ matrix @ (f - p) for f in features] for p in means])
    nearness = (nearness - nearness.min()) / (nearness.max() - nearness.min())
    weights = np.exp(nearness / (2 * sigma**2))
    return np.array([row / sum(row) for row in weights])


def inputs(images: Any) -> Tensor:
    pixels = images if isinstance(images, Tensor) else torch.from_numpy(images).permute(0, 3, 1, 2)
    return (pixels.double() / 255 - 0.5) / 0.25


def labels_of(images: Tensor, task: Task) -> list[int]:
    """What network inputs are in a task that is not augmented."""
    return [task.labels[int((inputs(task.images) - image).square().sum((1, 2, 3)).argmin())] for image in images]


def features_of(network: Any, images: Any) -> np.ndarray:
    """f(x) in evaluation mode and double precision."""
    with torch.no_grad():
        return copy.deepcopy(network).double().eval()(inputs(images)).numpy()


def near(found: Any, expected: Any, precision: float = 1e-4) -> bool:
    """Whether arrays agree up to this share of the largest value."""
    found, expected = (each.detach().numpy() if isinstance(each, Tensor) else each for each in (found, expected))
    return np.allclose(found, expected, rtol=precision, atol=precision * np.abs(expected).max())


def watch(method: EFCPlusPlus, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a method does from now on: network, head and extra at starts and after steps, images, gradients, draws."""
    seen = SimpleNamespace(starts=[], copies=[], inputs=[], steps=[], after=[], gradients=[], draws=[], known=[])
    begin, augmented_copy, prepare = method.begin, method.augmented_copy, method.inputs
    sample, move = method.bank.sample, Optimiser.step

    def keep_start(data: Any) -> None:
        begin(data)
        seen.starts.append(copy.deepcopy((method.network, method.head, method.extra)))

    def keep_copy(pixels: Tensor) -> Tensor:
        seen.copies.append(augmented_copy(pixels))
        return seen.copies[-1]

    def keep_inputs(pixels: Tensor, *, augmented: bool) -> Tensor:
        seen.inputs.append(("augmented" if augmented else "plain", prepare(pixels, augmented=augmented)))
        return seen.inputs[-1][1]

    def keep_draw(column: int, count: int, generator: torch.Generator) -> Tensor:
        values = sample(column, count, generator)
        seen.draws.append((column, values.numpy().copy()))
        seen.known.append((method.bank.means.clone(), method.matrix.clone()))
        return values

    def keep_gradients(self: Optimiser, gradients: list[Tensor], rate: float) -> None:
        seen.gradients.append([each.double().numpy().copy() for each in gradients])
        move(self, gradients, rate)

    def keep_step(step: Step) -> None:
        seen.steps.append(step)
        seen.after.append(copy.deepcopy((method.network, method.head, method.extra)))

    for name, kept in (("begin", keep_start), ("augmented_copy", keep_copy), ("inputs", keep_inputs)):
        monkeypatch.setattr(method, name, kept)
    monkeypatch.setattr(method.bank, "sample", keep_draw)
    monkeypatch.setattr(Optimiser, "step", keep_gradients)
    method.on_step = keep_step
    return seen


@pytest.fixture
def learned(make_method: MakeMethod, make_tasks: MakeTasks, monkeypatch: pytest.MonkeyPatch) -> Learned:
    """Makes a method that has learned the first of these tasks and is watched from then on."""

    def make(groups: Any = ((0, 1), (2, 3)), **settings: Any) -> tuple[EFCPlusPlus, Any, list[Task]]:
        tasks = make_tasks(groups)
        method: EFCPlusPlus = make_method("efc_plus_plus", **{**CALM, **settings})
        method.learn(tasks[0])
        return method, watch(method, monkeypatch), tasks

    return make


@given(samples=st.integers(1, 5), classes=st.integers(1, 5), size=st.integers(1, 6), seed=st.integers(0, 1000))
def test_feature_matrix(samples: int, classes: int, size: int, seed: int) -> None:
    """Against the double sum, and as what it is: the mean Fisher information of features, from plain gradients."""
    random = np.random.default_rng(seed)
    features, weight = random.normal(size=(samples, size)), 2 * random.normal(size=(classes, size))
    matrix = feature_matrix(torch.from_numpy(features), torch.from_numpy(weight)).numpy()
    assert np.allclose(matrix, double_sum(features, weight), rtol=1e-10, atol=1e-12)
    assert np.array_equal(matrix, matrix.T)
    values = np.linalg.eigvalsh(matrix)
    assert values.min() >= -1e-12 and (values > 1e-10).sum() <= min(classes - 1, size)
    fisher = np.zeros_like(matrix)
    for f in (row.clone().requires_grad_() for row in torch.from_numpy(features)):
        powers = torch.exp(torch.from_numpy(weight) @ f)
        for chance in powers / powers.sum():
            (gradient,) = torch.autograd.grad(torch.log(chance), f, retain_graph=True)
            fisher += float(chance.detach()) * np.outer(gradient, gradient) / samples
    assert np.allclose(matrix, fisher, rtol=1e-10, atol=1e-12)


@given(samples=st.integers(2, 6), old=st.integers(1, 4), size=st.integers(1, 5), seed=st.integers(0, 1000))
def test_drift_weights(samples: int, old: int, size: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    features, means, root = (random.normal(size=(count, size)) for count in (samples, old, size))
    f, p, matrix = (torch.from_numpy(each) for each in (features, means, root @ root.T))
    for sigma in (0.2, 0.5, 3.0):
        weights = drift_weights(f, p, matrix, sigma)
        assert np.allclose(weights, looped_weights(features, means, root @ root.T, sigma), rtol=1e-9, atol=1e-14)
        assert torch.equal(weights, drift_weights(f, p, matrix, -sigma))


def test_drift_weights_of_a_matrix_without_directions() -> None:
    """After a first task of one class E is zero: all images are as near."""
    features, means = torch.randn(4, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    assert feature_matrix(features, means[:1]).abs().max() < 1e-15
    weights = drift_weights(features, means, torch.zeros(3, 3).double(), 0.2)
    assert torch.equal(weights, torch.full((2, 4), 0.25).double())


def test_first_task(make_method: MakeMethod, make_tasks: MakeTasks, monkeypatch: pytest.MonkeyPatch) -> None:
    """One step over all images and their turns: the loss over 12 outputs; then a head and a matrix of 3 classes."""
    task = make_tasks(((0, 1, 2),))[0]
    method: EFCPlusPlus = make_method("efc_plus_plus", epochs=1, batch_size=100, augmentations=(), **CALM)
    seen = watch(method, monkeypatch)
    method.learn(task)
    network, head, extra = seen.starts[0]
    turned, labels, images = [], [], seen.inputs[0][1]
    for turns in range(4):
        for image, label in zip(images.numpy(), labels_of(images, task), strict=True):
            turned.append(np.rot90(image, turns, (1, 2)))
            labels.append(label if turns == 0 else 3 + 3 * label + (turns - 1))
    rows = torch.cat([head.weight, extra["turned"].weight]).double()
    chances = torch.softmax(network.train()(torch.from_numpy(np.array(turned))).double() @ rows.T, 1)
    loss = -torch.stack([chances[i, label].log() for i, label in enumerate(labels)]).mean()
    gradients = torch.autograd.grad(loss, [*network.parameters(), head.weight, extra["turned"].weight])
    assert [(step.stage, set(step.losses)) for step in seen.steps] == [("train", {"cross entropy"})]
    assert seen.steps[0].losses["cross entropy"] == pytest.approx(float(loss.detach()), rel=1e-5)
    assert all(near(theirs, mine) for mine, theirs in zip(gradients, seen.gradients[0], strict=True))
    state = method.state_dict()
    assert state["head"].keys() == {"weight"} and state["head"]["weight"].shape == (3, 32) and not len(method.extra)
    weight = state["head"]["weight"].double().numpy()
    assert rows.shape == (12, 32) and len(seen.copies) == 1
    assert near(method.matrix, double_sum(features_of(method.network, seen.copies[0]), weight))
    assert near(method.scores(task.images), features_of(method.network, task.images) @ weight.T)


def test_the_second_step_of_a_later_task(learned: Learned) -> None:
    """The first has no distance yet, as batch norms stand still; then both terms and all gradients, written out."""
    settings = {"batch_size": 100, "augmentations": (), "distillation_weight": 30.0, "damping": 0.7}
    method, seen, (_, second) = learned(**settings, balanced_epochs=0)
    matrix = method.matrix.clone()
    method.learn(second)
    assert [step.stage for step in seen.steps] == ["train", "train"]
    assert seen.steps[0].losses["distillation"] == pytest.approx(0.0, abs=1e-9)
    (network, _, extra), images = seen.after[0], seen.inputs[1][1]
    features, old = (each.eval()(images).double() for each in (network, seen.starts[0][0]))
    chances = torch.softmax(features @ extra["rows"].weight.double().T, 1)
    entropy = -torch.stack([chances[i, label - 2].log() for i, label in enumerate(labels_of(images, second))]).mean()
    away = [f - f_old for f, f_old in zip(features, old.detach(), strict=True)]
    informed = torch.stack([30.0 * (d @ matrix @ d) for d in away]).mean()
    damped = torch.stack([0.7 * (d @ d) for d in away]).mean()
    entropy_value, informed_value, damped_value = (float(each.detach()) for each in (entropy, informed, damped))
    assert 0.05 < informed_value / damped_value < 20.0, "both parts can be told apart"
    assert seen.steps[1].losses["cross entropy"] == pytest.approx(entropy_value, rel=1e-5)
    assert seen.steps[1].losses["distillation"] == pytest.approx(informed_value + damped_value, rel=1e-4)
    moved = [parameter for name, parameter in network.named_parameters() if "norm" not in name]
    gradients = torch.autograd.grad(entropy + informed + damped, [*moved, extra["rows"].weight])
    assert all(near(theirs, mine) for mine, theirs in zip(gradients, seen.gradients[1], strict=True))


def test_weight_decay_alone(learned: Learned) -> None:
    """One new class has no loss: Adam's steps of decay, at a constant rate, move the backbone and the new row only."""
    settings = {"distillation_weight": 0.0, "damping": 0.0, "weight_decay": 0.1, "backbone_scale": 0.3}
    method, seen, (_, second) = learned(((0, 1), (2,)), **settings, balanced_epochs=0)
    method.learn(second)
    assert len(seen.steps) == 4 and all(set(step.losses.values()) == {0.0} for step in seen.steps)

    def decayed(start: Tensor, rate: float) -> np.ndarray:
        weights = start.detach().double().numpy()
        mean, square = np.zeros_like(weights), np.zeros_like(weights)
        for number in range(1, 5):
            gradient = 0.1 * weights
            mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
            weights = weights - rate * (mean / (1 - 0.9**number)) / (np.sqrt(square / (1 - 0.999**number)) + 1e-8)
        return weights

    network, head, _ = seen.starts[0]
    after = dict(method.network.named_parameters())
    pairs = [(after[name], start, 0.0 if "norm" in name else 0.0009) for name, start in network.named_parameters()]
    pairs += [(method.head.weight[row], head.weight[row], rate) for row, rate in enumerate((0.0, 0.0, 0.003))]
    for end, start, rate in pairs:
        assert np.allclose(end.detach().numpy(), decayed(start, rate), rtol=0, atol=2e-6)


def test_batch_norms_and_old_rows_stand_still(learned: Learned) -> None:
    """Batch norms for good, old rows while the backbone learns, and the backbone while all rows are balanced."""
    method, seen, tasks = learned(((0, 1), (2, 3), (1, 2)), weight_decay=0.5, epochs=1)
    before = method.state_dict()["backbone"]
    norms = [name for name in before if "norm" in name]
    assert {name.rsplit(".")[-1] for name in norms} >= {"running_mean", "running_var", "weight", "bias"}
    for task, still, others in ((tasks[1], [0, 1], [2, 3]), (tasks[2], [0, 3], [1, 2])):
        rows, number = method.head.weight.detach().clone(), len(seen.steps)
        method.learn(task)
        trained = [index for index in range(number, len(seen.steps)) if seen.steps[index].stage == "train"]
        assert all(torch.equal(seen.after[index][1].weight[still], rows[still]) for index in trained)
        network, _, extra = seen.after[trained[-1]]
        assert same_state(network.state_dict(), method.network.state_dict())
        start = seen.starts[-1][1].weight[others]
        assert torch.equal(seen.starts[-1][2]["rows"].weight, start) and not torch.equal(extra["rows"].weight, start)
        assert bool((method.head.weight[still] != rows[still]).any(1).all())
    after = method.state_dict()["backbone"]
    assert all(torch.equal(after[name], before[name]) == (name in norms) for name in after)


def test_post_task_steps_in_their_order(learned: Learned) -> None:
    """Old matrix and means give the drift; moved means are balanced with; then the matrix, and the new classes."""
    method, seen, (_, second) = learned(balanced_learning_rate=0.3)
    old_matrix, old_means, old_rows = method.matrix.clone(), method.bank.means.clone(), method.head.weight.clone()
    covariances, counts = [method.bank.covariance(column).clone() for column in (0, 1)], list(method.bank.counts)
    method.learn(second)
    assert list(method.stage_seconds) == ["train", "drift", "balance", "statistics"]
    assert len(seen.copies) == 2 and not torch.equal(*seen.copies), "one augmented pass for drift, one for the rest"
    before, now = (features_of(network, seen.copies[0]) for network in (seen.starts[0][0], method.network))
    moved = old_means.numpy().copy()
    for j, weights in enumerate(looped_weights(before, old_means.numpy(), old_matrix.numpy(), 0.2)):
        moved[j] += sum(weight * (new - old) for weight, new, old in zip(weights, now, before, strict=True))
    assert np.abs(moved - old_means.numpy()).max() > 0.01
    assert np.allclose(method.bank.means[:2], moved, rtol=0, atol=1e-5)
    known_means, known_matrix = seen.known[0]
    assert torch.equal(known_means, method.bank.means[:2]) and torch.equal(known_matrix, old_matrix)
    features, weight = features_of(method.network, seen.copies[1]), method.head.weight.detach().double().numpy()
    assert not np.allclose(weight[:2], old_rows.detach().numpy(), atol=0.01), "balancing counts"
    assert near(method.matrix, double_sum(features, weight))
    assert all(torch.equal(method.bank.covariance(column), covariances[column]) for column in (0, 1))
    assert method.bank.counts == counts + [np.sum(second.labels == column) for column in (2, 3)]
    for column in (2, 3):
        own = features[second.labels == column]
        assert np.allclose(method.bank.means[column], own.mean(0), atol=1e-5)
        expected = np.cov(own, rowvar=False) + 1e-5 * np.eye(32)
        assert np.allclose(method.bank.covariance(column), expected, rtol=1e-4, atol=1e-7)


def test_drift_turned_off(learned: Learned) -> None:
    """By -1 alone: -0.2 is the same as 0.2."""
    states = {}
    for sigma in (0.2, -0.2, 0.9, -1):
        method, _, tasks = learned(**SMALL, drift_sigma=sigma, epochs=1)
        before = method.bank.means.clone()
        method.learn(tasks[1])
        assert torch.equal(method.bank.means[:2], before) == (sigma == -1)
        assert ("drift" in method.stage_seconds) == (sigma != -1)
        states[sigma] = method.state_dict()
    assert same_state(states[0.2], states[-0.2]) and not same_state(states[0.2], states[0.9])


@pytest.mark.parametrize("group", [(2, 3), (1, 2, 3)])
def test_balancing_by_hand(group: tuple[int, ...], learned: Learned) -> None:
    """Two steps of SGD over all features, real and drawn. A class that comes again has features of its own."""
    settings = {"balanced_epochs": 2, "balanced_batch_size": 1000, "balanced_learning_rate": 0.2, "augmentations": ()}
    method, seen, (first, second) = learned(((0, 1), group), balanced_weight_decay=0.3, **SMALL, **settings)
    method.learn(second)
    train = [index for index, step in enumerate(seen.steps) if step.stage == "train"]
    weight = seen.after[train[-1]][1].weight.detach().double().numpy()
    weight[list(group)] = seen.after[train[-1]][2]["rows"].weight.detach().double().numpy()
    features, speed, classes = features_of(method.network, second.images), np.zeros((4, 32)), {0, 1} - set(group)
    draws = iter(seen.draws)
    for step in seen.steps[len(train) :]:
        x, y = features, second.labels
        for column in classes:
            drawn, values = next(draws)
            assert drawn == column and len(values) == np.sum(first.labels == column)
            x, y = np.concatenate([x, values]), np.concatenate([y, np.full(len(values), column)])
        loss = -np.mean([np.log(chances[label]) for chances, label in zip(softmax(x @ weight.T), y, strict=True)])
        assert (step.stage, step.steps, step.losses["cross entropy"]) == ("balance", 1, pytest.approx(loss, rel=1e-5))
        speed = 0.9 * speed + (softmax(x @ weight.T) - np.eye(4)[y]).T @ x / len(y) + 0.3 * weight
        weight = weight - 0.2 * speed
    assert next(draws, None) is None and len(seen.steps) == len(train) + 2
    assert np.allclose(method.head.weight.detach().numpy(), weight, rtol=0, atol=1e-5)
    assert not np.array_equal(seen.draws[0][1], seen.draws[len(classes)][1]), "drawn anew in every epoch"
    for column in classes:
        away = np.concatenate([values for drawn, values in seen.draws if drawn == column])
        away -= method.bank.means[column].numpy()
        squares = away * np.linalg.solve(method.bank.covariance(column).numpy(), away.T).T
        assert 0.85 < squares.sum(1).mean() / 32 < 1.15, "about the moved mean, as wide as the covariance"


def test_an_epoch_of_balancing_in_small_batches(learned: Learned) -> None:
    """Each image once, augmented, and n_c draws of each old class."""
    settings = {**SMALL, "epochs": 1, "drift_sigma": -1, "balanced_epochs": 3, "balanced_batch_size": 7}
    method, seen, (first, second) = learned(**settings)
    epochs = defaultdict(Counter)

    def count(step: Step) -> None:
        for kind, values in seen.inputs + seen.draws:
            epochs[step.stage, step.epoch][kind] += len(values)
        seen.inputs, seen.draws = [], []

    method.on_step = count
    method.learn(second)
    real, drawn = {"augmented": len(second.images)}, {column: np.sum(first.labels == column) for column in (0, 1)}
    assert epochs == {("train", 1): real, **{("balance", epoch): {**real, **drawn} for epoch in (1, 2, 3)}}


def test_classes_of_one_image(make_method: MakeMethod) -> None:
    """Too few images for a covariance: the floor makes it definite, without further mending."""
    random = np.random.default_rng(0)
    method: EFCPlusPlus = make_method("efc_plus_plus", **CALM)
    for labels in ([0] * 9 + [1], [2] + [3] * 9, [4]):
        method.learn(Task(random.integers(0, 256, (len(labels), 8, 8, 3), dtype=np.uint8), np.array(labels)))
    for column, count in enumerate((9, 1, 1, 9, 1)):
        values = np.linalg.eigvalsh(method.bank.covariance(column).numpy())
        assert values[: 33 - count] == pytest.approx(1e-5, rel=1e-6) and (values[33 - count :] > 1.1e-5).all()
    assert method.bank.jittered == 0 and bool(method.scores(np.zeros((2, 8, 8, 3), np.uint8)).isfinite().all())


def test_taken_up_again_after_any_step_of_the_second_task(learned: Learned, make_method: MakeMethod) -> None:
    settings = {**SMALL, "balanced_epochs": 2, "balanced_batch_size": 30}
    method, _, (_, second) = learned(**settings)
    states: list[dict[str, Any]] = []
    method.on_step = lambda step: states.append(copy.deepcopy(method.state_dict()))
    method.learn(second)
    assert Counter(state["pending"]["stage"] for state in states) == {0: 6, 2: 6}, "training and balancing"
    for state in states:
        resumed: EFCPlusPlus = make_method("efc_plus_plus", **{**CALM, **settings})
        resumed.load_state_dict(state)
        resumed.learn(second)
        assert same_state(resumed.state_dict(), method.state_dict())


def test_schedules(make_tasks: MakeTasks, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the official code; on ImageNet the first task is trained by SGD, and later the backbone more slowly."""
    adam = Training(100, 64, 1e-3, optimiser="adam", weight_decay=2e-4, milestones=(45, 90))
    descent = Training(100, 64, 0.1, momentum=0.9, weight_decay=5e-4, milestones=(80, 120, 150))
    later = Training(100, 64, 1e-4, optimiser="adam", weight_decay=2e-4)
    balance = Training(50, 256, 1e-3, momentum=0.9, weight_decay=5e-4)
    for dataset, first, scale in (("cifar100", adam, 1.0), ("imagenet_subset", descent, 0.1)):
        fits: list[Any] = []
        method = EFCPlusPlus(EFCPlusPlusConfig(width=4).replace(**EFCPlusPlusConfig.by_dataset[dataset]))
        monkeypatch.setattr(method, "fit", lambda *given, fits=fits: fits.append(given))
        for task in make_tasks():
            method.learn(task)
        assert [given[3] for given in fits] == [first, later, balance]
        assert fits[1][4] == [scale] * (len(fits[1][2]) - 1) + [1.0]


def test_settings_out_of_range_are_refused() -> None:
    wrong = {"damping": -0.1, "drift_sigma": 0.0, "distillation_weight": -1.0, "backbone_scale": 0.0}
    for name, value in wrong.items():
        with pytest.raises(CircleError, match=rf"efc_plus_plus\.{name} = "):
            EFCPlusPlusConfig().replace(**{name: value})


def test_quadratic_distance_is_the_mean_of_the_forms() -> None:
    random = np.random.default_rng(0)
    now_values, before = random.normal(size=(2, 7, 4))
    root = random.normal(size=(4, 4))
    matrix = root @ root.T
    now = torch.tensor(now_values, requires_grad=True)
    value = quadratic_distance(now, torch.tensor(before), torch.tensor(matrix))
    assert np.isclose(value.item(), np.mean([d @ matrix @ d for d in now_values - before]))
    (gradient,) = torch.autograd.grad(value, now)
    assert np.allclose(gradient.numpy(), 2 * (now_values - before) @ matrix / len(now_values))
