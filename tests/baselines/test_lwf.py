"""LwF: the distillation loss and its gradient, a teacher that stays as it was, cross-entropy of new classes alone."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from circle.baselines.lwf import LwF, LwFConfig, distillation
from circle.baselines.trainer import TaskData
from circle.benchmark.results import same_state
from circle.errors import CircleError
from circle.method import Step, Task

pytestmark = pytest.mark.usefixtures("one_thread")

MakeMethod = Callable[..., Any]
MakeTasks = Callable[..., list[Task]]


class LeftError(Exception):
    """Ends learning after a step."""


def softmax(values: np.ndarray) -> np.ndarray:
    powers = np.exp(values - values.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def written_out(logits: np.ndarray, teacher: np.ndarray, temperature: float) -> float:
    """- 1/B sum_i sum_j p_ij log q_ij, term by term."""
    p, q = softmax(teacher / temperature), softmax(logits / temperature)
    total = 0.0
    for i in range(len(p)):
        for j in range(p.shape[1]):
            total -= p[i, j] * math.log(q[i, j])
    return total / len(p)


@given(
    batch=st.integers(1, 6),
    classes=st.integers(1, 5),
    temperature=st.floats(0.5, 5.0),
    seed=st.integers(0, 1000),
)
def test_distillation_and_its_gradient(batch: int, classes: int, temperature: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits, teacher = 3 * torch.randn(2, batch, classes, generator=generator, dtype=torch.float64)
    logits.requires_grad_()
    loss = distillation(logits, teacher, temperature)
    expected = written_out(logits.detach().numpy(), teacher.numpy(), temperature)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    (gradient,) = torch.autograd.grad(loss, logits)
    p, q = softmax(teacher.numpy() / temperature), softmax(logits.detach().numpy() / temperature)
    assert np.allclose(gradient.numpy(), (q - p) / (temperature * batch), atol=1e-12)
    powers = torch.exp(logits / temperature)
    targets = torch.exp(teacher / temperature) / torch.exp(teacher / temperature).sum(1, keepdim=True)
    plain = -(targets * torch.log(powers / powers.sum(1, keepdim=True))).sum() / batch
    (other,) = torch.autograd.grad(plain, logits)
    assert np.allclose(gradient.numpy(), other.numpy(), atol=1e-12)


def test_distillation_is_least_where_both_agree() -> None:
    teacher = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    at = distillation(teacher, teacher, 2.0)
    assert float(distillation(teacher + 5.0, teacher, 2.0)) == pytest.approx(float(at)), "only differences count"
    assert all(float(distillation(teacher * scale, teacher, 2.0)) > float(at) for scale in (0.0, 0.5, 2.0))


def inputs(task: Task) -> Tensor:
    pixels = torch.from_numpy(task.images).permute(0, 3, 1, 2).float()
    return (pixels / 255 - 0.5) / 0.25


def test_losses_of_the_first_step(
    make_method: MakeMethod, make_tasks: MakeTasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One batch that holds the whole task, so that a second network says what both terms are."""
    first, second = make_tasks()
    method: LwF = make_method("lwf", epochs=1, batch_size=100, augmentations=(), distillation_weight=1.7)
    method.learn(first)
    kept: list[Any] = []
    begin = method.begin

    def keep(data: TaskData) -> None:
        begin(data)
        kept.append(copy.deepcopy((method.network, method.head)))

    monkeypatch.setattr(method, "begin", keep)
    steps: list[Step] = []
    method.on_step = steps.append
    method.learn(second)
    network, head = kept[0]
    with torch.no_grad():
        teacher = head(network.eval()(inputs(second)))[:, :2].double().numpy()
        logits = head(network.train()(inputs(second))).double().numpy()
    chances = softmax(logits[:, 2:])[np.arange(len(logits)), second.labels - 2]
    assert len(steps) == 1
    assert steps[0].losses["cross entropy"] == pytest.approx(-np.log(chances).mean(), rel=1e-4)
    assert steps[0].losses["distillation"] == pytest.approx(1.7 * written_out(logits[:, :2], teacher, 2.0), rel=1e-4)


