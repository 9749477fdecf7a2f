"""PASS: classes of turned images, the three terms of its loss and their gradient, noise around old means."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from circle.baselines.optimisers import Optimiser
from circle.baselines.pass_method import PASS, PASSConfig
from circle.baselines.trainer import TaskData
from circle.benchmark.results import load_state, same_state, save_state
from circle.errors import CircleError
from circle.method import Step, Task

pytestmark = pytest.mark.usefixtures("one_thread")

MakeMethod = Callable[..., Any]
MakeTasks = Callable[..., list[Task]]
PAIRS, SINGLES = ((3, 1), (0, 2)), ((2,), (0,))


class LeftError(Exception):
    """Ends learning after a step."""


@dataclass
class Watched:
    """What a method does while it learns a task."""

    steps: list[Step] = field(default_factory=list)
    headed: list[Tensor] = field(default_factory=list)  # what the head is given: features, and made ones
    drawn: list[Tensor] = field(default_factory=list)  # columns of old classes
    gradients: list[list[Tensor]] = field(default_factory=list)
    before: tuple[Any, ...] = ()  # network and head before the first step


def watch(method: PASS, task: Task, monkeypatch: pytest.MonkeyPatch, *, exact: bool = False) -> Watched:
    """Learn a task and look on. The network is changed once the teacher is there, so that they differ.

    With ``exact`` all is done in float64, and no step is taken, so that every step starts from the same weights.
    """
    seen = Watched()
    step, draw = Optimiser.step, method.old_classes

    def begin(data: TaskData) -> None:
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for parameter in method.network.parameters():
                parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
        if exact:
            for module in (method.network, method.head, method.extra):
                module.double()
        seen.before = copy.deepcopy((method.network, method.head))
        method.head.register_forward_pre_hook(head_inputs)

    def head_inputs(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor]:
        seen.headed.append(given[0].detach().clone())
        return (given[0].to(method.head.weight),)

    def take(optimiser: Optimiser, gradients: Any, rate: float) -> None:
        seen.gradients.append(list(gradients))
        if not exact:
            step(optimiser, gradients, rate)

    def drawing(count: int, data: TaskData) -> Tensor:
        seen.drawn.append(draw(count, data))
        return seen.drawn[-1]

    with monkeypatch.context() as patch:
        patch.setattr(method, "begin", begin)
        patch.setattr(method, "old_classes", drawing)
        patch.setattr(Optimiser, "step", take)
        if exact:
            patch.setattr(method, "inputs", lambda pixels, augmented: (pixels.double() / 255 - 0.5) / 0.25)
        method.on_step = seen.steps.append
        method.learn(task)
    return seen


def inputs(task: Task) -> np.ndarray:
    return (np.moveaxis(np.asarray(task.images), 3, 1) / 255 - 0.5) / 0.25


def turned(method: PASS, task: Task) -> tuple[Tensor, Tensor]:
    """Turns of every image [4 N, C, H, W] and 4 y + k for the column y of its class [4 N]."""
    images, targets = [], []
    for k in range(4):
        for image, label in zip(inputs(task), task.labels.tolist(), strict=True):
            images.append(np.rot90(image, k, (1, 2)))
            targets.append(4 * method.classes.index(label) + k)
    return torch.from_numpy(np.stack(images)), torch.tensor(targets)


def entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """- 1/N sum_i log (exp z_i[y_i] / sum_j exp z_ij)."""
    total = torch.zeros((), dtype=torch.float64)
    for z, y in zip(logits, targets.tolist(), strict=True):
        total = total + z.exp().sum().log() - z[y]
    return total / len(targets)


def test_the_first_task_learns_turned_classes(
    make_method: MakeMethod, make_tasks: MakeTasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    for groups in (PAIRS, SINGLES):
        task = make_tasks(groups, count=60)[0]
        method: PASS = make_method("pass", epochs=1, batch_size=100, augmentations=(), softmax_temperature=0.3)
        seen = watch(method, task, monkeypatch, exact=True)
        network, head = seen.before[0].train(), seen.before[1]
        images, targets = turned(method, task)
        logits = (network(images) @ head.weight.T + head.bias) / 0.3
        assert logits.shape[1] == 4 * len(groups[0])
        check(seen, {"cross entropy": entropy(logits, targets)}, [*network.parameters(), *head.parameters()])
        assert seen.drawn == [] and seen.steps[0].losses["cross entropy"] > 0.1


@pytest.mark.parametrize("groups", [PAIRS, SINGLES], ids=["two classes", "one class"])
def test_loss_and_its_gradient(
    groups: tuple[tuple[int, ...], ...],
    make_method: MakeMethod,
    make_tasks: MakeTasks,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One batch that holds the whole second task."""
    first, second = make_tasks(groups, count=60)
    settings = {"softmax_temperature": 0.3, "feature_distillation_weight": 1.7, "prototype_weight": 2.3}
    method: PASS = make_method("pass", epochs=1, batch_size=100, augmentations=(), learning_rate=0.01, **settings)
    method.learn(first)
    former, means, radius = copy.deepcopy(method.network).double().eval(), method.bank.means.clone(), method.radius()
    seen = watch(method, second, monkeypatch, exact=True)
    network, head = seen.before[0].train(), seen.before[1]
    images, targets = turned(method, second)
    features = network(images)
    with torch.no_grad():
        before = former(images)
    squares = torch.zeros((), dtype=torch.float64)
    for now, then in zip(features, before, strict=True):
        squares = squares + ((now - then) ** 2).sum()
    columns, made = seen.drawn[0], seen.headed[1].double()
    played = made @ head.weight.T + head.bias
    rows = 4 * len(method.classes)
    assert rows == 8 * len(groups[0]) and played.shape == (len(second.images), rows)
    terms = {
        "cross entropy": entropy((features @ head.weight.T + head.bias) / 0.3, targets),
        "distillation": 1.7 * squares.sqrt(),
        "prototypes": 2.3 * entropy(played / 0.3, torch.tensor([4 * c for c in columns.tolist()])),
    }
    check(seen, terms, [*network.parameters(), *head.parameters()])
    assert set(columns.tolist()) == set(range(len(groups[0])))
    noise = (made - means[columns]).numpy() / radius
    assert noise.std() == pytest.approx(1.0, rel=0.1)


