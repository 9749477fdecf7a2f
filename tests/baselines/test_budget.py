"""Epochs from a budget of seconds."""

from __future__ import annotations

import pytest

from circle.baselines import ACILConfig, AdaGaussConfig, ADCConfig, EFCPlusPlusConfig, FeTrILConfig, LwFConfig
from circle.baselines import costs as module
from circle.baselines.costs import Costs, Course, fit_budget
from circle.baselines.pass_method import PASSConfig
from circle.extractors import ImageShape

SHAPE = ImageShape(1, 8, 8)
THREE, TWO = Course([100, 100, 100], [2, 2, 2]), Course([100, 100], [2, 2])


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> dict[str, Costs]:
    """Made-up timings instead of measured ones."""
    table = {
        "lwf": Costs({"train": 0.01}, {"train": 0.02}, 0.001),
        "acil": Costs({"train": 0.01}, {}, 0.1),
        "fetril": Costs({"train": 0.01}, {"head": 0.001}, 0.0),
        "adc": Costs({"train": 0.01}, {"train": 0.02}, 0.0, old_class=1.0),
        "adagauss": Costs({"train": 0.01}, {"train": 0.02, "adapter": 0.01}, 0.0),
        "efc_plus_plus": Costs({"train": 0.01}, {"train": 0.02, "balance": 0.01}, 0.0),
        "pass": Costs({"train": 0.01}, {"train": 0.02}, 0.0),
    }
    monkeypatch.setattr(module, "probe", lambda config, shape: table[config.name])
    return table


def test_first_and_later_tasks_keep_their_proportion(costs: dict[str, Costs]) -> None:
    """100 images at 0.01 s and 200 at 0.02 s are 1 s and 4 s an epoch, and 0.3 s for the rest."""
    fitted = fit_budget(LwFConfig(initial_epochs=250), THREE, SHAPE, 50.4)
    assert (fitted.initial_epochs, fitted.epochs) == (10, 10)
    fitted = fit_budget(LwFConfig(initial_epochs=500), THREE, SHAPE, 60.4)
    assert (fitted.initial_epochs, fitted.epochs) == (20, 10)
    fitted = fit_budget(PASSConfig(epochs=100, initial_epochs=600), THREE, SHAPE, 50.1)
    assert (fitted.initial_epochs, fitted.epochs) == (30, 5)
    fitted = fit_budget(LwFConfig(initial_epochs=250), THREE, SHAPE, 53.4)
    assert (fitted.initial_epochs, fitted.epochs) == (13, 10), "less than an epoch of all tasks goes to the first"
    fitted = fit_budget(LwFConfig(initial_epochs=25_000), THREE, SHAPE, 50.4)
    assert (fitted.initial_epochs, fitted.epochs) == (46, 1), "one later epoch there must be; the rest is the first's"
    fitted = fit_budget(LwFConfig(initial_epochs=250, initial_milestones=(75, 150, 200)), THREE, SHAPE, 50.4)
    assert fitted.initial_milestones == (3, 6, 8)
    assert fitted.milestones == (2, 5, 7, 9)


def test_a_frozen_network_gets_what_the_rest_leaves(costs: dict[str, Costs]) -> None:
    fitted = fit_budget(ACILConfig(), THREE, SHAPE, 50.0)
    assert fitted.initial_epochs == 20
    assert fitted.learning_rate_milestones == (15, 18)


def test_a_head_gets_a_fraction(costs: dict[str, Costs]) -> None:
    """Later tasks train on 200 and 300 features: half a second an epoch; 30 % of 50 s would be 30 of them."""
    fitted = fit_budget(FeTrILConfig(), THREE, SHAPE, 50.0)
    assert fitted.epochs == 30 and fitted.initial_epochs == 35
    few = fit_budget(FeTrILConfig(epochs=3), THREE, SHAPE, 50.0)
    assert few.epochs == 3


def test_there_is_always_one_epoch(costs: dict[str, Costs]) -> None:
    for config in (LwFConfig(), ACILConfig(), FeTrILConfig()):
        fitted = fit_budget(config, TWO, SHAPE, 1e-3)
        assert fitted.initial_epochs == 1


def test_old_classes_cost_time(costs: dict[str, Costs]) -> None:
    """Two old classes in the second task, four in the third: six seconds are gone before the first epoch."""
    fitted = fit_budget(ADCConfig(initial_epochs=200, epochs=100), THREE, SHAPE, 66.1)
    assert (fitted.initial_epochs, fitted.epochs) == (20, 10)


def test_an_adapter_counts_by_its_fraction(costs: dict[str, Costs]) -> None:
    """1 s for the first task, 200 images at 0.02 s and half of 0.01 s: 6 s an epoch."""
    fitted = fit_budget(AdaGaussConfig(), THREE, SHAPE, 120.1)
    assert fitted.epochs == 20
    assert fitted.adapter_milestones == (3, 6, 9)


def test_balancing_gets_a_fraction(costs: dict[str, Costs]) -> None:
    """500 features at 0.01 s: 5 s a pass; of 100 s it may take 30, and 70 are left for epochs of 5 s."""
    fitted = fit_budget(EFCPlusPlusConfig(), THREE, SHAPE, 100.1)
    assert (fitted.balanced_epochs, fitted.initial_epochs, fitted.epochs) == (6, 14, 14)


def test_steps_of_the_rate_keep_their_places(costs: dict[str, Costs]) -> None:
    fitted = fit_budget(PASSConfig(epochs=100, learning_rate_step=40), THREE, SHAPE, 50.1)
    assert (fitted.epochs, fitted.learning_rate_step) == (10, 4)