def test_the_teacher_stays_as_it_was(make_method: MakeMethod, make_tasks: MakeTasks) -> None:
    first, second = make_tasks()
    method: LwF = make_method("lwf")
    method.learn(first)
    assert "pending" not in method.state_dict()
    before = method.state_dict()
    seen = []

    def check(_: Step) -> None:
        state = method.state_dict()
        saved = state["pending"]["extra"]
        teacher = {name.removeprefix("network."): value for name, value in saved.items() if name.startswith("network.")}
        seen.append(same_state(teacher, before["backbone"]))
        for name, rows in before["head"].items():
            seen.append(torch.equal(saved[f"head.{name}"][:2], rows))
        assert not same_state(teacher, state["backbone"]), "while the network itself moves"

    method.on_step = check
    method.learn(second)
    assert len(seen) > 6 and all(seen)
    assert "pending" not in method.state_dict()


def test_the_teacher_is_asked_about_old_classes_only(make_method: MakeMethod, make_tasks: MakeTasks) -> None:
    first, second = make_tasks()

    def end(rows: slice) -> dict[str, Any]:
        """The state after both tasks, where rows of the teacher's head are changed after the second's first step."""
        method: LwF = make_method("lwf", epochs=1)
        method.learn(first)
        kept: list[dict[str, Any]] = []

        def leave(_: Step) -> None:
            kept.append(copy.deepcopy(method.state_dict()))
            raise LeftError

        method.on_step = leave
        with pytest.raises(LeftError):
            method.learn(second)
        kept[0]["pending"]["extra"]["head.weight"][rows] += 10.0
        resumed: LwF = make_method("lwf", epochs=1)
        resumed.load_state_dict(kept[0])
        resumed.learn(second)
        return resumed.state_dict()

    nothing, new, old = end(slice(0, 0)), end(slice(2, 4)), end(slice(0, 1))
    assert same_state(nothing, new)
    assert not same_state(nothing, old)


def test_cross_entropy_leaves_old_rows_alone(make_method: MakeMethod, make_tasks: MakeTasks) -> None:
    """Without distillation and decay nothing has a gradient there."""
    first, second = make_tasks()
    method: LwF = make_method("lwf", distillation_weight=0.0, weight_decay=0.0)
    method.learn(first)
    before = method.state_dict()["head"]
    method.learn(second)
    after = method.state_dict()["head"]
    for name, rows in before.items():
        assert torch.equal(after[name][:2], rows)
    assert not torch.equal(after["bias"][2:], torch.zeros(2)), "new rows are learned"


def test_old_rows_only_decay_without_distillation(make_method: MakeMethod, make_tasks: MakeTasks) -> None:
    first, second = make_tasks()
    settings = {"weight_decay": 0.1, "learning_rate": 0.02, "milestones": (1,), "learning_rate_decay": 0.5}
    method: LwF = make_method("lwf", distillation_weight=0.0, **settings)
    method.learn(first)
    rows = method.state_dict()["head"]["weight"].double().numpy()
    momentum, steps = np.zeros_like(rows), []
    method.on_step = steps.append
    method.learn(second)
    for step in steps:
        momentum = 0.9 * momentum + 0.1 * rows
        rows = rows - (0.02 if step.epoch == 1 else 0.01) * momentum
    assert len(steps) == 2 * steps[0].steps > 2
    assert np.allclose(method.state_dict()["head"]["weight"][:2].numpy(), rows, rtol=1e-4, atol=1e-7)


def test_two_schedules() -> None:
    config = LwFConfig()
    method = LwF(config)
    first = method.training()
    method.tasks = 1
    later = method.training()
    assert (first.epochs, first.weight_decay, first.momentum) == (200, 5e-4, 0.9)
    assert (later.epochs, later.weight_decay, later.momentum) == (250, 2e-4, 0.9)
    assert [first.rate(epoch) for epoch in (0, 59, 60, 120, 160)] == pytest.approx([0.1, 0.1, 1e-2, 1e-3, 1e-4])
    assert [later.rate(epoch) for epoch in (59, 60, 120, 180, 220)] == pytest.approx([0.1, 1e-2, 1e-3, 1e-4, 1e-5])


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(CircleError, match="lwf.temperature = 0.0: expected a positive number"):
        LwFConfig(temperature=0.0)
    with pytest.raises(CircleError, match="lwf.distillation_weight = -1.0"):
        LwFConfig(distillation_weight=-1.0)