def check(seen: Watched, terms: dict[str, Tensor], parameters: list[nn.Parameter]) -> None:
    """The terms of the only step, and the gradient of their sum."""
    assert len(seen.steps) == 1 and set(seen.steps[0].losses) == set(terms)
    for name, term in terms.items():
        assert seen.steps[0].losses[name] == pytest.approx(term.item(), rel=1e-9), name
    wanted = torch.autograd.grad(sum(terms.values(), torch.zeros(())), parameters)
    largest = max(float(gradient.abs().max()) for gradient in wanted)
    for gradient, expected in zip(seen.gradients[0], wanted, strict=True):
        assert torch.allclose(gradient, expected, rtol=1e-7, atol=1e-9 * largest)


def test_noise_has_the_radius_of_all_classes_or_of_the_first_ones(
    make_method: MakeMethod, make_tasks: MakeTasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the third task both choices are the same, so that they then draw the same noise."""
    tasks = make_tasks(((0, 1), (2,), (3,)))
    made: dict[str, np.ndarray] = {}
    radii: dict[str, float] = {}
    for choice in ("all", "first"):
        method: PASS = make_method("pass", radius_of=choice, batch_size=100, learning_rate=0.01)
        assert method.radius() == 0.0
        spreads: list[float] = []
        for task in tasks[:2]:
            method.learn(task)
            with torch.no_grad():
                features = method.network.eval()(torch.from_numpy(inputs(task)).float())
            for label in sorted(set(task.labels)):
                own = features[torch.from_numpy(task.labels == label)].double().numpy()
                spreads.append(np.trace(np.cov(own, rowvar=False)) / own.shape[1])
        radii[choice] = np.sqrt(np.mean(spreads if choice == "all" else spreads[:2]))
        assert method.radius() == pytest.approx(radii[choice], rel=1e-4)
        means = method.bank.means.numpy().copy()
        seen = watch(method, tasks[2], monkeypatch)
        made[choice] = seen.headed[1].double().numpy() - means[seen.drawn[0].numpy()]
    assert abs(radii["all"] / radii["first"] - 1) > 0.05
    assert np.allclose(made["all"] / radii["all"], made["first"] / radii["first"], atol=1e-3)
    noise = made["first"] / radii["first"]
    assert noise.size > 1000
    assert noise.mean() == pytest.approx(0.0, abs=0.08) and noise.std() == pytest.approx(1.0, abs=0.06)
    assert np.mean(np.abs(noise) < 1) == pytest.approx(0.683, abs=0.04), "normal"
    assert noise.mean(0).std() < 0.3 and noise.mean(1).std() < 0.4, "other noise for every mean and direction"


@pytest.mark.parametrize(
    ("groups", "choice", "each"),
    [
        (((0, 1), (2, 3)), "ratio", 1),
        (((0, 1, 2), (3,)), "ratio", 3),
        (((0, 1, 2), (3,)), "batch", 1),
        (((0, 1, 2), (2, 3)), "ratio", 1),  # floor(3 / 2)
        (((0,), (1, 2, 3)), "ratio", 1),  # at least one
    ],
)
def test_how_many_means_play(
    groups: tuple[tuple[int, ...], ...],
    choice: str,
    each: int,
    make_method: MakeMethod,
    make_tasks: MakeTasks,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = make_tasks(groups)
    method: PASS = make_method("pass", epochs=1, prototype_count=choice)
    method.learn(first)
    seen = watch(method, second, monkeypatch)
    assert len(seen.steps) > 1 and len(seen.headed) == 2 * len(seen.steps) == 2 * len(seen.drawn)
    batches = [len(features) // 4 for features in seen.headed[::2]]
    assert batches[0] == 16 and sum(batches) == len(second.images)
    for batch, made, columns in zip(batches, seen.headed[1::2], seen.drawn, strict=True):
        assert len(made) == len(columns) == each * batch
        assert set(columns.tolist()) <= set(range(len(groups[0])))


def test_both_networks_see_four_turns_of_augmented_images(
    make_method: MakeMethod, make_tasks: MakeTasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = make_tasks()
    method: PASS = make_method("pass", epochs=1, augmentations=("crop", "flip"))
    method.learn(first)
    given: list[tuple[bool, Tensor]] = []

    def hook(data: TaskData) -> None:
        for network in (method.network, method.extra["network"]):
            network.register_forward_pre_hook(lambda module, images: given.append((module.training, images[0])))

    monkeypatch.setattr(method, "begin", hook)
    steps: list[Step] = []
    method.on_step = steps.append
    method.learn(second)
    plain = inputs(second)
    for (training, images), (teaching, same) in zip(
        given[: 2 * len(steps) : 2], given[1 : 2 * len(steps) : 2], strict=True
    ):
        assert training and not teaching and torch.equal(images, same)
        count = len(images) // 4
        for row, image in enumerate(images.numpy()):
            assert np.array_equal(image, np.rot90(images[row % count].numpy(), row // count, (1, 2)))
        away = [np.abs(plain - image).max((1, 2, 3)).min() for image in images[:count].numpy()]
        assert max(away) > 0.1, "augmented"


def test_four_rows_for_each_class(
    make_method: MakeMethod, make_tasks: MakeTasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    method: PASS = make_method("pass", epochs=1)
    before: dict[str, Tensor] = {}
    for task, classes in zip(make_tasks(((0, 1), (3,), (1, 2))), (2, 3, 4), strict=True):
        seen = watch(method, task, monkeypatch)
        for name, rows in before.items():
            assert torch.equal(getattr(seen.before[1], name)[: len(rows)], rows), "old rows stay in their places"
        before = method.state_dict()["head"]
        assert before["weight"].shape == (4 * classes, method.network.size) and before["bias"].shape == (4 * classes,)
        scores = method.scores(task.images)
        with torch.no_grad():
            features = method.network.eval()(torch.from_numpy(inputs(task)).float())
        assert scores.shape == (len(task.images), classes)
        for column in range(classes):
            expected = features @ before["weight"][4 * column] + before["bias"][4 * column]
            assert torch.allclose(scores[:, column], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("choice", ["all", "first"])
def test_left_after_every_step_of_the_second_task(
    choice: str, make_method: MakeMethod, make_tasks: MakeTasks, tmp_path: Path
) -> None:
    """The third task then shows whether the first one's radius is known still."""
    first, second, third = make_tasks(((0, 1), (2,), (3,)), count=40)

    def make() -> PASS:
        return make_method("pass", radius_of=choice, batch_size=4, epochs=1)

    whole, method = make(), make()
    places: list[Step] = []
    for each in (whole, method):
        each.learn(first)
    whole.learn(second)

    def leave(place: Step) -> None:
        places.append(place)
        save_state(tmp_path / "state", method.state_dict(), {})
        raise LeftError

    for _ in range(100):
        method.on_step = leave
        try:
            method.learn(second)
        except LeftError:
            method = make()
            method.load_state_dict(load_state(tmp_path / "state")[0])
        else:
            break
    assert [place.step for place in places] == list(range(1, places[0].steps + 1)) and len(places) > 1
    assert same_state(method.state_dict(), whole.state_dict())
    for each in (whole, method):
        each.on_step = None
        each.learn(third)
    assert same_state(method.state_dict(), whole.state_dict())
    assert method.radius() == whole.radius() > 0


def test_one_class_at_a_time(make_method: MakeMethod, make_tasks: MakeTasks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turned images are told apart from the first task on; as many means for an image as there are old classes."""
    method: PASS = make_method("pass", epochs=1)
    for old, task in enumerate(make_tasks(((2,), (0,), (1,)))):
        seen = watch(method, task, monkeypatch)
        assert all(step.losses["cross entropy"] > 0.01 for step in seen.steps)
        assert [len(columns) for columns in seen.drawn] == (
            [old * len(features) // 4 for features in seen.headed[::2]] if old else []
        )
        assert method.scores(task.images).shape == (len(task.images), old + 1)
    assert list(method.classes) == [2, 0, 1] and method.bank.means.shape == (3, method.network.size)


def test_settings() -> None:
    config = PASSConfig()
    assert (config.batch_size, config.softmax_temperature, config.prototype_count, config.radius_of) == (
        *(64, 0.1),
        *("ratio", "all"),
    )
    assert (config.feature_distillation_weight, config.prototype_weight) == (10.0, 10.0)
    for setting in ("prototype_count", "radius_of"):
        with pytest.raises(CircleError, match=f"pass.{setting} = 'other'"):
            config.replace(**{setting: "other"})
