"""What a search may choose among."""

from __future__ import annotations

import pytest

from circle.baselines import ACILConfig, EFCPlusPlusConfig, FeTrILConfig
from circle.baselines.pass_method import PASSConfig
from circle.benchmark.tuning.spaces import Stage, coefficient_space, member_space, rival_changes, rival_stages
from circle.errors import CircleError
from circle.learner import CircleClassifier
from circle.registry import entry, list_methods, resolve


@pytest.mark.parametrize("preset", ["small", "best", "reservoir", "medium"])
def test_the_presets_own_values_are_among_the_members(preset: str) -> None:
    extractor = resolve("extractor", CircleClassifier.from_preset(preset).extractor)
    space = member_space(extractor)
    assert space
    for setting, values in space.items():
        assert getattr(extractor, setting) in values and len(set(values)) == len(values) > 1
        for value in values:
            extractor.replace(**{setting: value})  # all of them are legal


def test_filters_of_all_banks_move_alike() -> None:
    extractor = resolve("extractor", CircleClassifier.from_preset("best").extractor)
    assert set(member_space(extractor)["kernels"]) == {(3, 5), (4, 6), (5, 7), (6, 8)}


def test_an_extractor_without_a_space() -> None:
    with pytest.raises(CircleError, match="no settings to search for extractor 'vgg13'"):
        member_space(resolve("extractor", "vgg13"))


@pytest.mark.parametrize("name", list_methods())
def test_rivals_have_optimisation_and_coefficients(name: str) -> None:
    config = entry("method", name).config()
    stages = rival_stages(config, fitted=False)
    assert stages[0].name == "optimisation" and set(stages[0].space) >= {"rate_scale", "batch_size", "epochs_scale"}
    assert "epochs_scale" not in rival_stages(config, fitted=True)[0].space
    assert rival_changes(config, stages[0].given) == config, "the trial to begin with is the config itself"
    assert (len(stages) == 2) is (name not in ("finetune", "fetril")), "which have none"
    for stage in stages:
        for setting, values in stage.space.items():
            assert stage.given[setting] in values
            for value in values:
                rival_changes(config, {setting: value})
    if len(stages) == 2:
        assert rival_changes(config, stages[1].given) == config


def test_coefficients_are_those_of_the_method() -> None:
    assert set(coefficient_space(entry("method", "lwf").config())) == {"distillation_weight", "temperature"}
    assert set(coefficient_space(entry("method", "fecam").config())) == {"alpha1", "alpha2", "beta"}
    space = coefficient_space(entry("method", "dsal").config())
    assert space["residuals"] == ("batch", "task") and set(space["buffer_size"]) == {4096, 8192, 16384}


def test_scales_multiply() -> None:
    config = entry("method", "lwf").config(epochs=10, initial_epochs=20, milestones=(4, 8), initial_milestones=(10,))
    changed = rival_changes(config, {"rate_scale": 0.1, "epochs_scale": 0.5, "decay_scale": 5.0, "temperature": 4.0})
    assert changed.learning_rate == pytest.approx(0.01) and changed.initial_learning_rate == pytest.approx(0.01)
    assert (changed.epochs, changed.initial_epochs, changed.temperature) == (5, 10, 4.0)
    assert changed.milestones == (2, 4) and changed.initial_milestones == (5,)
    assert changed.weight_decay == pytest.approx(1e-3)


def test_more_epochs_in_the_first_task() -> None:
    for config, wanted in ((EFCPlusPlusConfig(), 300), (PASSConfig(epochs=20), 60)):
        assert "initial_scale" in rival_stages(config, fitted=True)[0].space
        assert "initial_scale" not in rival_stages(config, fitted=False)[0].space
        changed = rival_changes(config, {"initial_scale": 3.0})
        assert changed.first_epochs == wanted and changed.epochs == config.epochs
    changed = rival_changes(EFCPlusPlusConfig(initial_milestones=(45, 90)), {"initial_scale": 3.0})
    assert changed.initial_milestones == (135, 270), "the step size falls at the same shares of the epochs"  # pyright: ignore
    assert rival_changes(PASSConfig(epochs=20), {"epochs_scale": 2.0}).first_epochs == 40, (
        "0 stands for as many as later"
    )
    for frozen in (ACILConfig(), FeTrILConfig()):
        assert "initial_scale" not in rival_stages(frozen, fitted=True)[0].space


def test_some_of_the_settings() -> None:
    stage = Stage("one", {"a": (1, 2), "b": (3, 4)}, {"a": 1, "b": 3}).part(["b", "other"])
    assert (stage.space, stage.given) == ({"b": (3, 4)}, {"b": 3})


def test_labels_and_back() -> None:
    stage = Stage("any", {"kernels": ((3, 5), (4,)), "leak": (0.5, 1.0), "mode": ("batch", "task")})
    for setting, values in stage.space.items():
        for value in values:
            assert stage.value(setting, stage.label(setting, value)) == value
    assert stage.to_dict()["kernels"] == ["3 5", "4"]
