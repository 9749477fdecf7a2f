"""IL2A: mixtures as classes of their own, logits of spread means against loops, and rows that last for one task."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from circle.baselines import il2a
from circle.baselines.il2a import IL2A, IL2AConfig, spread_logits
from circle.baselines.optimisers import Optimiser, Training
from circle.baselines.trainer import TaskData
from circle.benchmark.results import same_state
from circle.errors import CircleError
from circle.method import Step, Task

pytestmark = pytest.mark.usefixtures("one_thread")

MakeMethod = Callable[..., Any]
# A single batch of each task as it is, and weights that do not hide one another.
WHOLE = {
    "batch_size": 100,
    "augmentations": (),
    "learning_rate": 0.003,
    "softmax_temperature": 0.5,
    "feature_distillation_weight": 0.3,
    "prototype_weight": 0.7,
    "covariance_ratio": 1.3,
}


def task_of(*labels: int, each: int = 6) -> Task:
    """Noise around a colour for each label."""
    random = np.random.default_rng(labels)
    targets = random.permutation(np.repeat(labels, each))
    colours = np.random.default_rng(0).integers(40, 216, (10, 1, 1, 3))[targets]
    images = np.clip(colours + random.normal(0, 40, (len(targets), 8, 8, 3)), 0, 255)
    return Task(images.astype(np.uint8), targets)


def inputs(task: Task) -> Tensor:
    return (torch.from_numpy(np.asarray(task.images)).permute(0, 3, 1, 2).double() / 255 - 0.5) / 0.25


def features_of(network: Any, images: Tensor) -> Tensor:
    """f(x) in evaluation mode and double precision."""
    with torch.no_grad():
        return copy.deepcopy(network).double().eval()(images.double())


def plain_entropy(logits: Tensor, labels: list[int]) -> Tensor:
    """- mean_i log softmax(z_i)[y_i], one row after the other."""
    return torch.stack([torch.exp(z).sum().log() - z[label] for z, label in zip(logits, labels, strict=True)]).mean()


def looped_logits(weight: Tensor, bias: Tensor, mean: Tensor, covariance: Tensor, c: int, ratio: float) -> Tensor:
    """z~_j = w_j . mu_c + b_j + (ratio / 2) (w_j - w_c)^T S_c (w_j - w_c) for one class c, output by output."""
    values = []
    for w, b in zip(weight, bias, strict=True):
        away = w - weight[c]
        values.append(w @ mean + b + ratio / 2 * (away @ covariance @ away))
    return torch.stack(values)


def near(found: Any, expected: Tensor, precision: float = 1e-4) -> bool:
    """Whether arrays agree up to this share of the largest value; the empty ones do."""
    found, wanted = np.asarray(found), expected.detach().numpy()
    return np.allclose(found, wanted, rtol=precision, atol=precision * np.abs(wanted).max(initial=0.0))


def watch(method: IL2A, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a method does from now on: network, head and extra at starts and after steps, mixtures, draws, gradients."""
    seen = SimpleNamespace(starts=[], steps=[], after=[], mixed=[], drawn=[], gradients=[])
    begin, old_classes, mixed_pairs, move = method.begin, method.old_classes, il2a.mixed_pairs, Optimiser.step

    def keep_start(data: TaskData) -> None:
        begin(data)
        seen.starts.append(copy.deepcopy((method.network, method.head, method.extra)))

    def keep_mixtures(images: Tensor, *given_values: Any) -> Any:
        made = mixed_pairs(images, *given_values)
        seen.mixed.append((images, *made))
        return made

    def keep_drawn(count: int, data: TaskData) -> Tensor:
        seen.drawn.append(old_classes(count, data))
        return seen.drawn[-1]

    def keep_gradients(self: Optimiser, gradients: list[Tensor], rate: float) -> None:
        seen.gradients.append([each.double().numpy().copy() for each in gradients])
        move(self, gradients, rate)

    def keep_step(step: Step) -> None:
        seen.steps.append(step)
        seen.after.append(copy.deepcopy((method.network, method.head, method.extra)))

    monkeypatch.setattr(method, "begin", keep_start)
    monkeypatch.setattr(method, "old_classes", keep_drawn)
    monkeypatch.setattr(il2a, "mixed_pairs", keep_mixtures)
    monkeypatch.setattr(Optimiser, "step", keep_gradients)
    method.on_step = keep_step
    return seen


