"""AdaGauss: losses, gradients and steps against plain formulas; what is trained when. The rest: test_adagauss.py."""

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
from torch import Tensor, nn

from circle.baselines.adagauss import AdaGauss, AdaGaussConfig, FeatureMap, collapse
from circle.baselines.optimisers import Training
from circle.baselines.trainer import TaskData
from circle.benchmark.results import same_state
from circle.method import Step, Task, TaskImages

pytestmark = pytest.mark.usefixtures("one_thread")

MakeTasks = Callable[..., list[Task]]
MakeAdaGauss = Callable[..., AdaGauss]


class LeftError(Exception):
    """Ends learning after a step."""


@pytest.fixture
def make(make_method: Callable[..., Any]) -> MakeAdaGauss:
    """A method with features of five values, one epoch, one batch for the whole task, and images as they are."""

    def make(**changes: Any) -> AdaGauss:
        small = {"epochs": 1, "batch_size": 400, "feature_size": 5, "multiplier": 3, "draws": 40, "augmentations": ()}
        return make_method("adagauss", **{**small, **changes})

    return make


def inputs(images: TaskImages) -> Tensor:
    return (torch.from_numpy(np.ascontiguousarray(np.asarray(images))).permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25


def kept_at_the_start(method: AdaGauss, monkeypatch: pytest.MonkeyPatch) -> dict[str, nn.Module]:
    """Fills with copies of the network ("now") and the task's own modules, as a task finds them."""
    kept: dict[str, nn.Module] = {}

    def keep(_: TaskData) -> None:
        kept.update({"now": copy.deepcopy(method.network), **copy.deepcopy(dict(method.extra.items()))})

    monkeypatch.setattr(method, "begin", keep)
    return kept


def kept_after_each_step(method: AdaGauss) -> list[tuple[Step, dict[str, nn.Module]]]:
    kept = []

    def keep(step: Step) -> None:
        kept.append((step, {"now": copy.deepcopy(method.network), **copy.deepcopy(dict(method.extra.items()))}))

    method.on_step = keep
    return kept


# The term against collapse.


def written_out(values: np.ndarray, limit: float, jitter: float = 0.0) -> float:
    """-(1/s) sum_j min(L_jj, beta) of the covariance with ``jitter`` on its diagonal."""
    count, size = values.shape
    centred = values - values.mean(0)
    covariance = centred.T @ centred / (count - 1) + jitter * np.eye(size)
    lower = np.linalg.cholesky(covariance)
    return -sum(min(lower[j, j], limit) for j in range(size)) / size


def slopes(function: Callable[[np.ndarray], float], values: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """The gradient by differences."""
    result = np.zeros_like(values)
    for place in np.ndindex(values.shape):
        moved = [values.copy(), values.copy()]
        moved[0][place] += step
        moved[1][place] -= step
        result[place] = (function(moved[0]) - function(moved[1])) / (2 * step)
    return result


@given(size=st.integers(1, 5), more=st.integers(2, 8), limit=st.sampled_from([0.3, 1.0, 9.0]), seed=st.integers(0, 99))
def test_collapse_and_its_gradient(size: int, more: int, limit: float, seed: int) -> None:
    values = np.random.default_rng(seed).normal(3.0, 1.0, size=(size + more, size))
    features = torch.tensor(values, requires_grad=True)
    term, mended = collapse(features, limit)
    assert not mended
    assert float(term.detach()) == pytest.approx(written_out(values, limit), rel=1e-9)
    (gradient,) = torch.autograd.grad(term, features)
    expected = slopes(lambda each: written_out(each, limit), values)
    assert np.allclose(gradient.numpy(), expected, atol=1e-4 * max(1.0, np.abs(expected).max()))
    single, _ = collapse(torch.tensor(values, dtype=torch.float32), limit)
    assert single.dtype == torch.float32 and float(single) == pytest.approx(float(term.detach()), rel=1e-4)


def test_collapse_falls_as_values_spread_out() -> None:
    values = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    terms = [float(collapse(scale * values, 1.0)[0]) for scale in (1e-3, 0.1, 0.5, 10.0)]
    assert terms == sorted(terms, reverse=True) and -2e-3 < terms[0] < 0
    assert terms[-1] == -1.0, "no more is asked for"


@pytest.mark.parametrize(("count", "size"), [(2, 3), (4, 4), (5, 8), (16, 16), (63, 64), (64, 64)])
def test_batches_of_no_more_samples_than_values(count: int, size: int) -> None:
    """A millionth of the mean variance is added, however rounding turns out."""
    for seed in range(4):
        values = np.random.default_rng(seed).normal(size=(count, size))
        jitter = 1e-6 * values.var(0, ddof=1).mean()
        features = torch.tensor(values, requires_grad=True)
        term, mended = collapse(features, 9.0)
        assert mended
        assert float(term.detach()) == pytest.approx(written_out(values, 9.0, jitter), rel=1e-6)
        (gradient,) = torch.autograd.grad(term, features)
        assert bool(gradient.isfinite().all())
        if size < 10:
            expected = slopes(lambda each, jitter=jitter: written_out(each, 9.0, jitter), values, 1e-7)
            assert np.allclose(gradient.numpy(), expected, atol=1e-3 * np.abs(expected).max())


def test_values_that_do_not_vary_or_are_not_finite() -> None:
    """Nothing to factorise; two equal values; and a loss that the trainer notices."""
    equal = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    equal[:, 2] = equal[:, 0]
    for features in (torch.ones(1, 3), torch.ones(9, 3), equal):
        features.requires_grad_()
        term, mended = collapse(features, 1.0)
        (gradient,) = torch.autograd.grad(term, features)
        assert mended and bool(term.isfinite()) and bool(gradient.isfinite().all())
    for wrong in (math.nan, math.inf):
        term, _ = collapse(torch.tensor([[1.0, 2.0], [wrong, 3.0], [0.0, 1.0]]), 1.0)
        assert not bool(term.isfinite())


# One step, in the first task and in a later one.


def plain_terms(parts: dict[str, nn.Module], images: Tensor, labels: Tensor, config: AdaGaussConfig) -> dict[str, Any]:
    """The three terms, as METHODS.md has them."""
    features = parts["now"].train()(images)
    powers = torch.exp(parts["head"](features).double())
    chances = powers[torch.arange(len(labels)), labels] / powers.sum(1)
    centred = features.double() - features.double().mean(0)
    lower = torch.linalg.cholesky(centred.T @ centred / (len(images) - 1))
    kept = [torch.minimum(each, torch.tensor(config.spread_limit)) for each in lower.diagonal()]
    terms = {"cross entropy": -chances.log().mean(), "collapse": -config.spread_weight * sum(kept) / len(kept)}
    if "network" in parts:
        with torch.no_grad():
            before = parts["network"].eval()(images)
        away = (parts["distiller"](features) - before).double()
        terms["distillation"] = config.distillation_weight * (away**2).sum() / away.numel()
    return terms


def check_step(
    before: list[nn.Module], after: list[nn.Module], loss: Tensor, rate: float, decay: float, clipped: bool
) -> None:
    """w - rate (g / max(1, |g|) + decay w), one norm for the weights of all modules together."""
    weights = [parameter for module in before for parameter in module.parameters()]
    gradients = torch.autograd.grad(loss, weights)
    norm = math.sqrt(sum(float((gradient.double() ** 2).sum()) for gradient in gradients))
    assert (norm > 1.0) == clipped
    moved = [parameter for module in after for parameter in module.parameters()]
    largest = max(float(gradient.abs().max()) for gradient in gradients) / max(1.0, norm)
    for weight, gradient, now in zip(weights, gradients, moved, strict=True):
        expected = gradient / max(1.0, norm) + decay * weight
        assert torch.allclose((weight - now) / rate, expected, atol=2e-3 * largest)


def test_the_first_step(make: MakeAdaGauss, make_tasks: MakeTasks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Class y, turned k times, is output y + k C of 4 C; three classes, so that 4 y + k would be another."""
    task = make_tasks(((0, 1, 3),), count=40)[0]
    method = make(spread_weight=0.7, spread_limit=0.4, weight_decay=0.02)
    kept, after = kept_at_the_start(method, monkeypatch), kept_after_each_step(method)
    method.learn(task)
    assert set(kept) == {"now", "head"} and [step.stage for step, _ in after] == ["train"]
    local = [[0, 1, 3].index(label) for label in task.labels]
    turned = np.concatenate([np.rot90(task.images, turns, (1, 2)) for turns in range(4)])
    labels = torch.tensor([y + k * 3 for k in range(4) for y in local])
    terms = plain_terms(kept, inputs(turned), labels, method.config)
    assert after[0][0].losses == pytest.approx({name: term.item() for name, term in terms.items()}, rel=1e-4)
    now = after[0][1]
    loss = torch.stack(list(terms.values())).sum()
    check_step([kept["now"], kept["head"]], [now["now"], now["head"]], loss, 0.05, 0.02, clipped=True)


def test_a_later_step(make: MakeAdaGauss, make_tasks: MakeTasks, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = make_tasks(((0, 1), (3, 2, 1)), count=60)
    method = make(distillation_weight=1.7, spread_weight=0.7, spread_limit=0.4, weight_decay=0.02)
    method.learn(first)
    kept, after = kept_at_the_start(method, monkeypatch), kept_after_each_step(method)
    method.learn(second)
    labels = torch.tensor([[1, 2, 3].index(label) for label in second.labels])
    terms = plain_terms(kept, inputs(second.images), labels, method.config)
    step, now = after[0]
    assert step.stage == "train" and now["head"].state_dict()["weight"].shape == (3, 5)
    assert step.losses == pytest.approx({name: term.item() for name, term in terms.items()}, rel=1e-4)
    parts = ("now", "head", "distiller")
    loss = torch.stack(list(terms.values())).sum()
    # A tenth of the first task's rate.
    check_step([kept[name] for name in parts], [now[name] for name in parts], loss, 0.005, 0.02, clipped=True)
    assert same_state(kept["adapter"].state_dict(), now["adapter"].state_dict())


def test_the_first_step_of_the_adapter(
    make: MakeAdaGauss, make_tasks: MakeTasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From f_old to f, both in evaluation mode."""
    first, second = make_tasks()
    method = make(spread_weight=0.7, spread_limit=0.1, weight_decay=0.02, adapter_learning_rate=0.3)
    method.learn(first)
    kept, after = kept_at_the_start(method, monkeypatch), kept_after_each_step(method)
    method.learn(second)
    assert [step.stage for step, _ in after] == ["train", "adapter"]
    step, now = after[1]
    assert same_state(now["now"].state_dict(), after[0][1]["now"].state_dict()), "the network stands still"
    with torch.no_grad():
        before, target = (each.eval()(inputs(second.images)) for each in (kept["network"], now["now"]))
    assert float((before - target).abs().max()) > 0.1
    mapped = kept["adapter"](before).double()
    centred = mapped - mapped.mean(0)
    lower = torch.linalg.cholesky(centred.T @ centred / (len(mapped) - 1)).diagonal()
    terms = {
        "adapter": ((mapped - target) ** 2).sum() / mapped.numel(),
        "collapse": -0.7 * torch.stack([torch.minimum(each, torch.tensor(0.1)) for each in lower]).sum() / 5,
    }
    assert step.losses == pytest.approx({name: term.item() for name, term in terms.items()}, rel=1e-4)
    loss = terms["adapter"] + terms["collapse"]
    check_step([kept["adapter"]], [now["adapter"]], loss, 0.3, 0.02, clipped=False)


@pytest.mark.parametrize("turned", [True, False])
def test_batches_count_turned_copies_and_are_full(make: MakeAdaGauss, make_tasks: MakeTasks, turned: bool) -> None:
    first, second = make_tasks(count=89)
    method, after = make(batch_size=16, turned=turned), []
    method.on_step = lambda step: after.append(
        (step.task, step.stage, len(method.extra["head"].state_dict()["weight"]))
    )
    assert len(first.images) % 4 and len(first.images) % 16 and len(second.images) % 16
    for task in (first, second):
        method.learn(task)
    steps = len(second.images) // 16
    assert after == [
        *[(1, "train", 8 if turned else 2)] * (len(first.images) // (4 if turned else 16)),
        *[(2, "train", 2)] * steps,
        *[(2, "adapter", 2)] * steps,
    ]


# What is trained, when, and how fast.


def test_schedules(make: MakeAdaGauss, make_tasks: MakeTasks, monkeypatch: pytest.MonkeyPatch) -> None:
    method = make(epochs=300, batch_size=48, learning_rate=0.2, adapter_learning_rate=0.03, weight_decay=0.01)
    fits: list[tuple[Training, list[str]]] = []

    def note(_: Any, samples: int, parameters: list[nn.Parameter], training: Training) -> None:
        modules = {"now": method.network, **dict(method.extra.items())}
        owners = {id(each): name for name, module in modules.items() for each in module.parameters()}
        found = [owners[id(each)] for each in parameters]
        for name in set(found):
            assert found.count(name) == len(list(modules[name].parameters())), "all of a module's weights"
        assert samples == len(task.images)
        fits.append((training, sorted(set(found))))

    monkeypatch.setattr(method, "fit", note)
    for task in make_tasks():
        method.learn(task)
    assert [names for _, names in fits] == [
        *(["head"], ["head", "now"]),
        *(["distiller", "head"], ["distiller", "head", "now"], ["adapter"]),
    ]
    for training, _ in fits:
        assert (training.momentum, training.weight_decay, training.clip) == (0.9, 0.01, 1.0)
        assert training.drop_last and training.optimiser == "sgd"
    assert [training.epochs for training, _ in fits] == [3, 297, 3, 297, 150], "3 = 1 % of 300"
    assert [training.batch_size for training, _ in fits] == [12, 12, 48, 48, 48]
    for task_fits, rate in ((fits[:2], 0.2), (fits[2:4], 0.02)):
        rates = [training.rate(epoch) for training, _ in task_fits for epoch in range(training.epochs)]
        # Epochs of both stages counted together: it falls at 90, 180 and 270.
        assert np.allclose(rates, rate * np.repeat([1.0, 0.1, 1e-2, 1e-3], [90, 90, 90, 30]), rtol=1e-9)
    rates = [fits[4][0].rate(epoch) for epoch in range(150)]
    assert np.allclose(rates, 0.03 * np.repeat([1.0, 0.1, 1e-2, 1e-3], [30, 30, 30, 60]), rtol=1e-9)


def test_warm_up_is_a_hundredth_rounded_down() -> None:
    for epochs, expected in ((1, 0), (99, 0), (100, 1), (199, 1), (200, 2)):
        assert AdaGauss(AdaGaussConfig(epochs=epochs)).warmup_epochs == expected


@pytest.mark.parametrize("later", [False, True])
def test_the_head_learns_alone_at_first(make: MakeAdaGauss, make_tasks: MakeTasks, later: bool) -> None:
    tasks, method = make_tasks(), make()
    for task in tasks[: int(later)]:
        method.learn(task)
    method.config = method.config.replace(epochs=200, initial_epochs=200)
    after = kept_after_each_step(method)
    keep = method.on_step

    def leave(step: Step) -> None:
        assert keep is not None
        keep(step)
        if step.stage == "train":
            raise LeftError

    method.on_step = leave
    with pytest.raises(LeftError):
        method.learn(tasks[int(later)])
    terms = {"cross entropy", "distillation"} if later else {"cross entropy"}
    assert [(step.stage, set(step.losses) - {"collapse"}) for step, _ in after] == [
        *[("warm-up", terms)] * 2,
        ("train", terms),
    ]
    assert ["collapse" in step.losses for step, _ in after] == [False, False, True]
    (_, one), (_, two), (_, trained) = after

    def moved(name: str, earlier: dict[str, nn.Module], now: dict[str, nn.Module]) -> bool:
        pairs = zip(earlier[name].parameters(), now[name].parameters(), strict=True)
        return any(not torch.equal(*pair) for pair in pairs)

    for name in one:
        assert moved(name, one, two) == (name in ("head", "distiller"))
        assert moved(name, two, trained) == (name in ("head", "distiller", "now"))
    # Batch norm is in training mode all the while.
    means = [each["now"].state_dict()["network.first.norm.running_mean"] for _, each in after]
    assert not torch.equal(means[0], means[1])


def test_the_map_is_two_linear_layers_with_gelu_between() -> None:
    before = torch.get_rng_state()
    made = FeatureMap(6, torch.Generator().manual_seed(1), multiplier=5)
    assert torch.equal(torch.get_rng_state(), before)
    reference = nn.Sequential(nn.Linear(6, 30), nn.GELU(), nn.Linear(30, 6))
    with torch.no_grad():
        for layer, index in ((reference[0], 0), (reference[2], 1)):
            layer.weight.copy_(made.weights[index])  # pyright: ignore
            layer.bias.copy_(made.biases[index])  # pyright: ignore
    values = torch.randn(9, 6)
    assert torch.allclose(made(values), reference(values), atol=1e-6)
    assert (
        float(made.weights[0].detach().abs().max()) <= 6**-0.5
        and float(made.weights[1].detach().abs().max()) <= 30**-0.5
    )
    assert sum(parameter.numel() for parameter in made.parameters()) == 6 * 30 + 30 + 30 * 6 + 6
