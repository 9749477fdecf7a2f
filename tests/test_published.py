"""The published settings, value by value against the table of values that was parsed from the paper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from circle.errors import CircleError
from circle.learner import CircleClassifier
from circle.presets import list_presets, read_preset
from circle.presets.published_settings import DATASETS, NOT_USED, circle_preset, published_settings, rival_settings
from circle.registry import entry, resolve

TABLE = Path(__file__).parents[2] / "shared" / "paper" / "hyperparameters.yaml"
TASKS = (10, 20, 50, 100)
METHODS = ["adagauss", "efc_plus_plus", "adc", "acil", "fecam", "fetril", "il2a", "pass", "lwf", "dsal", "circle"]


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    if not TABLE.is_file():
        pytest.skip(f"no table of published values: {TABLE} is not there")
    return pytest.importorskip("yaml").safe_load(TABLE.read_text())


def stored() -> Iterator[tuple[str, int, str, dict[str, Any]]]:
    for dataset in DATASETS:
        for tasks in TASKS:
            for method in METHODS:
                yield dataset, tasks, method, published_settings(dataset, tasks, method)


def same(first: Any, second: Any) -> bool:
    """Equal in value and kind: 1, 1.0 and True are different settings."""
    if isinstance(first, list):
        return isinstance(second, list) and len(first) == len(second) and all(map(same, first, second))
    return type(first) is type(second) and first == second


def test_every_value_is_the_published_one(table: dict[str, Any]) -> None:
    for dataset, tasks, method, values in stored():
        expected = table[dataset][tasks][method]
        assert list(values) == list(expected), (dataset, tasks, method)
        for name, value in expected.items():
            assert same(values[name], value), (dataset, tasks, method, name)


def test_nothing_is_missing(table: dict[str, Any]) -> None:
    assert table["_meta"]["counts"] == {"settings": 12, "method_entries": 132, "values": 1276}
    assert set(table) == {"_meta", *DATASETS}
    assert [sorted(table[dataset][10]) for dataset in DATASETS] == [sorted(METHODS)] * 3


def test_counts_without_the_table() -> None:
    entries = list(stored())
    assert len({(dataset, tasks) for dataset, tasks, _, _ in entries}) == 12
    assert len(entries) == 132
    assert sum(len(values) for *_, values in entries) == 1276


def test_defaults_of_the_official_code(table: dict[str, Any]) -> None:
    likely = table["_meta"]["likely_defaults_from_official_code"]
    for dataset, tasks, method, values in stored():
        filled = published_settings(dataset, tasks, method, with_defaults=True)
        assert values.items() <= filled.items()
        for name, value in likely.get(method, {}).items():
            expected = value.get(dataset) if isinstance(value, dict) else value
            if (method, name) == ("acil", "backbone"):
                expected = expected.split()[0]  # the rest is a remark
            if name not in values and expected is not None:
                assert filled[name] == expected, (dataset, tasks, method, name)
        assert set(filled) <= set(values) | set(likely.get(method, {}))


def test_what_the_paper_left_out_for_a_split_has_a_default() -> None:
    assert "epochs" not in published_settings("cifar100", 20, "pass")
    assert published_settings("cifar100", 20, "pass", with_defaults=True)["epochs"] == 101
    assert published_settings("cifar100", 50, "pass", with_defaults=True)["epochs"] == 75


@pytest.mark.parametrize("tasks", TASKS)
def test_cifar_is_the_preset_named_paper(tasks: int) -> None:
    assert circle_preset("cifar100", tasks) == read_preset("paper")


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("tasks", TASKS)
def test_every_circle_preset_makes_a_model(dataset: str, tasks: int) -> None:
    settings = circle_preset(dataset, tasks)
    published = published_settings(dataset, tasks, "circle")
    assert published["reservoir_internal_dimension"] % 4 == 0
    assert published.get("maximum_rotation", 0) == 0  # so that leaving it out changes nothing
    settings.pop("description")
    extractor = resolve("extractor", settings["extractor"])
    model = CircleClassifier(**{**settings, "extractor": extractor, "head": resolve("head", settings["head"])})
    assert (model.groups, model.members) == (published["head_ensemble_size"], published["feature_ensemble_size"])
    ours = [*extractor.to_dict().values(), model.groups, model.members]
    assert all(value in ours for name, value in published.items() if name not in NOT_USED)


def test_circle_presets_by_hand() -> None:
    subset = circle_preset("imagenet_subset", "50")
    assert (subset["image_size"], subset["groups"], subset["members"]) == (224, 9, 8)
    extractor = subset["extractor"]
    assert (extractor["width"], extractor["width_of"], extractor["projection_size"]) == (460, "location", 900)
    assert (extractor["patch_sizes"], extractor["stem_channels"]) == ([7, 8, 16], [4, 6, 6])
    tiny = circle_preset("tinyimagenet", 10)
    assert (tiny["image_size"], tiny["extractor"]["layers"], tiny["extractor"]["sparsity"]) == (64, 2, 0.5)


@pytest.mark.parametrize(
    ("dataset", "tasks", "method", "message"),
    [
        ("cifar10", 10, "circle", "data set 'cifar10': the paper has cifar100, tinyimagenet, imagenet_subset$"),
        ("cifar100", 25, "circle", "25 tasks of cifar100: the paper has 10, 20, 50, 100 tasks$"),
        ("cifar100", "50+50x1", "circle", "50[+]50x1 tasks"),
        ("cifar100", 10, "icarl", "method 'icarl': the paper has adagauss, .*, circle$"),
        ("cifar100", "defaults", "circle", "defaults tasks"),
    ],
)
def test_absent_settings(dataset: str, tasks: int | str, method: str, message: str) -> None:
    with pytest.raises(CircleError, match=message):
        published_settings(dataset, tasks, method)


def test_the_folder_of_the_paper_is_no_preset_itself() -> None:
    assert {"paper", "small"} <= set(list_presets())
    assert not set(DATASETS) & set(list_presets())


@pytest.mark.parametrize("method", ["lwf", "acil", "dsal", "fecam", "fetril"])
def test_rivals_take_their_published_settings(method: str) -> None:
    """Every value that the paper states for a rival arrives in its config, or is known to change nothing."""
    config = entry("method", method).config
    names, inert = config.published_names, config.inert  # pyright: ignore[reportAttributeAccessIssue]
    for dataset in DATASETS:
        for tasks in TASKS:
            made = config(**rival_settings(dataset, tasks, method))
            for name, value in published_settings(dataset, tasks, method).items():
                if name not in inert:
                    own = getattr(made, names.get(name, name))
                    assert own == (tuple(value) if isinstance(value, list) else value), (dataset, tasks, name)


def test_the_data_set_decides_about_the_first_layer() -> None:
    def network(dataset: str, method: str) -> tuple[int, bool]:
        made = entry("method", method).config(**rival_settings(dataset, 10, method)).get_params()
        return made["first_kernel"], made["max_pool"]

    assert network("cifar100", "acil") == network("cifar100", "fecam") == (3, False)
    assert network("tinyimagenet", "acil") == network("imagenet_subset", "fetril") == (7, True)
    assert network("tinyimagenet", "fecam") == (3, False)
    assert network("imagenet_subset", "fecam") == (3, True)


def test_a_published_setting_without_translation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry("method", "acil").config, "inert", {})
    with pytest.raises(CircleError, match="'backbone' of acil has no translation"):
        rival_settings("cifar100", 10, "acil")
