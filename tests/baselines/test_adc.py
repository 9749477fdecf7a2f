"""ADC: images pulled towards old classes, which of them count, means that follow the drift, and cosine logits."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from circle.baselines.adc import ADC, ADCConfig, pulled
from circle.baselines.networks import CosineHead
from circle.baselines.optimisers import Optimiser
from circle.baselines.trainer import TaskData
from circle.benchmark.results import same_state
from circle.errors import CircleError
from circle.method import Step, Task

pytestmark = pytest.mark.usefixtures("one_thread")

MakeMethod = Callable[..., Any]
MakeTasks = Callable[..., list[Task]]
Values = Callable[[np.ndarray], np.ndarray]  # images [B, C, H, W] -> features [B, d]
Gradient = Callable[[np.ndarray, np.ndarray], np.ndarray]  # images and a mean [d] -> gradient [B, C, H, W]


class Squashed(nn.Module):
    """f(x) = tanh(A x), [B, C, H, W] -> [B, d] in float64, so that its gradient can be written out."""

    def __init__(self, inputs: int, size: int, seed: int) -> None:
        super().__init__()
        self.size = size
        weight = np.random.default_rng(seed).normal(size=(size, inputs)) / np.sqrt(inputs)
        self.weight = nn.Parameter(torch.from_numpy(weight))

    def forward(self, images: Tensor) -> Tensor:
        return torch.tanh(images.double().flatten(1) @ self.weight.T)


def squashed(weight: np.ndarray) -> tuple[Values, Gradient]:
    """f and the gradient of 1/(B d) sum_ij (f_j(x_i) - mu_j)^2, without autograd."""

    def values(images: np.ndarray) -> np.ndarray:
        return np.tanh(images.reshape(len(images), -1) @ weight.T)

    def gradient(images: np.ndarray, mean: np.ndarray) -> np.ndarray:
        f = values(images)
        return ((2 / f.size * (f - mean) * (1 - f**2)) @ weight).reshape(images.shape)

    return values, gradient


def moved_towards(
    mean: np.ndarray, images: np.ndarray, gradient: Gradient, length: float, times: int, bounds: tuple[float, float]
) -> np.ndarray:
    """x <- clip(x - length g / |g|), with a single |g| for all images."""
    for _ in range(times):
        g = gradient(images, mean)
        total = 0.0
        for value in g.flat:
            total += value * value
        images = np.minimum(np.maximum(images - length * g / np.sqrt(total), bounds[0]), bounds[1])
    return images


def followed(
    copies: np.ndarray,
    means: np.ndarray,
    former: Values,
    gradient: Gradient,
    latter: Values,
    config: ADCConfig,
    skip: tuple[int, ...] = (),
    frozen: bool = False,
) -> tuple[np.ndarray, list[int]]:
    """Old means after the drift, class by class, and how many images counted for each; 0: the unmoved ones.

    With ``frozen`` the nearest mean is looked for among those from before, which is not what METHODS.md says.
    """
    means, before, counted = means.copy(), means.copy(), []
    images = (copies / 255 - 0.5) / 0.25
    bounds = (images.min(), images.max())
    features = former(images)
    for c in range(len(means)):
        if c in skip:
            continue
        distances = [float(((f - means[c]) ** 2).sum()) for f in features]
        chosen = images[np.argsort(distances, kind="stable")[: config.pulled_images]]
        moved = moved_towards(means[c], chosen, gradient, config.pull, config.pulls, bounds)
        kept = []
        for row, f in enumerate(former(moved)):
            others = before if frozen else means
            if np.argmin([((f - other) ** 2).sum() for other in others]) == c:
                kept.append(row)
        counted.append(len(kept))
        moved = moved[kept] if kept else chosen
        means[c] += sum(latter(moved) - former(moved)) / len(moved)
    return means, counted


def recorded(method: ADC, monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """The augmented copies that a method makes from now on, [N, C, H, W] each."""
    copies: list[np.ndarray] = []
    original = method.augmented_copy

    def record(pixels: Tensor) -> Tensor:
        copies.append(original(pixels).numpy())
        return torch.from_numpy(copies[-1])

    monkeypatch.setattr(method, "augmented_copy", record)
    return copies


def inputs(task: Task) -> np.ndarray:
    return (np.moveaxis(np.asarray(task.images), 3, 1) / 255 - 0.5) / 0.25


@pytest.mark.parametrize("seed", range(3))
def test_pulled_images(seed: int) -> None:
    random = np.random.default_rng(seed)
    network = Squashed(12, 3, seed)
    # One image far from the mean and others near it: with a norm for each image they would move alike.
    images, mean = random.normal(size=(5, 3, 2, 2)), random.uniform(-0.8, 0.8, 3)
    bounds = (-1.1, 1.3)
    images = images.clip(*bounds)
    start = torch.from_numpy(images)
    moved = pulled(network, start, torch.from_numpy(mean), 1.5, 3, torch.tensor(bounds, dtype=torch.float64))
    values, gradient = squashed(network.weight.detach().numpy())
    expected = moved_towards(mean, images, gradient, 1.5, 3, bounds)
    assert np.allclose(moved.numpy(), expected, rtol=1e-9, atol=1e-12)
    assert not moved.requires_grad and torch.equal(start, torch.from_numpy(images))
    clipped = (expected == bounds[0]) | (expected == bounds[1])
    assert 0 < clipped.sum() < clipped.size, "some pixels are held by the bounds, and not all"
    assert ((values(expected) - mean) ** 2).mean() < ((values(images) - mean) ** 2).mean()
    assert network.weight.grad is None


def test_images_without_a_gradient_stay() -> None:
    network = Squashed(4, 2, 0)
    images = torch.ones(3, 1, 2, 2)
    with torch.no_grad():
        mean = network(images)[0]
    assert torch.equal(pulled(network, images, mean, 25.0, 3, torch.tensor([-2.0, 2.0])), images)


def test_means_follow_the_drift(make_method: MakeMethod, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six old classes, where all, some or none of the pulled images count, and where it matters which came before."""
    situations: set[str] = set()
    for seed in range(6):
        random = np.random.default_rng(seed)
        method: ADC = make_method("adc", epochs=0, augmentations=("flip",), pull=2.0, pulled_images=5)
        network = Squashed(48, 3, seed)
        monkeypatch.setattr(method, "new_network", lambda channels, generator, network=network: network)
        method.learn(Task(random.integers(40, 200, (12, 4, 4, 3), dtype=np.uint8), np.arange(12) % 6))
        means = random.uniform(-0.7, 0.7, (6, 3))
        means[0], means[5] = 0.8, 1.9  # out of reach: whatever is pulled there ends up next to the first one
        method.bank.means = torch.from_numpy(means)
        before, former = method.bank.means.numpy().copy(), network.weight.detach().numpy().copy()

        def drift(data: TaskData, network: Squashed = network, seed: int = seed) -> None:
            """What training would do: the previous network is kept already."""
            with torch.no_grad():
                network.weight.add_(Squashed(48, 3, 100 + seed).weight, alpha=0.5)

        monkeypatch.setattr(method, "begin", drift)
        copies = recorded(method, monkeypatch)
        again = 3 if seed >= 4 else 6  # a class that comes again
        labels = np.array([6, 7, again])[np.arange(24) % 3]
        second = Task(random.integers(40, 200, (24, 4, 4, 3), dtype=np.uint8), labels)
        method.learn(second)
        (values, gradient), (latter, _) = squashed(former), squashed(network.weight.detach().numpy())
        features = latter(inputs(second))
        skip = (again,) if again < 6 else ()
        if skip:
            before[again] = features[labels == again].mean(0)
        arguments = (copies[0], before, values, gradient, latter, method.config, skip)
        expected, counted = followed(*arguments)
        after = method.bank.means.numpy()
        assert len(copies) == 1 and not np.array_equal(copies[0], np.moveaxis(np.asarray(second.images), 3, 1))
        assert np.allclose(after[:6], expected, rtol=1e-5, atol=1e-6)
        for label in (6, 7):
            assert np.allclose(after[label], features[labels == label].mean(0), rtol=1e-5), "plain images, new network"
        situations |= {"none" if n == 0 else "all" if n == 5 else "some" for n in counted}
        situations |= {"order"} if np.abs(followed(*arguments, frozen=True)[0] - expected).max() > 1e-3 else set()
    assert situations == {"none", "some", "all", "order"}


