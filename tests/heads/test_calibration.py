"""Calibrated probabilities: the temperature that follows from the statistics, and the one of each image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from circle.benchmark.metrics import expected_calibration_error
from circle.heads import SLDAConfig, SubspaceQDAConfig, build_head
from circle.heads.probabilities import softmax
from circle.heads.slda import SLDA
from circle.runtime import probabilities as specification
from circle.statistics import Statistics

CONFIGS = [SLDAConfig(), SubspaceQDAConfig(dimension=32)]


def drawn(seed: int, classes: int, each: int, size: int = 40, spread: float = 20.0) -> tuple[torch.Tensor, list[int]]:
    """Gaussian classes with a common covariance, whose means belong to the number of classes."""
    means = spread * np.random.default_rng(classes).normal(size=(classes, size)) * 40
    labels = np.repeat(np.arange(classes), each)
    noise = np.random.default_rng(seed).normal(size=(len(labels), size)) * 2000
    return torch.from_numpy((means[labels] + noise).round().astype(np.int16)), labels.tolist()


def learned(config: Any, values: torch.Tensor, labels: list[int]) -> Statistics:
    statistics = Statistics(values.shape[1], parts=config.parts)
    statistics.update(values, labels)
    return statistics


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
@pytest.mark.parametrize(("classes", "each"), [(1, 1), (1, 9), (2, 1), (2, 40), (30, 1), (30, 2), (5, 1000)])
def test_scores_are_divided_by_one_positive_number(config: Any, classes: int, each: int) -> None:
    values, labels = drawn(1, classes, each)
    statistics = learned(config, values, labels)
    plain = build_head(config.replace(calibrated=False)).materialise(statistics)(values[:50])
    scores = build_head(config).materialise(statistics)(values[:50])
    assert bool(torch.isfinite(scores).all())
    if classes == 1:
        assert torch.equal(config.probabilities(scores), torch.ones_like(scores))
        return
    temperature = float((plain[:, 0] - plain[:, 1]).abs().max() / (scores[:, 0] - scores[:, 1]).abs().max())
    assert temperature > 0
    difference = (plain - plain[:, :1]) / temperature - (scores - scores[:, :1])
    # Brackets of the subspace are rounded to codes of eight bits after the division.
    assert float(difference.abs().max()) < (1e-3 if config.name == "slda" else 0.1) * float(scores.abs().max())
    found = config.probabilities(scores)
    assert torch.equal(found.argmax(1), scores.argmax(1))
    assert torch.allclose(found.sum(1), torch.ones(len(found), dtype=torch.float64))


def test_many_samples_of_gaussian_classes_need_no_temperature() -> None:
    """Where the model is true and samples are many, nothing has to be corrected; where they are few, much."""
    config, temperatures = SLDAConfig(ridge=0.05, ridge_rule="relative"), []
    for each in (10, 30, 2000):
        values, labels = drawn(2, 5, each)
        temperatures.append(SLDA(config).solved(learned(config, values, labels))[2])
    assert temperatures[0] > temperatures[1] > 1.2
    assert temperatures[2] == pytest.approx(1.0, abs=0.05)


def test_the_temperature_makes_estimated_scores_honest() -> None:
    """New samples of Gaussian classes: plain scores of few samples are too certain, divided ones are not."""
    config = SLDAConfig(ridge=0.05, ridge_rule="relative")
    values, labels = drawn(3, 20, 12, size=100, spread=5.0)
    weight, bias, temperature = SLDA(config).solved(learned(config, values, labels))
    new, truth = drawn(4, 20, 100, size=100, spread=5.0)
    scores = new.to(torch.float64) @ weight.T + bias
    errors = []
    for divisor in (1.0, temperature):
        found = torch.softmax(scores / divisor, 1).numpy()
        errors.append(expected_calibration_error(found, found.argmax(1) == np.array(truth)))
    assert errors[0] > 0.5
    assert errors[1] < 0.05


def test_the_temperature_is_a_function_of_the_statistics() -> None:
    values, labels = drawn(5, 6, 20)
    whole = learned(SLDAConfig(), values, labels)
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(0))
    shuffled = learned(SLDAConfig(), values[order], [labels[index] for index in order])
    assert SLDA(SLDAConfig()).solved(whole)[2] == SLDA(SLDAConfig()).solved(shuffled)[2]


def test_units_of_the_features_do_not_matter() -> None:
    """Not even where every class has a single sample, and distances have no unit to be measured in."""
    for each in (1, 5):
        values, labels = drawn(6, 8, each)
        found = []
        for factor in (1, 2):
            scores = build_head(SLDAConfig()).materialise(learned(SLDAConfig(), values * factor, labels))
            found.append(SLDAConfig().probabilities(scores(values * factor)))
        assert torch.allclose(found[0], found[1], atol=1e-9)


def test_classes_of_the_same_mean_are_equally_probable() -> None:
    values = torch.tensor([[5, -5], [-5, 5], [5, -5], [-5, 5]], dtype=torch.int16)
    scores = build_head(SLDAConfig()).materialise(learned(SLDAConfig(), values, ["a", "a", "b", "b"]))
    assert torch.allclose(SLDAConfig().probabilities(scores(values)), torch.full((4, 2), 0.5, dtype=torch.float64))


@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("classes", [1, 2, 100])
def test_pytorch_follows_the_specification(calibrated: bool, classes: int) -> None:
    scores = np.random.default_rng(7).normal(size=(50, classes)) * 20
    for temperature in (0.3, 1.0, 5.0):
        expected = specification.softmax(scores, temperature, calibrated=calibrated)
        found = softmax(torch.from_numpy(scores), temperature, calibrated=calibrated).numpy()
        assert np.abs(found - expected).max() < 1e-12
        if classes > 1:
            assert (found.argmax(1) == scores.argmax(1)).all()


def test_an_image_far_out_is_answered_less_certainly() -> None:
    """Margins ten times larger are not ten times the evidence."""
    margins = np.array([[0.0, 6.0, 10.0], [0.0, 60.0, 100.0]])
    own = specification.own_temperatures(margins)[:, 0]
    assert 1.0 < own[0] < own[1] < 10 * own[0]
    assert own[0] == pytest.approx(np.sqrt((72 + 16) / 24))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_the_users_temperature_comes_on_top(config: Any) -> None:
    scores = torch.tensor([[3.0, 1.0, -4.0]], dtype=torch.float64)
    once, twice = (config.replace(temperature=each).probabilities(scores) for each in (1.0, 2.0))
    odds = [torch.log(found[0, 0] / found[0, 1]) for found in (once, twice)]
    assert float(odds[0]) == pytest.approx(2 * float(odds[1]))
