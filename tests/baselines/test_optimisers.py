"""Steps against torch.optim's, schedules against its schedulers, and batches that hold every sample once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from circle.baselines.optimisers import Optimiser, Training
from circle.method import Task

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPES = ((5, 3), (4,), (2, 3, 3, 3), ())
RATES = (0.1, 0.1, 0.01, 0.5, 0.003)


def values(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(value) for value in values(0)]


def reference(kind: str, own: list[nn.Parameter], training: Training, scales: tuple[float, ...]) -> Any:
    groups: list[dict[str, Any]] = [{"params": [each], "scale": scale} for each, scale in zip(own, scales, strict=True)]
    if kind == "adam":
        return torch.optim.Adam(groups, lr=1.0, weight_decay=training.weight_decay)
    return torch.optim.SGD(groups, lr=1.0, momentum=training.momentum, weight_decay=training.weight_decay)


@pytest.mark.parametrize("scales", [None, (1.0, 1.0, 0.1, 0.5)])
@pytest.mark.parametrize("weight_decay", [0.0, 5e-4])
@pytest.mark.parametrize(("kind", "momentum"), [("sgd", 0.9), ("sgd", 0.0), ("adam", 0.9)])
def test_steps_equal_those_of_torch(
    kind: Any, momentum: float, weight_decay: float, scales: tuple[float, ...] | None
) -> None:
    training = Training(1, 1, 0.1, optimiser=kind, momentum=momentum, weight_decay=weight_decay)
    mine, theirs = parameters(), parameters()
    optimiser = Optimiser(mine, training, scales)
    expected = reference(kind, theirs, training, scales or (1.0,) * len(SHAPES))
    for step, rate in enumerate(RATES):
        gradients = values(step + 1)
        optimiser.step(gradients, rate)
        for group in expected.param_groups:
            group["lr"] = group["scale"] * rate
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = gradient.clone()
        expected.step()
        for one, other in zip(mine, theirs, strict=True):
            assert torch.equal(one, other)


def test_sgd_by_hand() -> None:
    """v <- 0.9 v + g + decay w, w <- w - scale rate v."""
    mine, scales = parameters(), (1.0, 2.0, 0.1, 0.0)
    optimiser = Optimiser(mine, Training(1, 1, 0.1, weight_decay=0.02), scales)
    weights = [value.double().numpy() for value in values(0)]
    momenta = [np.zeros_like(weight) for weight in weights]
    for step, rate in enumerate(RATES):
        optimiser.step(values(step + 1), rate)
        for index, gradient in enumerate(values(step + 1)):
            momenta[index] = 0.9 * momenta[index] + gradient.double().numpy() + 0.02 * weights[index]
            weights[index] = weights[index] - scales[index] * rate * momenta[index]
    for parameter, weight in zip(mine, weights, strict=True):
        assert np.allclose(parameter.detach().numpy(), weight, atol=1e-6)
    assert torch.equal(mine[3], values(0)[3]), "a scale of zero holds a parameter where it is"


@pytest.mark.parametrize("clip", [0.01, 1.0, 7.0, 1e6])
def test_clipping(clip: float) -> None:
    clipped, whole = parameters(), parameters()
    ours = Optimiser(clipped, Training(1, 1, 1.0, momentum=0.0, clip=clip))
    gradients = values(1)
    before = [gradient.clone() for gradient in gradients]
    ours.step(gradients, 1.0)
    for parameter, gradient in zip(whole, gradients, strict=True):
        parameter.grad = gradient.clone()
    torch.nn.utils.clip_grad_norm_(whole, clip)
    moved = [value - parameter.detach() for value, parameter in zip(values(0), clipped, strict=True)]
    for move, parameter in zip(moved, whole, strict=True):
        assert parameter.grad is not None
        assert torch.allclose(move, parameter.grad, rtol=1e-4, atol=1e-6)
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in before))
    reached = math.sqrt(sum(float(move.double().square().sum()) for move in moved))
    assert math.isclose(reached, min(norm, clip), rel_tol=1e-3)
    assert all(torch.equal(one, other) for one, other in zip(gradients, before, strict=True))


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_a_state_goes_on(kind: Any) -> None:
    training = Training(1, 1, 0.1, optimiser=kind, weight_decay=0.01)
    whole, mine = parameters(), parameters()
    expected, first = Optimiser(whole, training), Optimiser(mine, training)
    for step, rate in enumerate(RATES[:2]):
        expected.step(values(step + 1), rate)
        first.step(values(step + 1), rate)
    state = first.state_dict()
    resumed = [nn.Parameter(parameter.detach().clone()) for parameter in mine]
    first.step(values(9), 1.0)  # the state is a copy
    second = Optimiser(resumed, training)
    second.load_state_dict(state)
    for step, rate in enumerate(RATES[2:], 2):
        expected.step(values(step + 1), rate)
        second.step(values(step + 1), rate)
    assert all(torch.equal(one, other) for one, other in zip(resumed, whole, strict=True))
    ends = (expected.state_dict(), second.state_dict())
    assert ends[0]["steps"] == ends[1]["steps"] == len(RATES)
    assert ends[0]["moments"].keys() == ends[1]["moments"].keys()
    assert all(torch.equal(ends[0]["moments"][name], ends[1]["moments"][name]) for name in ends[0]["moments"])


def scheduled(make: Any, epochs: int, rate: float) -> list[float]:
    """The learning rates of all epochs under one of PyTorch's schedulers."""
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=rate)
    scheduler = make(optimiser)
    rates = []
    for _ in range(epochs):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    return rates