@pytest.mark.parametrize("groups", [((0, 1), (2, 3)), ((2,), (0,))], ids=["two classes", "one class"])
def test_drift_of_a_trained_network(
    groups: tuple[tuple[int, ...], ...],
    make_method: MakeMethod,
    make_tasks: MakeTasks,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both networks normalise by their running statistics, and features are pulled as they are."""
    first, second = make_tasks(groups, count=60)
    method: ADC = make_method("adc", pull=5.0, pulled_images=12)
    method.learn(first)
    former, before = copy.deepcopy(method.network).eval(), method.bank.means.numpy().copy()
    assert np.allclose(before, by_class(former, first), rtol=1e-4, atol=1e-6)
    copies = recorded(method, monkeypatch)
    method.learn(second)
    latter = copy.deepcopy(method.network).eval()

    def gradient(images: np.ndarray, mean: np.ndarray) -> np.ndarray:
        x = torch.from_numpy(images).float().requires_grad_()
        f = former(x)
        distance = (f - torch.from_numpy(mean).float()).pow(2).sum() / f.numel()
        return torch.autograd.grad(distance, x)[0].double().numpy()

    expected, counted = followed(copies[0], before, values_of(former), gradient, values_of(latter), method.config)
    after, old = method.bank.means.numpy(), len(groups[0])
    assert max(counted) > 0
    assert np.allclose(after[:old], expected, rtol=1e-3, atol=1e-4 * np.abs(expected - before).max())
    assert np.abs(expected - before).max() > 0.01
    assert np.allclose(after[old:], by_class(latter, second), rtol=1e-4, atol=1e-6)


def values_of(network: nn.Module) -> Values:
    def values(images: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return network(torch.from_numpy(images).float()).double().numpy()

    return values


def by_class(network: nn.Module, task: Task) -> np.ndarray:
    """The mean feature of each class, in ascending order."""
    features = values_of(network)(inputs(task))
    return np.stack([features[task.labels == label].mean(0) for label in sorted(set(task.labels))])


def test_no_compensation_leaves_old_means(make_method: MakeMethod, make_tasks: MakeTasks) -> None:
    first, second = make_tasks()
    kept: dict[str, Tensor] = {}
    for choice in ("none", "drift"):
        method: ADC = make_method("adc", compensation=choice)
        method.learn(first)
        before = method.bank.means.clone()
        method.learn(second)
        kept[choice] = method.bank.means.clone()
        assert torch.equal(kept[choice][:2], before) == (choice == "none")
        assert list(method.stage_seconds) == ["train", "means"] + ["drift"] * (choice == "drift")
    assert torch.equal(kept["none"][2:], kept["drift"][2:])


def plain_cosines(features: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """z_ic = sigma f_i . w_c / (|f_i| |w_c|)."""
    lengths = features.pow(2).sum(1, keepdim=True).sqrt() * weight.pow(2).sum(1).sqrt()
    return scale * (features @ weight.T) / lengths


def test_loss_and_its_gradient(make_method: MakeMethod, make_tasks: MakeTasks, monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch that holds the whole task, in float64.

    The network is changed once the teacher is there, so that they differ.
    """
    first, second = make_tasks()
    method: ADC = make_method("adc", epochs=1, batch_size=100, augmentations=(), distillation_weight=1.7)
    method.learn(first)
    teacher: Any = copy.deepcopy((method.network, method.head))
    students: list[Any] = []
    taken: list[list[Tensor]] = []

    def change(data: TaskData) -> None:
        with torch.no_grad():
            method.head.scale.fill_(1.9)  # pyright: ignore
            for parameter in method.network.parameters():
                parameter.mul_(1.1)
        for module in (method.network, method.head, method.extra):
            module.double()
        students.append(copy.deepcopy((method.network, method.head)))

    def take(optimiser: Optimiser, gradients: Any, rate: float) -> None:
        taken.append(list(gradients))

    monkeypatch.setattr(method, "begin", change)
    monkeypatch.setattr(method, "inputs", lambda pixels, augmented: (pixels.double() / 255 - 0.5) / 0.25)
    monkeypatch.setattr(Optimiser, "step", take)
    steps: list[Step] = []
    method.on_step = steps.append
    method.learn(second)

    images, labels = torch.from_numpy(inputs(second)), torch.from_numpy(second.labels - 2)
    network, head = students[0][0].train(), students[0][1]
    logits = plain_cosines(network(images), head.weight, head.scale)
    with torch.no_grad():
        before = teacher[0].double().eval()(images)
        former = plain_cosines(before, teacher[1].weight.double(), teacher[1].scale.double())
    powers = logits[:, 2:].exp()
    entropy = -(powers[torch.arange(len(labels)), labels] / powers.sum(1)).log().sum() / len(labels)
    targets, powers = (former / 2).exp(), (logits[:, :2] / 2).exp()
    targets, chances = targets / targets.sum(1, keepdim=True), powers / powers.sum(1, keepdim=True)
    distance = -(targets * chances.log()).sum() / len(labels)
    assert isinstance(method.head, CosineHead) and teacher[1].scale.item() != 1.0, "sigma was learned"
    assert len(steps) == 1 and set(steps[0].losses) == {"cross entropy", "distillation"}
    assert steps[0].losses["cross entropy"] == pytest.approx(entropy.item(), rel=1e-9)
    assert steps[0].losses["distillation"] == pytest.approx(1.7 * distance.item(), rel=1e-9)
    wanted = torch.autograd.grad(entropy + 1.7 * distance, [*network.parameters(), *head.parameters()])
    assert len(taken) == 1 and len(taken[0]) == len(wanted)
    largest = max(float(gradient.abs().max()) for gradient in wanted)
    for gradient, expected in zip(taken[0], wanted, strict=True):
        assert torch.allclose(gradient, expected, rtol=1e-7, atol=1e-9 * largest)


def test_the_teacher_rests_and_stays(
    make_method: MakeMethod, make_tasks: MakeTasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every pass through both networks is looked at: which one, in which mode, and of which images."""
    first, second = make_tasks()
    method: ADC = make_method("adc")
    method.learn(first)
    before = method.state_dict()["backbone"]
    passes: list[tuple[bool, bool, Tensor]] = []

    def watch(data: TaskData) -> None:
        for network in (method.network, method.extra["network"]):
            network.register_forward_pre_hook(
                lambda module, given: passes.append(
                    (module is method.network, any(each.training for each in module.modules()), given[0].detach())
                )
            )

    def look(_: Step) -> None:
        steps.append(len(passes))
        assert same_state(method.extra["network"].state_dict(), before)

    steps: list[int] = []
    monkeypatch.setattr(method, "begin", watch)
    method.on_step = look
    method.learn(second)
    assert steps == list(range(2, 2 * len(steps) + 1, 2)) and len(steps) > 3, "each has one pass in a step"
    for (is_new, training, images), (is_new_too, teaching, same) in zip(
        passes[: steps[-1] : 2], passes[1 : steps[-1] : 2], strict=True
    ):
        assert is_new and not is_new_too and training and not teaching
        assert torch.equal(images, same), "augmented once"
    later = passes[steps[-1] :]
    assert {is_new for is_new, _, _ in later} == {True, False} and not any(training for _, training, _ in later)


def test_the_nearest_mean_of_length_one_wins(make_method: MakeMethod, make_tasks: MakeTasks) -> None:
    method: ADC = make_method("adc")
    for task in make_tasks():
        method.learn(task)
    task = make_tasks(((0, 1, 2, 3),), seed=5)[0]
    features = values_of(copy.deepcopy(method.network).eval())(inputs(task))
    # Means of different lengths between the features: neither a distance nor a product of these would do.
    chosen = features[[0, 20, 40, 60]] + np.random.default_rng(0).gamma(1.0, features.mean(), (4, features.shape[1]))
    means = chosen * np.array([[0.2], [1.0], [2.0], [5.0]])
    method.bank.means = torch.from_numpy(means)
    scores = method.scores(task.images).numpy()
    squares = np.zeros((len(features), 4))
    for i, f in enumerate(features):
        for c, mean in enumerate(means):
            squares[i, c] = ((f / np.sqrt(f @ f) - mean / np.sqrt(mean @ mean)) ** 2).sum()
    assert np.allclose(scores, 1 - squares / 2, atol=1e-5)
    assert np.array_equal(scores.argmax(1), squares.argmin(1)) and len(set(scores.argmax(1))) > 1
    plain = ((features[:, None] - means) ** 2).sum(2).argmin(1)
    assert (plain != squares.argmin(1)).any() and ((features @ means.T).argmax(1) != squares.argmin(1)).any()


def test_one_class_at_a_time(make_method: MakeMethod, make_tasks: MakeTasks) -> None:
    """One logit has no cross-entropy, and two old classes are the first to be told apart."""
    method: ADC = make_method("adc", epochs=1)
    steps: list[Step] = []
    method.on_step = steps.append
    tasks = make_tasks(((2,), (0,), (1,)))
    for task in tasks:
        method.learn(task)
    assert all(step.losses["cross entropy"] == 0.0 for step in steps)
    assert all(step.losses["distillation"] == 0.0 for step in steps if step.task == 2)
    assert all(step.losses["distillation"] > 0.1 for step in steps if step.task == 3)
    assert {step.task for step in steps} == {1, 2, 3}
    assert method.bank.means.shape == (3, method.network.size) and bool(method.bank.means.isfinite().all())
    assert np.allclose(method.bank.means[2].numpy(), by_class(method.network.eval(), tasks[2])[0], rtol=1e-4)


def test_settings() -> None:
    config = ADCConfig()
    assert (config.pull, config.pulls, config.pulled_images, config.compensation) == (25.0, 3, 100, "drift")
    assert (config.distillation_weight, config.temperature) == (10.0, 2.0)
    method = ADC(config)
    first = method.training()
    method.tasks = 1
    later = method.training()
    assert (first.epochs, first.weight_decay, later.epochs, later.weight_decay) == (200, 5e-4, 100, 2e-4)
    assert [first.rate(epoch) for epoch in (0, 59, 60, 120, 160)] == pytest.approx([0.1, 0.1, 1e-2, 1e-3, 1e-4])
    assert [later.rate(epoch) for epoch in (0, 44, 45, 89, 90)] == pytest.approx([0.05, 0.05, 5e-3, 5e-3, 5e-4])
    for setting in ("pull", "pulls", "pulled_images"):
        with pytest.raises(CircleError, match=f"adc.{setting} = 0(.0)?: expected"):
            config.replace(**{setting: 0})