@given(
    classes=st.integers(1, 5), size=st.integers(1, 4), ratio=st.sampled_from([0.0, 1.0, 2.5]), seed=st.integers(0, 99)
)
def test_spread_logits_and_their_gradient(classes: int, size: int, ratio: float, seed: int) -> None:
    """Gradients go through the row of every output and through that of the class itself."""
    random = np.random.default_rng(seed)
    drawn = random.permutation(classes)[: random.integers(1, classes + 1)]
    root = torch.from_numpy(random.normal(size=(len(drawn), size, size)))
    covariances, means = root @ root.transpose(1, 2), torch.from_numpy(random.normal(size=(len(drawn), size)))
    weight = torch.from_numpy(random.normal(size=(classes, size))).requires_grad_()
    bias = torch.from_numpy(random.normal(size=classes)).requires_grad_()
    found = spread_logits(weight, bias, means, covariances, torch.from_numpy(drawn), ratio)
    plain = torch.stack(
        [looped_logits(weight, bias, means[u], covariances[u], int(c), ratio) for u, c in enumerate(drawn)]
    )
    assert torch.allclose(found, plain, rtol=1e-10, atol=1e-12)
    upstream = torch.from_numpy(random.normal(size=found.shape))
    mine, theirs = (torch.autograd.grad((each * upstream).sum(), [weight, bias]) for each in (plain, found))
    assert all(torch.allclose(one, other, rtol=1e-9, atol=1e-11) for one, other in zip(mine, theirs, strict=True))


def test_spread_logits_bound_what_draws_cost() -> None:
    """log sum_j exp(z~_j - z~_c) is the logarithm of what exp(...) is on average for features of N(mu_c, ratio S_c)."""
    generator = torch.Generator().manual_seed(0)
    weight, bias, mean = (torch.randn(shape, generator=generator).double() for shape in ((3, 2), (3,), (1, 2)))
    root = 0.3 * torch.randn(2, 2, generator=generator).double()
    spread = spread_logits(weight, bias, mean, (root @ root.T)[None], torch.tensor([1]), 2.5)[0]
    drawn = mean + 2.5**0.5 * torch.randn(400_000, 2, generator=generator).double() @ root.T
    logits = drawn @ weight.T + bias
    average = torch.exp(logits - logits[:, 1:2]).mean(0)
    assert torch.allclose(torch.exp(spread - spread[1]), average, rtol=0.02)