@given(
    epochs=st.integers(1, 40),
    milestones=st.lists(st.integers(1, 45), max_size=4),
    decay=st.floats(0.01, 1.0),
    rate=st.floats(1e-4, 1.0),
)
def test_milestones(epochs: int, milestones: list[int], decay: float, rate: float) -> None:
    training = Training(epochs, 1, rate, milestones=tuple(milestones), decay=decay)
    expected = scheduled(lambda each: torch.optim.lr_scheduler.MultiStepLR(each, milestones, decay), epochs, rate)
    assert np.allclose([training.rate(epoch) for epoch in range(epochs)], expected, rtol=1e-9, atol=0)


@given(epochs=st.integers(1, 60), rate=st.floats(1e-4, 1.0))
def test_cosine_annealing(epochs: int, rate: float) -> None:
    training = Training(epochs, 1, rate, cosine=True)
    expected = scheduled(lambda each: torch.optim.lr_scheduler.CosineAnnealingLR(each, epochs), epochs, rate)
    assert np.allclose([training.rate(epoch) for epoch in range(epochs)], expected, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("warmup", [1, 4, 9])
def test_warm_up(warmup: int) -> None:
    """Linear from a thousandth of the rate, which is reached when the warm-up is over."""
    training = Training(12, 1, 0.2, warmup_epochs=warmup)
    expected = scheduled(
        lambda each: torch.optim.lr_scheduler.LinearLR(each, start_factor=1e-3, total_iters=warmup), 12, 0.2
    )
    assert np.allclose([training.rate(epoch) for epoch in range(12)], expected, rtol=1e-9)
    assert training.rate(0) == pytest.approx(2e-4) and training.rate(warmup) == 0.2


@given(samples=st.integers(1, 70), size=st.integers(1, 20))
def test_every_sample_exactly_once(samples: int, size: int) -> None:
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(samples))
    batches = Training(1, size, 0.1).batches(order)
    assert torch.equal(torch.cat(batches), order)
    full, rest = divmod(samples, size)
    if rest == 1 and full:
        expected = [size] * (full - 1) + [size + 1]
    elif size == 1 and samples > 1:
        expected = [1] * (samples - 2) + [2]
    else:
        expected = [size] * full + [rest] * (rest > 0)
    assert [len(batch) for batch in batches] == expected


@given(samples=st.integers(1, 70), size=st.integers(2, 20))
def test_a_last_batch_that_is_not_full_can_be_left_out(samples: int, size: int) -> None:
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(samples))
    batches = Training(1, size, 0.1, drop_last=True).batches(order)
    if samples < size:
        assert [batch.tolist() for batch in batches] == [order.tolist()], "a task that is smaller than a batch stays"
    else:
        assert [len(batch) for batch in batches] == [size] * (samples // size)
        assert torch.equal(torch.cat(batches), order[: samples // size * size])


def test_every_epoch_has_an_order_of_its_own(make_method: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.tile(np.arange(40, dtype=np.uint8)[:, None, None, None], (1, 8, 8, 3))  # each says which it is
    method, seen = make_method("finetune", epochs=3), []
    inputs = method.inputs

    def watched(pixels: Tensor, *, augmented: bool) -> Tensor:
        seen.extend(pixels[:, 0, 0, 0].tolist())
        return inputs(pixels, augmented=augmented)

    monkeypatch.setattr(method, "inputs", watched)
    method.learn(Task(images, np.arange(40) % 2))
    orders = [seen[start : start + 40] for start in range(0, 120, 40)]
    assert len(seen) == 120 and len(set(map(tuple, orders))) == 3
    assert all(sorted(order) == list(range(40)) for order in orders)
