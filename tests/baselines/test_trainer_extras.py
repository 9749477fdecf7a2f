"""What a task has for itself alone, what is kept of classes, and copies of images: made, dropped, taken up again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from circle.baselines.augmentation import random_crop, random_flip
from circle.baselines.finetune import FineTuneConfig
from circle.baselines.optimisers import Training
from circle.baselines.trainer import Stage, TaskData, TrainedMethod
from circle.benchmark.results import load_state, same_state, save_state
from circle.method import Step, Task

pytestmark = pytest.mark.usefixtures("one_thread")

MakeTasks = Callable[..., list[Task]]


class LeftError(Exception):
    """Ends learning after a step."""


class Gate(nn.Module):
    """Scales features, and counts how often: something that is learned, and something that is not."""

    uses: Tensor

    def __init__(self, size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size, generator=generator))
        self.register_buffer("uses", torch.zeros(()))

    def forward(self, features: Tensor) -> Tensor:
        self.uses += 1
        return features * self.weight


class Gated(TrainedMethod[FineTuneConfig]):
    """A head on gated features; the gate is for one task alone, and the previous network pulls after the first."""

    config_type = FineTuneConfig
    keeps: ClassVar[Literal["nothing", "means", "covariances"]] = "covariances"

    def __init__(self, config: FineTuneConfig | None = None, seed: int = 0) -> None:
        super().__init__(config, seed)
        self.made: list[tuple[torch.Generator, Tensor]] = []  # generators that modules were made from, as they were
        self.begun: list[dict[str, Tensor]] = []

    def extras(self, data: TaskData, generator: torch.Generator) -> dict[str, nn.Module]:
        self.made.append((generator, generator.get_state()))
        modules: dict[str, nn.Module] = {"gate": Gate(self.network.size, generator)}
        return {**modules, "network": self.previous_network()} if self.tasks else modules

    def begin(self, data: TaskData) -> None:
        self.begun.append(copy.deepcopy(dict(self.extra.state_dict())))

    def stages(self) -> Sequence[Stage]:
        return [("first", self._train), ("second", self._train), ("means", self._describe)]

    def _train(self, data: TaskData) -> None:
        plain = self.cross_entropy(data)

        def losses(batch: Tensor) -> dict[str, Tensor]:
            features = self.network(self.inputs(data.pixels[batch], augmented=True))
            terms = {**plain(batch), "gated": self.extra["gate"](features).square().mean()}
            if self.tasks:
                before = self.extra["network"](self.inputs(data.pixels[batch], augmented=False))
                terms["former"] = (features - before.detach()).square().mean()
            return terms

        parameters = [*self.parameters(), *self.extra["gate"].parameters()]
        self.fit(losses, len(data), parameters, Training(1, 16, 0.01))

    def _describe(self, data: TaskData) -> None:
        self.bank.describe(data.columns, self.features(data.pixels))


class Averaging(Gated):
    keeps: ClassVar[Literal["nothing", "means", "covariances"]] = "means"


class Forgetful(Gated):
    keeps: ClassVar[Literal["nothing", "means", "covariances"]] = "nothing"

    def stages(self) -> Sequence[Stage]:
        return [("first", self._train)]


def make(kind: type[Gated] = Gated, seed: int = 0) -> Gated:
    return kind(FineTuneConfig(width=2, augmentations=("crop", "flip")), seed)


def leave_after(method: Gated, task: Task, steps: int) -> dict[str, Any]:
    """Learn a task and leave after so many steps; the state there."""
    states: list[dict[str, Any]] = []

    def leave(_: Step) -> None:
        states.append(method.state_dict())
        if len(states) == steps:
            raise LeftError

    method.on_step = leave
    with pytest.raises(LeftError):
        method.learn(task)
    method.on_step = None
    return states[-1]


def test_made_once_per_task_from_the_methods_generator_and_dropped_after_it(make_tasks: MakeTasks) -> None:
    method = make()
    for number, task in enumerate(make_tasks(), 1):
        seen: list[list[str]] = []
        method.on_step = lambda _, seen=seen: seen.append(sorted(method.extra))
        former = {f"network.{name}": value for name, value in method.state_dict().get("backbone", {}).items()}
        method.learn(task)
        assert len(method.made) == len(method.begun) == number
        generator, state = method.made[-1]
        assert generator is method.generator
        again = torch.Generator()
        again.set_state(state)
        assert torch.equal(method.begun[-1]["gate.weight"], torch.rand(method.network.size, generator=again))
        gate = {name: value for name, value in method.begun[-1].items() if name.startswith("gate.")}
        assert same_state(method.begun[-1], {**gate, **former}), "the network is that of before the task"
        assert set(map(tuple, seen)) == {("gate", "network") if number > 1 else ("gate",)} and len(seen) > 4
        assert len(method.extra) == 0 and "pending" not in method.state_dict()
    assert not torch.equal(method.begun[0]["gate.weight"], method.begun[1]["gate.weight"])


@pytest.mark.parametrize("steps", [1, 3, 4])
def test_taken_up_again_by_another_object(make_tasks: MakeTasks, tmp_path: Path, steps: int) -> None:
    """In the first or the second stage of the second task: weights and counts go on, the generator is left alone."""
    first, second = make_tasks()
    whole, method = make(), make()
    for each in (whole, method):
        each.learn(first)
    whole.learn(second)
    state = leave_after(method, second, steps)
    left = dict(method.extra.state_dict())
    assert same_state(state["pending"]["extra"], left) and float(left["gate.uses"]) == steps
    assert not torch.equal(left["gate.weight"], method.begun[-1]["gate.weight"]), "the gate learns"
    save_state(tmp_path / "state", state, {})
    saved = load_state(tmp_path / "state")[0]
    untouched = copy.deepcopy(saved)
    resumed = make(seed=5)
    resumed.load_state_dict(saved)
    assert len(resumed.extra) == 0 and resumed.made == []
    assert same_state(resumed.state_dict(), saved), "a state that was loaded can be saved before learning goes on"
    found: list[float] = []
    resumed.on_step = lambda _: found.append(float(resumed.extra.state_dict()["gate.uses"]))
    resumed.learn(second)
    assert found[0] == steps + 1
    assert len(resumed.made) == 1 and resumed.made[0][0] is not resumed.generator
    assert resumed.begun == [], "the task was begun before"
    assert same_state(resumed.state_dict(), whole.state_dict())
    assert same_state(saved, untouched)
    assert len(resumed.extra) == 0


@pytest.mark.parametrize("steps", [1, 4])
def test_the_object_that_was_left_goes_on_with_its_own(make_tasks: MakeTasks, steps: int) -> None:
    first, second = make_tasks()
    whole, method = make(), make()
    for each in (whole, method):
        each.learn(first)
    whole.learn(second)
    state = leave_after(method, second, steps)
    before = copy.deepcopy(state)
    modules = dict(method.extra.items())
    seen: list[bool] = []
    method.on_step = lambda _: seen.append(all(method.extra[name] is module for name, module in modules.items()))
    method.learn(second)
    assert seen and all(seen) and len(method.made) == 2, "nothing is made again"
    assert same_state(state, before), "a state is a copy"
    assert same_state(method.state_dict(), whole.state_dict())


def test_left_taken_up_and_left_again(make_tasks: MakeTasks) -> None:
    """An object that loaded a state is left, goes on itself, is left, and another one ends the task."""
    first, second = make_tasks()
    whole, method = make(), make()
    for each in (whole, method):
        each.learn(first)
    whole.learn(second)
    resumed = make()
    resumed.load_state_dict(leave_after(method, second, 1))
    leave_after(resumed, second, 1)
    state = leave_after(resumed, second, 2)
    assert float(state["pending"]["extra"]["gate.uses"]) == 4 and len(resumed.made) == 1
    last = make()
    last.load_state_dict(state)
    last.learn(second)
    assert same_state(last.state_dict(), whole.state_dict())


def test_a_task_begun_is_forgotten_when_another_state_is_loaded(make_tasks: MakeTasks) -> None:
    first, second = make_tasks()
    method, other = make(), make()
    for each in (method, other):
        each.learn(first)
    state = method.state_dict()
    leave_after(method, second, 2)
    method.load_state_dict(state)
    assert len(method.extra) == 0 and same_state(method.state_dict(), state)
    for each in (method, other):
        each.learn(second)
    assert method.made[-1][0] is method.generator
    assert same_state(method.state_dict(), other.state_dict())


@pytest.mark.parametrize("kind", [Gated, Averaging, Forgetful])
def test_what_is_kept_of_classes(kind: type[Gated], make_tasks: MakeTasks, tmp_path: Path) -> None:
    """Saved if anything is, restored, and empty again with a state from before the first task."""
    first, second = make_tasks()
    method = make(kind)
    empty = method.state_dict()
    method.learn(first)
    save_state(tmp_path / "state", method.state_dict(), {})
    saved = load_state(tmp_path / "state")[0]
    assert ("bank" in saved) == (kind is not Forgetful)
    resumed = make(kind, seed=3)
    resumed.load_state_dict(saved)
    if kind is not Forgetful:
        pixels = torch.from_numpy(np.ascontiguousarray(first.images)).permute(0, 3, 1, 2)
        features = method.features(pixels).double().numpy()
        for column, label in enumerate(method.classes):
            own = features[first.labels == label]
            assert resumed.bank.counts[column] == len(own)
            assert np.allclose(resumed.bank.means[column].numpy(), own.mean(0), atol=1e-6)
            assert np.isclose(float(resumed.bank.spreads[column]), own.var(0, ddof=1).mean(), rtol=1e-4)
            if resumed.bank.covariances is not None:
                expected = np.cov(own, rowvar=False)
                assert np.allclose(resumed.bank.covariances[column].numpy(), expected, atol=1e-5)
        assert (resumed.bank.covariances is not None) == (kind is Gated)
        for each in (method, resumed):
            each.learn(second)
        assert len(resumed.bank) == 4 and same_state(resumed.state_dict(), method.state_dict())
    resumed.load_state_dict(empty)
    assert len(resumed.bank) == 0
    new = make(kind)
    for each in (resumed, new):
        each.learn(second)
    assert same_state(resumed.state_dict(), new.state_dict())


@pytest.mark.parametrize("count", [9, 300])
def test_an_augmented_copy(count: int) -> None:
    """Every image once, drawn from the method's generator, rounded to bytes; the images are left alone."""
    random = np.random.default_rng(0)
    pixels = torch.from_numpy(random.integers(0, 256, (count, 3, 10, 12), dtype=np.uint8))
    before = pixels.clone()
    method = make()
    copies = method.augmented_copy(pixels)
    assert copies.dtype == torch.uint8 and copies.shape == pixels.shape and torch.equal(pixels, before)
    generator = torch.Generator().manual_seed(0)
    parts = [before[:256], before[256:]] if count > 256 else [before]
    expected = torch.cat([random_flip(random_crop(part, 4, generator), generator) for part in parts])
    assert torch.equal(copies, expected), "bytes that are only moved stay what they are"
    assert torch.equal(method.generator.get_state(), generator.get_state())
    assert not torch.equal(method.augmented_copy(pixels), copies), "the next one is another"
    method.config = method.config.replace(augmentations=())
    assert torch.equal(method.augmented_copy(pixels), before)


def test_values_between_two_bytes_are_rounded() -> None:
    method = make()
    method.config = method.config.replace(augmentations=("brightness",))
    pixels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).repeat(3, 1, 1, 1)
    copies = method.augmented_copy(pixels).double().numpy()
    draws = torch.rand(3, 1, 1, 1, generator=torch.Generator().manual_seed(0)).double().numpy()
    exact = np.minimum(255, pixels.double().numpy() * (1 - 63 / 255 + 2 * 63 / 255 * draws))
    assert np.abs(copies - exact).max() <= 0.5 + 1e-4
