"""What every registered head promises."""

from __future__ import annotations

import pytest
import torch

from circle.heads import Head, build_head
from circle.registry import entry, list_heads
from circle.statistics import Statistics


@pytest.fixture(params=list_heads())
def head(request: pytest.FixtureRequest) -> Head:
    return build_head(entry("head", request.param).config())


def statistics_of(labels: list[str], seed: int = 0) -> tuple[Statistics, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centres = {
        label: 60 * (torch.rand(12, generator=torch.Generator().manual_seed(ord(label))) - 0.5) for label in "abcd"
    }
    noise = 8 * torch.randn(len(labels), 12, generator=generator)
    values = (torch.stack([centres[label] for label in labels]) + noise).round().clamp(-127, 127).to(torch.int8)
    statistics = Statistics(12)
    statistics.update(values, labels)
    return statistics, values


def test_learns(head: Head) -> None:
    statistics, values = statistics_of(["a", "b", "c"] * 30)
    chosen = head.materialise(statistics)(values).argmax(1)
    assert float((chosen == torch.tensor([0, 1, 2] * 30)).float().mean()) > 0.9


def test_knows_only_observed_classes(head: Head) -> None:
    statistics, values = statistics_of(["a", "b"] * 10)
    assert head.materialise(statistics)(values).shape == (20, 2)
    more, _ = statistics_of(["d"] * 5, seed=1)
    assert head.materialise(statistics + more)(values).shape == (20, 3)


def test_is_a_pure_function_of_the_statistics(head: Head) -> None:
    labels = ["a", "b", "c", "d"] * 12
    statistics, values = statistics_of(labels)
    before = statistics.copy()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    shuffled = Statistics(12)
    shuffled.update(values[order], [labels[index] for index in order])
    first, second = head.materialise(statistics), head.materialise(shuffled)
    assert torch.equal(first(values), second(values))
    assert statistics == before


@pytest.mark.parametrize("labels", [["a"], ["a", "b"], ["a", "b", "b"], ["a"] * 9])
def test_few_samples_give_finite_scores(head: Head, labels: list[str]) -> None:
    statistics, values = statistics_of(labels)
    assert bool(torch.isfinite(head.materialise(statistics)(values)).all())
