"""The published results, number by number against what was parsed from the paper's tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from circle.paper import published_results as published
from circle.paper.published_results import PublishedValue

TABLE = Path(__file__).parents[3] / "shared" / "paper" / "results.yaml"
DATASETS = ("cifar100", "tinyimagenet", "imagenet_subset")


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    if not TABLE.is_file():
        pytest.skip(f"no table of published results: {TABLE} is not there")
    return pytest.importorskip("yaml").safe_load(TABLE.read_text())


def value(entry: dict[str, Any]) -> PublishedValue:
    return PublishedValue(entry["mean"], entry["std"], entry.get("mark", ""))


def test_main_comparison(table: dict[str, Any]) -> None:
    compared = 0
    for dataset, splits in table["main_comparison"].items():
        for tasks, methods in splits.items():
            assert list(methods) == list(published.METHODS)
            for method, row in methods.items():
                assert published.main_result(dataset, tasks, method, "average") == value(row["a_bar"])
                assert published.main_result(dataset, str(tasks), method, "final") == value(row["a_final"])
                compared += 2
    assert compared == table["_meta"]["checks"]["main_cells"] == 264


def test_marks_agree_with_the_values() -> None:
    for dataset in DATASETS:
        for tasks in (10, 20, 50, 100):
            for metric in ("average", "final"):
                cells = [published.main_result(dataset, tasks, method, metric) for method in published.METHODS]
                ranked = sorted((cell for cell in cells if cell), key=lambda cell: -cell.mean)
                assert [cell.mark for cell in ranked] == ["best", "second", *[""] * 9], (dataset, tasks, metric)


def test_time_and_parameters(table: dict[str, Any]) -> None:
    for dataset in DATASETS:
        for method in published.METHODS:
            cost = published.cost_result(dataset, 20, method)
            row = table["training_time_t20"][dataset].get(method)
            assert (cost is None) == (row is None)
            if cost and row:
                assert cost.minutes == value(row["minutes"])
                assert cost.total_millions == row["total_params_millions"]
                assert cost.learnable_millions == row["learnable_params_millions"]
    assert sum(len(rows) for rows in table["training_time_t20"].values()) == 18


@pytest.mark.parametrize(("ablation", "names"), [("extractor", published.EXTRACTORS), ("head", published.HEADS)])
def test_ablations(table: dict[str, Any], ablation: published.Ablation, names: dict[str, str]) -> None:
    for dataset, rows in table[f"{ablation}_ablation_t20"].items():
        assert list(rows) == list(names)
        for variant, row in rows.items():
            for metric, key in (("average", "a_bar"), ("final", "a_final")):
                assert published.ablation_result(ablation, dataset, 20, variant, metric) == value(row[key])


def test_ensembling_and_text(table: dict[str, Any]) -> None:
    rows = table["ensembling_ablation_cifar100_t20_budget16"]
    assert len(rows) == 3
    for row in rows:
        assert published.ensembling_result("cifar100", 20, groups=row["k"], members=row["m"]) == value(row["a_bar"])
    claims = table["claims_in_text"]
    assert {name: published.speedup_claim(name) for name in DATASETS} == claims["speedup_over_second_fastest"]
    assert published.long_stream_claims() == {
        "classes_per_task": 2,
        "first_task_forgotten_after_tasks": {"efc_plus_plus": 30, "adagauss": 75},
        "stopped_after_days": {"efc_plus_plus": 5},
        "failed_at_task": {"adagauss": 110},
    }
    long_stream = claims["imagenet1k_t500"]
    assert long_stream["efc_plus_plus_first_task_accuracy_zero_after_tasks"] == 30
    assert long_stream["adagauss_first_task_accuracy_zero_after_tasks"] == 75
    assert long_stream["efc_plus_plus_truncated_after_days"] == 5
    assert long_stream["adagauss_numerical_failure_at_task"] == 110
    for name, count in table["_meta"]["seeds"].items():
        assert published.seeds(name) == count


def test_what_the_paper_does_not_have_is_none() -> None:
    assert published.main_result("cifar100", 25, "circle", "final") is None
    assert published.main_result("digits", 5, "circle", "final") is None
    assert published.cost_result("cifar100", 10, "circle") is None
    assert published.ensembling_result("cifar100", 20, 2, 8) is None
    assert published.speedup_claim("digits") is None


@pytest.mark.parametrize(
    ("name", "key"),
    [("EFC++", "efc_plus_plus"), ("DS-AL", "dsal"), ("efc_plus_plus", "efc_plus_plus"), ("finetune", None)],
)
def test_method_names(name: str, key: str | None) -> None:
    assert published.method_key(name) == key


def test_dataset_names() -> None:
    assert published.dataset_key("CIFAR-100") == "cifar100"
    assert published.dataset_key("ImageNet-Subset") == "imagenet_subset"
    assert published.dataset_key("my photos") == "my photos"


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"name": "birc2d", "width": 30}, "birc2d_circle"),
        ({"name": "resnet18", "normalisation": "batch"}, "random_resnet18_bn"),
        ({"name": "resnet18_ln"}, "random_resnet18_ln"),
        ({"name": "resnet", "norm": "layer"}, "random_resnet18_ln"),
        ({"name": "resnet18"}, None),
        ({"name": "vgg13"}, "random_vgg13"),
        ({"name": "patch_rnn", "stem_channels": []}, "patch_rnn"),
        ({"name": "patch_rnn", "stem_channels": [8]}, "conv_patch_rnn"),
        ({"name": "conv_patch_rnn"}, "conv_patch_rnn"),
        ({"name": "scattering"}, "scattering"),
        ({"name": "gabor"}, None),
    ],
)
def test_extractor_rows(config: dict[str, Any], key: str | None) -> None:
    assert published.extractor_key(config) == key


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"name": "slda", "ridge": 0.1}, "slda_circle"),
        ({"name": "ncm"}, "euclidean_ncm"),
        ({"name": "ncm", "metric": "cosine"}, "cosine_ncm"),
        ({"name": "cosine_ncm"}, "cosine_ncm"),
        ({"name": "ridge"}, "ridge_rls"),
        ({"name": "diagonal_lda"}, "diagonal_lda"),
        ({"name": "mahalanobis"}, "fecam_mahalanobis"),
        ({"name": "qda"}, "qda"),
        ({"name": "nearest_neighbour"}, None),
    ],
)
def test_head_rows(config: dict[str, Any], key: str | None) -> None:
    assert published.head_key(config) == key
