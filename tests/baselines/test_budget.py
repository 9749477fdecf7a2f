"""Epochs from a budget of seconds."""

from __future__ import annotations

import pytest

from circle.baselines import ACILConfig, FeTrILConfig, FineTuneConfig, LwFConfig, budget
from circle.baselines.budget import Costs, fit_budget, probe
from circle.extractors import ImageShape

SHAPE = ImageShape(1, 8, 8)


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> dict[str, Costs]:
    """Made-up timings instead of measured ones."""
    table = {
        "lwf": Costs({"train": 0.01}, {"train": 0.02}, 0.001),
        "acil": Costs({"train": 0.01}, {}, 0.1),
        "fetril": Costs({"train": 0.01}, {"head": 0.001}, 0.0),
    }
    monkeypatch.setattr(budget, "probe", lambda config, shape: table[config.name])
    return table


def test_all_tasks_get_equally_many_epochs(costs: dict[str, Costs]) -> None:
    """100 images at 0.01 s and 200 at 0.02 s are 5 s an epoch, and 0.3 s for the rest."""
    fitted = fit_budget(LwFConfig(), [100, 100, 100], SHAPE, 50.4)
    assert (fitted.initial_epochs, fitted.epochs) == (10, 10)
    assert fitted.initial_milestones == (3, 6, 8)
    assert fitted.milestones == (2, 5, 7, 9)


def test_a_frozen_network_gets_what_the_rest_leaves(costs: dict[str, Costs]) -> None:
    fitted = fit_budget(ACILConfig(), [100, 100, 100], SHAPE, 50.0)
    assert fitted.initial_epochs == 20
    assert fitted.learning_rate_milestones == (15, 18)


def test_a_head_gets_a_share(costs: dict[str, Costs]) -> None:
    """Later tasks train on 200 and 300 features: half a second an epoch; 30 % of 50 s would be 30 of them."""
    fitted = fit_budget(FeTrILConfig(), [100, 100, 100], SHAPE, 50.0)
    assert fitted.epochs == 30 and fitted.initial_epochs == 35
    few = fit_budget(FeTrILConfig(epochs=3), [100, 100, 100], SHAPE, 50.0)
    assert few.epochs == 3


def test_there_is_always_one_epoch(costs: dict[str, Costs]) -> None:
    for config in (LwFConfig(), ACILConfig(), FeTrILConfig()):
        fitted = fit_budget(config, [100, 100], SHAPE, 1e-3)
        assert fitted.initial_epochs == 1


@pytest.mark.parametrize("kind", [FineTuneConfig, LwFConfig, ACILConfig, FeTrILConfig])
def test_a_probe_times_what_a_method_does(kind: type) -> None:
    config = kind(network="convnet", width=4, batch_size=8)
    measured = probe(config.replace(buffer_size=16) if kind is ACILConfig else config, SHAPE)
    assert set(measured.first) == {"train"} and 0 < measured.first["train"] < 1
    expected = {FineTuneConfig: {"train"}, LwFConfig: {"train"}, ACILConfig: set(), FeTrILConfig: {"head"}}[kind]
    assert set(measured.later) == expected
    assert measured.rest >= 0
