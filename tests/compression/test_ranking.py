"""The closed form of what a part is worth against solving again without it."""

from __future__ import annotations

import pytest
import torch

from circle.compression.ranking import Separation, dropping_order
from circle.heads.covariance import class_means, pooled_covariance
from circle.heads.slda import SLDAConfig
from circle.statistics import Statistics

CONFIG = SLDAConfig(ridge=0.1, ridge_rule="absolute")


def learned(informative: list[int], size: int = 12) -> Statistics:
    """Three classes whose means differ in some columns; neighbours are correlated."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(240) % 3
    features = torch.randn(240, size, generator=generator) * 10
    features[:, 1:] += 0.5 * features[:, :-1]
    means = torch.zeros(3, size)
    means[:, informative] = torch.randn(3, len(informative), generator=generator) * 8
    statistics = Statistics(size)
    statistics.update((features + means[labels]).round().to(torch.int8), labels.tolist())
    return statistics


def separation(statistics: Statistics) -> float:
    """tr(S^{-1} B), by the book."""
    means = class_means(statistics)
    covariance = pooled_covariance(statistics, means)
    covariance.diagonal().add_(0.1)
    shares = statistics.counts.double() / statistics.samples
    centred = means - shares @ means
    return float((torch.linalg.solve(covariance, (centred * shares[:, None]).T) * centred.T).sum())


def test_cost_is_the_loss_of_solving_again() -> None:
    statistics = learned([2, 3, 7])
    state, left = Separation(statistics, CONFIG), torch.arange(12)
    for columns in (torch.tensor([0, 5]), torch.tensor([3]), torch.tensor([7, 8, 9])):
        before = separation(statistics.select(left))
        left = left[~torch.isin(left, columns)]
        assert state.cost(columns) == pytest.approx(before - separation(statistics.select(left)), rel=1e-6, abs=1e-9)
        state.give_up(columns)


def test_parts_that_tell_nothing_go_first() -> None:
    parts = {"first": torch.arange(0, 4), "second": torch.arange(4, 8), "third": torch.arange(8, 12)}
    assert dropping_order([learned([5, 6])], [parts], CONFIG)[0] != "second"
    order = dropping_order([learned([5, 6])], [parts], CONFIG)
    assert sorted(order) == ["first", "third"]


def test_the_last_part_of_every_group_stays() -> None:
    first = {("a", index): torch.tensor([2 * index, 2 * index + 1]) for index in range(6)}
    second = {("b", 0): torch.arange(12)}
    order = dropping_order([learned([2]), learned([4])], [first, second], CONFIG)
    assert len(order) == 5
    assert ("b", 0) not in order
