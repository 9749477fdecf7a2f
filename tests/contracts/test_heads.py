"""What every registered head promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from circle import CircleClassifier, Predictor
from circle.heads import Head, build_head
from circle.registry import entry, list_heads
from circle.statistics import Statistics


@pytest.fixture(params=list_heads())
def head(request: pytest.FixtureRequest) -> Head:
    return build_head(entry("head", request.param).config())


def empty(head: Head) -> Statistics:
    """Statistics with what the head needs, and nothing more."""
    return Statistics(12, parts=head.config.parts)


def statistics_of(head: Head, labels: list[str], seed: int = 0) -> tuple[Statistics, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centres = {
        label: 60 * (torch.rand(12, generator=torch.Generator().manual_seed(ord(label))) - 0.5) for label in "abcd"
    }
    noise = 8 * torch.randn(len(labels), 12, generator=generator)
    values = (torch.stack([centres[label] for label in labels]) + noise).round().clamp(-127, 127).to(torch.int8)
    statistics = empty(head)
    statistics.update(values, labels)
    return statistics, values


def test_learns(head: Head) -> None:
    statistics, values = statistics_of(head, ["a", "b", "c"] * 30)
    chosen = head.materialise(statistics)(values).argmax(1)
    assert float((chosen == torch.tensor([0, 1, 2] * 30)).float().mean()) > 0.9


def test_knows_only_observed_classes(head: Head) -> None:
    statistics, values = statistics_of(head, ["a", "b"] * 10)
    assert head.materialise(statistics)(values).shape == (20, 2)
    more, _ = statistics_of(head, ["d"] * 5, seed=1)
    assert head.materialise(statistics + more)(values).shape == (20, 3)


def test_is_a_pure_function_of_the_statistics(head: Head) -> None:
    labels = ["a", "b", "c", "d"] * 12
    statistics, values = statistics_of(head, labels)
    before = statistics.copy()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    shuffled = empty(head)
    shuffled.update(values[order], [labels[index] for index in order])
    first, second = head.materialise(statistics), head.materialise(shuffled)
    assert torch.equal(first(values), second(values))
    assert statistics == before


@pytest.mark.parametrize("labels", [["a"], ["a", "b"], ["a", "b", "b"], ["a"] * 9])
def test_few_samples_give_finite_scores(head: Head, labels: list[str]) -> None:
    statistics, values = statistics_of(head, labels)
    assert bool(torch.isfinite(head.materialise(statistics)(values)).all())


def test_batches_merging_and_resuming_are_exact(head: Head) -> None:
    labels = ["a", "b", "c"] * 20
    statistics, values = statistics_of(head, labels)
    single, left, right = empty(head), empty(head), empty(head)
    for index, label in enumerate(labels):
        single.update(values[index : index + 1], [label])
    left.update(values[:25], labels[:25])
    resumed = Statistics.from_parts(left.classes, left.counts, **left.parts())
    resumed.update(values[25:], labels[25:])
    right.update(values[25:], labels[25:])
    expected = head.materialise(statistics)(values)
    for other in (single, left + right, right + left, resumed):
        assert other == statistics
        assert torch.equal(head.materialise(other)(values), expected)
    assert statistics - right == left


def test_a_removed_class_is_gone(head: Head) -> None:
    statistics, values = statistics_of(head, ["a", "b", "c"] * 20)
    statistics.remove("b")
    scores = head.materialise(statistics)(values)
    assert scores.shape == (60, 2)
    others = torch.tensor([0, 2] * 20) + torch.arange(0, 60, 3).repeat_interleave(2)
    assert float((scores[others].argmax(1) == torch.tensor([0, 1] * 20)).float().mean()) > 0.9


def test_scores_are_those_of_a_file(head: Head) -> None:
    """What a predicting model stores is what it computes with, and close to the full precision."""
    statistics, values = statistics_of(head, ["a", "b", "c"] * 20)
    exact = head.materialise(statistics)
    rounded = exact.rounded()
    again = type(exact).from_tensors({name: rounded.tensors()[name].clone() for name in exact.names})
    assert torch.equal(again(values), rounded(values))
    assert float((rounded(values) - exact(values)).abs().max()) < 1e-4 * float(exact(values).abs().max() + 1)
    assert rounded.numbers == head.config.numbers(3, 12)


def test_candidates_are_valid_settings(head: Head) -> None:
    config = head.config
    for name, values in config.candidates().items():
        for value in values:
            assert getattr(config.replace(**{name: value}), name) == value
    assert len(config.temperatures()) > 1
    assert all(config.replace(temperature=each).temperature == each for each in config.temperatures())


def test_a_classifier_with_any_head(head: Head, tiny: Any, stream: Any, tmp_path: Path) -> None:
    """By name: learn in parts, merge, unlearn, save, pack and load without a bit of difference."""
    images, labels = (values[:60] for values in stream)
    whole = tiny(head=head.config.name).partial_fit(images, labels)
    first = tiny(head=head.config.name).partial_fit(images[:25], labels[:25])
    second = tiny(head=head.config.name).partial_fit(images[25:], labels[25:])
    expected = whole.predict_proba(images)
    assert expected.sum(1) == pytest.approx(1.0)
    assert whole.score(images, labels) > 0.8
    assert (first + second).statistics_ == whole.statistics_
    assert (whole - second).statistics_ == first.statistics_
    assert (
        first.copy().partial_fit(images[25:], labels[25:]).unlearn(images[25:], labels[25:]).statistics_
        == first.statistics_
    )
    whole.save(tmp_path / "whole.circle")
    whole.save(tmp_path / "packed.circle", for_prediction=True)
    loaded = CircleClassifier.load(tmp_path / "whole.circle")
    assert loaded.statistics_ == whole.statistics_
    assert np.array_equal(loaded.predict_proba(images), expected)
    assert np.array_equal(Predictor.load(tmp_path / "packed.circle").predict_proba(images), expected)
    assert loaded.parameter_count().learnable == 2 * head.config.numbers(4, whole.groups_[0].size)