@pytest.mark.parametrize("groups", [((0, 1, 2),), ((0, 1), (2, 3, 4)), ((0, 1), (1, 2, 3)), ((0,), (1,))])
def test_the_first_step_of_a_task(
    groups: tuple[tuple[int, ...], ...], make_method: MakeMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All terms and gradients, mixture by mixture and draw by draw: of the first task, a later one, known classes."""
    *before, task = [task_of(*group) for group in groups]
    method: IL2A = make_method("il2a", epochs=1, **WHOLE)
    for each in before:
        method.learn(each)
    means, kept = method.bank.means.clone(), method.covariances().double()
    seen = watch(method, monkeypatch)
    method.learn(task)
    network, head, extra = seen.starts[0]
    images, mixed, targets, pairs, shares = seen.mixed[0]
    samples = [int((inputs(task) - image.double()).abs().sum((1, 2, 3)).argmin()) for image in images]
    assert sorted(samples) == list(range(len(task.labels)))
    labels, present, total = task.labels[samples].tolist(), sorted(groups[-1]), len(method.classes)
    assert method.classes == tuple(range(total))
    mixtures = []
    for (i, j), share in zip(pairs.tolist(), shares.double(), strict=True):
        mixtures.append(share * images[i].double() + (1 - share) * images[j].double())
        a, b = sorted((present.index(labels[i]), present.index(labels[j])))
        labels.append(total + b * (b - 1) // 2 + a)
    assert labels[len(images) :] == targets.tolist() and (len(mixtures) > 0) == (len(present) > 1)
    assert all(torch.allclose(one, other.float(), atol=1e-5) for one, other in zip(mixed, mixtures, strict=True))
    # In the same precision, as a rectifier near zero may come out otherwise; what follows it is in a higher one.
    whole, former = torch.cat([images, mixed]), copy.deepcopy(network).eval()
    features, old_features = network.train()(whole).double(), former(whole).detach().double()
    weight, bias = head.weight.double(), head.bias.double()
    pair_weight, pair_bias = (each.double() for each in extra["pairs"].parameters())
    logits = torch.cat([features @ weight.T + bias, features @ pair_weight.T + pair_bias], 1) / 0.5
    assert logits.shape[1] == total + len(present) * (len(present) - 1) // 2
    terms = {"cross entropy": plain_entropy(logits, labels)}
    if before:
        terms["distillation"] = 0.3 * (features - old_features).square().sum().sqrt()
        drawn = seen.drawn[0].tolist()
        assert len(drawn) == len(images) and set(drawn) == set(range(len(groups[0])))
        spread = [looped_logits(weight, bias, means[c], kept[c], c, 1.3) / 0.5 for c in drawn]
        terms["prototypes"] = 0.7 * plain_entropy(torch.stack(spread), drawn)
    assert {name: pytest.approx(float(term.detach()), rel=1e-4) for name, term in terms.items()} == seen.steps[0].losses
    parameters = [*network.parameters(), head.weight, head.bias, *extra["pairs"].parameters()]
    gradients = torch.autograd.grad(torch.stack(list(terms.values())).sum(), parameters)
    assert all(near(theirs, mine) for mine, theirs in zip(gradients, seen.gradients[0], strict=True))


def test_pair_rows_last_for_one_task(make_method: MakeMethod, monkeypatch: pytest.MonkeyPatch) -> None:
    method: IL2A = make_method("il2a", epochs=1, **WHOLE)
    seen = watch(method, monkeypatch)
    classes, all_rows = 0, []
    for group in ((0, 1, 2), (3, 4, 5), (6, 7)):
        number = len(group) * (len(group) - 1) // 2
        method.learn(task_of(*group))
        classes += len(group)
        start, end = (parts[-1][2]["pairs"] for parts in (seen.starts, seen.after))
        assert start.weight.shape == (number, 32) and not start.bias.any()
        assert bool((end.weight != start.weight).all()) and bool(end.bias.all()), "they are learned"
        all_rows += [*start.weight.tolist(), *end.weight.tolist()]
        state = method.state_dict()
        assert "pending" not in state and not len(method.extra)
        assert state["head"]["weight"].shape == (classes, 32) and state["head"]["bias"].shape == (classes,)
    assert len({tuple(row) for row in all_rows}) == len(all_rows) == 14, "and made anew"


def test_one_class_per_task(make_method: MakeMethod, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pairs; the first task has nothing to learn, and later ones learn from the classes before."""
    method: IL2A = make_method("il2a", epochs=1, **WHOLE)
    seen = watch(method, monkeypatch)
    for label in (0, 1, 2):
        method.learn(task_of(label))
        assert seen.starts[-1][2]["pairs"].weight.shape == (0, 32)
    assert seen.steps[0].losses == {"cross entropy": 0.0}
    assert not any(gradient.any() for gradient in seen.gradients[0])
    for step in seen.steps[1:]:
        assert step.losses.keys() == {"cross entropy", "distillation", "prototypes"} and min(step.losses.values()) > 0


def test_scores_and_statistics(make_method: MakeMethod) -> None:
    """Logits of all classes so far, without temperature; means and covariances of plain images, which then stay."""
    method: IL2A = make_method("il2a", batch_size=16, learning_rate=0.003)
    tasks = [task_of(0, 1), task_of(2, 3), task_of(4, each=1)]
    for number, task in enumerate(tasks, 1):
        before = [(method.bank.counts[column], mean.clone()) for column, mean in enumerate(method.bank.means)]
        covariances = [method.bank.covariance(column).clone() for column in range(len(before))]
        method.learn(task)
        for column, (count, mean) in enumerate(before):
            assert method.bank.counts[column] == count and torch.equal(method.bank.means[column], mean)
            assert torch.equal(method.bank.covariance(column), covariances[column])
        features = features_of(method.network, inputs(task))
        weight, bias = (method.head.state_dict()[name].double() for name in ("weight", "bias"))
        scores = method.scores(task.images)
        assert scores.shape == (len(task.labels), min(2 * number, 5)) and near(scores, features @ weight.T + bias)
        for column in set(task.labels.tolist()):
            own = features.numpy()[task.labels == column]
            covariance = np.cov(own, rowvar=False) if len(own) > 1 else np.zeros((32, 32))
            assert method.bank.counts[column] == len(own)
            assert np.allclose(method.bank.means[column], own.mean(0), atol=1e-5)
            assert np.allclose(method.bank.covariance(column), covariance, rtol=1e-4, atol=1e-6)


def test_taken_up_again_after_any_step_of_the_second_task(make_method: MakeMethod) -> None:
    settings = {"network": "convnet", "width": 1, "batch_size": 5, "learning_rate": 0.003}
    first, second = task_of(0, 1), task_of(2, 3, 4)
    method: IL2A = make_method("il2a", **settings)
    method.learn(first)
    states: list[dict[str, Any]] = []
    method.on_step = lambda step: states.append(copy.deepcopy(method.state_dict()))
    method.learn(second)
    assert len(states) == 8 and all("pairs.weight" in state["pending"]["extra"] for state in states)
    for state in states:
        resumed: IL2A = make_method("il2a", **settings)
        resumed.load_state_dict(state)
        resumed.learn(second)
        assert same_state(resumed.state_dict(), method.state_dict())


def test_schedule_and_settings() -> None:
    """Adam with coupled decay, at a rate that falls every so many epochs."""
    config = IL2AConfig()
    expected = Training(101, 64, 1e-3, optimiser="adam", weight_decay=2e-4, milestones=(45, 90), decay=0.1)
    assert IL2A(config).training() == expected
    weights = (config.feature_distillation_weight, config.prototype_weight)
    assert (*weights, config.covariance_ratio, config.softmax_temperature) == (10.0, 10.0, 2.5, 0.1)
    faster = IL2A(config.replace(epochs=7, learning_rate_step=3, learning_rate_decay=0.5)).training()
    assert [faster.rate(epoch) / 1e-3 for epoch in range(7)] == pytest.approx([1, 1, 1, 0.5, 0.5, 0.5, 0.25])
    for name, value in (("covariance_ratio", -0.1), ("softmax_temperature", 0.0), ("prototype_weight", -1.0)):
        with pytest.raises(CircleError, match=rf"il2a\.{name} = "):
            config.replace(**{name: value})
