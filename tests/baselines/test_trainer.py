"""The loop that all trained methods share: left after any step and taken up again, stopped when it diverges."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from circle.baselines.frozen import FrozenMethod
from circle.benchmark.results import load_state, same_state, save_state
from circle.errors import CircleError
from circle.method import Step, Steps, Task, predict
from circle.registry import entry, list_methods

pytestmark = pytest.mark.usefixtures("one_thread")

MakeMethod = Callable[..., Any]
MakeTasks = Callable[..., list[Task]]
TURNING = ("adagauss", "efc_plus_plus", "pass")  # methods with classes of turned images


# Maps of features, draws and the training of a head are there for their steps here, of which few are as good as many.
FEW = {"feature_size": 20, "multiplier": 2, "draws": 50, "balanced_epochs": 2, "balanced_batch_size": 24}


class LeftError(Exception):
    """What a killed run is here."""


@pytest.fixture
def make_method(make_method: MakeMethod) -> MakeMethod:
    """As elsewhere, with less of what only some methods do."""

    def make(name: str, **changes: Any) -> Any:
        known = entry("method", name).config.field_names()
        return make_method(name, **{**{field: FEW[field] for field in FEW if field in known}, **changes})

    return make


@pytest.fixture(params=list_methods())
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def learn_until(method: Any, task: Task, step: int, path: Path) -> Step | None:
    """Learn a task, but save the state after so many steps and leave; where that was, or None at the end."""
    places: list[Step] = []

    def leave(place: Step) -> None:
        places.append(place)
        if len(places) == step:
            save_state(path, method.state_dict(), {})
            raise LeftError

    method.on_step = leave
    try:
        method.learn(task)
    except LeftError:
        return places[-1]
    return None


def test_left_after_every_few_steps(name: str, make_method: MakeMethod, make_tasks: MakeTasks, tmp_path: Path) -> None:
    """After every one and after every fourth. Each time another object loads the file and is given the task again."""
    tasks = make_tasks()
    whole, places, ends = make_method(name), [], []
    whole.on_step = places.append
    for task in tasks:
        whole.learn(task)
        ends.append(whole.state_dict())
    learned = {place.task for place in places}
    assert learned == ({1} if isinstance(whole, FrozenMethod) and name != "fetril" else {1, 2})
    for stride in (1, 4):
        method, left = make_method(name), []
        for number, (task, end) in enumerate(zip(tasks, ends, strict=True), 1):
            own, interruptions = [place for place in places if place.task == number], 0
            while (place := learn_until(method, task, stride, tmp_path / "state")) is not None:
                interruptions += 1
                assert place == own[stride * interruptions - 1]
                left.append(place)
                saved = load_state(tmp_path / "state")[0]
                assert same_state(saved, method.state_dict())
                method = make_method(name)
                method.load_state_dict(saved)
                assert same_state(saved, method.state_dict())
            assert interruptions == len(own) // stride
            assert same_state(method.state_dict(), end)
        assert torch.equal(method.scores(tasks[0].images), whole.scores(tasks[0].images))
        if stride == 1:
            reached = {(place.task, place.step == place.steps) for place in left}
            assert reached == {(number, last) for number in learned for last in (False, True)}, "within and at the ends"


def test_the_object_that_was_left_goes_on_itself(
    name: str, make_method: MakeMethod, make_tasks: MakeTasks, tmp_path: Path
) -> None:
    task = make_tasks()[0]
    whole, method = make_method(name, epochs=1), make_method(name, epochs=1)
    whole.learn(task)
    assert learn_until(method, task, 2, tmp_path / "state") is not None
    method.on_step = None
    method.learn(task)
    assert same_state(method.state_dict(), whole.state_dict())


def test_a_state_from_before_the_first_task_makes_a_used_object_new(
    name: str, make_method: MakeMethod, make_tasks: MakeTasks
) -> None:
    first, second = make_tasks()
    new, used = make_method(name, epochs=1), make_method(name, epochs=1)
    used.learn(first)
    used.load_state_dict(make_method(name, epochs=1).state_dict())
    for method in (new, used):
        method.learn(second)
    assert same_state(used.state_dict(), new.state_dict())


def test_learning_leaves_a_loaded_state_alone(name: str, make_method: MakeMethod, make_tasks: MakeTasks) -> None:
    """Two objects may be given the same state, and the second finds it as the first did."""
    first, second = make_tasks()
    method = make_method(name, epochs=1)
    method.learn(first)
    given = method.state_dict()
    before = copy.deepcopy(given)
    ends = []
    for _ in range(2):
        resumed = make_method(name, epochs=1)
        resumed.load_state_dict(given)
        resumed.learn(second)
        ends.append(resumed.state_dict())
        assert same_state(given, before)
    assert same_state(*ends)


def balanced(labels: list[int], seed: int = 0, shape: tuple[int, ...] = (8, 8, 3), count: int = 10) -> Task:
    random = np.random.default_rng(seed)
    return Task(random.integers(0, 256, (count * len(labels), *shape), dtype=np.uint8), np.array(labels * count))


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(balanced([2, 3], count=11), id="more images"),
        pytest.param(balanced([2, 4]), id="unknown class"),
        pytest.param(balanced([0, 1], seed=1), id="earlier task"),
    ],
)
def test_going_on_with_another_task_is_refused(other: Task, make_method: MakeMethod, tmp_path: Path) -> None:
    """Tasks of a benchmark are of one size, so the size alone does not tell them apart."""
    method = make_method("lwf", epochs=1)
    method.learn(balanced([0, 1], seed=1))
    assert learn_until(method, balanced([2, 3], seed=2), 1, tmp_path / "state") is not None
    resumed = make_method("lwf", epochs=1)
    resumed.load_state_dict(load_state(tmp_path / "state")[0])
    with pytest.raises(CircleError, match="was begun: expected it"):
        resumed.learn(other)
    assert same_state(resumed.state_dict(), load_state(tmp_path / "state")[0])


def test_a_diverging_loss_stops_the_run(name: str, make_method: MakeMethod, make_tasks: MakeTasks) -> None:
    fields = make_method(name).config.field_names()
    rate = "initial_learning_rate" if "initial_learning_rate" in fields else "learning_rate"
    method = make_method(name, **{rate: 1e30})
    with pytest.raises(CircleError, match=rf"^{name} diverged: [a-z ]+ loss is -?(nan|inf) in task 1, epoch [12]: "):
        method.learn(make_tasks()[0])


def test_a_network_that_is_not_finite_is_noticed(name: str, make_method: MakeMethod, make_tasks: MakeTasks) -> None:
    first, second = make_tasks()
    method, steps = make_method(name, epochs=1), []
    method.learn(first)
    method.on_step = steps.append
    with torch.no_grad():
        next(iter(method.network.parameters())).fill_(math.nan)
    trained = not isinstance(method, FrozenMethod) or name == "fetril"
    pattern = rf"^{name} diverged: [a-z ]+ loss is nan in task 2, epoch 1: lower" if trained else "finite"
    with pytest.raises(CircleError, match=pattern):
        method.learn(second)
        method.scores(second.images)
    assert steps == []


def test_steps_are_reported_in_order(name: str, make_method: MakeMethod, make_tasks: MakeTasks) -> None:
    assert isinstance(make_method(name), Steps)
    reported: list[Step] = []
    method, tasks = make_method(name), make_tasks()
    method.on_step = reported.append
    expected = []
    for number, task in enumerate(tasks, 1):
        method.learn(task)
        stages = list(dict.fromkeys(step.stage for step in reported if step.task == number))
        for stage in stages:
            own = next(step for step in reported if (step.task, step.stage) == (number, stage))
            places = [(epoch, step) for epoch in range(1, own.epochs + 1) for step in range(1, own.steps + 1)]
            expected += [(number, stage, epoch, own.epochs, step, own.steps) for epoch, step in places]
    assert [(each.task, each.stage, each.epoch, each.epochs, each.step, each.steps) for each in reported] == expected
    losses = [value for each in reported for value in each.losses.values()]
    assert len(losses) >= len(reported) and all(isinstance(value, float) and math.isfinite(value) for value in losses)
    if name in ("acil", "dsal", "fecam", "fetril", "finetune", "lwf"):
        steps = math.ceil(len(tasks[0].images) / 16) - (len(tasks[0].images) % 16 == 1)
        assert expected[0] == (1, "train", 1, 2, 1, steps)
        assert set(reported[0].losses) == {"cross entropy"}
    if name == "lwf":
        assert set(reported[-1].losses) == {"cross entropy", "distillation"}
    if name == "fetril":
        assert expected[-1][:2] == (2, "head")


def test_classes_that_come_again(name: str, make_method: MakeMethod, make_tasks: MakeTasks) -> None:
    method = make_method(name, epochs=1)
    tasks = make_tasks(groups=((0, 1), (1, 2), (0, 2)))
    for task, classes in zip(tasks, (2, 3, 3), strict=True):
        method.learn(task)
        scores = method.scores(tasks[-1].images)
        assert scores.shape == (len(tasks[-1].images), classes) and bool(scores.isfinite().all())
    assert list(method.classes) == [0, 1, 2]
    assert set(predict(method, tasks[-1].images)) <= {0, 1, 2}


def test_other_channels_are_refused_and_change_nothing(name: str, make_method: MakeMethod) -> None:
    method = make_method(name, epochs=1)
    method.learn(balanced([0, 1]))
    before = method.state_dict()
    for shape, found in (((8, 8), 1), ((8, 8, 4), 4)):
        with pytest.raises(CircleError, match=f"images with {found} channels: expected 3"):
            method.learn(balanced([2, 3], shape=shape))
        with pytest.raises(CircleError, match=f"images with {found} channels: expected 3"):
            method.scores(balanced([2, 3], shape=shape).images)
    assert same_state(method.state_dict(), before)


def test_grey_images(name: str, make_method: MakeMethod) -> None:
    """With or without an axis of one channel they are the same images, in the same layout, so to the last bit."""
    scores, width = [], 9 if name in TURNING else 10
    for shape in ((9, width), (9, width, 1)):
        method = make_method(name, epochs=1)
        for labels in ([0, 1], [2, 3]):
            method.learn(balanced(labels, seed=labels[0], shape=shape))
        scores.append(method.scores(balanced([0, 1], seed=7, shape=shape).images))
    assert torch.equal(scores[0], scores[1]) and bool(scores[0].isfinite().all())


@pytest.mark.parametrize("name", TURNING)
def test_methods_that_turn_images_refuse_oblong_ones(name: str, make_method: MakeMethod) -> None:
    with pytest.raises(CircleError, match="turns images: expected square ones, got 9 x 10"):
        make_method(name, epochs=1).learn(balanced([0, 1], shape=(9, 10, 3)))


def test_one_class_per_task(name: str, make_method: MakeMethod, make_tasks: MakeTasks) -> None:
    method, tasks = make_method(name, epochs=1), make_tasks(groups=((2,), (0,), (1,)))
    for count, task in enumerate(tasks, 1):  # after the first: a single task of one class
        method.learn(task)
        for images in (tasks[0].images, tasks[-1].images):
            scores = method.scores(images)
            assert scores.shape == (len(images), count) and bool(scores.isfinite().all())
        if count == 1:
            assert set(predict(method, tasks[-1].images)) == {2}
    assert list(method.classes) == [2, 0, 1]
