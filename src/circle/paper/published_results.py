"""Results as the paper published them, for reports to print beside what was measured here."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

from circle.presets.published_settings import DATASETS as TUNED_DATASETS
from circle.presets.published_settings import METHODS as METHODS
from circle.presets.published_settings import match_name, plain_name
from circle.presets.published_settings import method_key as method_key

DATASETS = {**TUNED_DATASETS, "imagenet1k": "ImageNet-1k"}
# Classes and test images of the paper's data sets: published values say nothing about a part of one.
SIZES = {
    "cifar100": (100, 10_000),
    "tinyimagenet": (200, 10_000),
    "imagenet_subset": (100, 5_000),
    "imagenet1k": (1_000, 50_000),
}
EXTRACTORS = {
    "random_resnet18_bn": "Random ResNet-18 (BN)",
    "random_resnet18_ln": "Random ResNet-18 (LN)",
    "random_vgg13": "Random VGG-13",
    "patch_rnn": "Patch-RNN",
    "conv_patch_rnn": "Conv + Patch-RNN",
    "scattering": "Scattering transform",
    "birc2d_circle": "BiRC2D (CIRCLE)",
}
HEADS = {
    "euclidean_ncm": "Euclidean NCM",
    "cosine_ncm": "Cosine NCM",
    "ridge_rls": "Ridge RLS",
    "diagonal_lda": "Diagonal LDA",
    "fecam_mahalanobis": "FeCAM Mahalanobis",
    "qda": "QDA (class covariances)",
    "slda_circle": "SLDA (CIRCLE)",
}

Metric = Literal["average", "final"]
Ablation = Literal["extractor", "head"]


@dataclass(frozen=True)
class PublishedValue:
    """A printed number: mean and standard deviation over the paper's seeds, and how its table marks it."""

    mean: float
    std: float
    mark: str = ""  # "best" (bold in the paper), "second" (underlined) or nothing


@dataclass(frozen=True)
class PublishedCost:
    """A row of the paper's time table, at 20 tasks: minutes of training and parameters in millions."""

    minutes: PublishedValue
    total_millions: float
    learnable_millions: float


def main_result(dataset: str, tasks: int | str, method: str, metric: Metric) -> PublishedValue | None:
    """A cell of the main comparison, or None where the paper has none.

    >>> main_result("cifar100", 20, "circle", "final")
    PublishedValue(mean=45.34, std=0.3, mark='best')
    """
    return _value(_lookup("main", dataset, f"T{tasks}", method, metric))


def cost_result(dataset: str, tasks: int | str, method: str) -> PublishedCost | None:
    """A row of the time and parameter table, or None where the paper has none."""
    row = _lookup("time", dataset, f"T{tasks}", method)
    if row is None:
        return None
    return PublishedCost(PublishedValue(**row["minutes"]), row["total_millions"], row["learnable_millions"])


def ablation_result(
    ablation: Ablation, dataset: str, tasks: int | str, variant: str, metric: Metric
) -> PublishedValue | None:
    """A cell of the extractor or head ablation, or None where the paper has none."""
    return _value(_lookup(ablation, dataset, f"T{tasks}", variant, metric))


def ensembling_result(dataset: str, tasks: int | str, groups: int, members: int) -> PublishedValue | None:
    """The average accuracy of k groups of m members in the ensembling table, or None where the paper has none."""
    return _value(_lookup("ensembling", dataset, f"T{tasks}", f"{groups}x{members}", "average"))


def speedup_claim(dataset: str) -> float | None:
    """How many times faster than the second fastest method the paper says that CIRCLE is, at 20 tasks."""
    return _lookup("speedup", dataset)


def long_stream_claims() -> dict[str, Any]:
    """What the paper's text says of ImageNet-1k in 500 tasks; its curves were printed without numbers."""
    return dict(_lookup("imagenet1k", "T500"))


def seeds(experiment: Literal["main", "ablations", "training_time", "imagenet1k_t500"]) -> int:
    """Over how many seeds the paper's means are taken."""
    return _lookup("seeds", experiment)


def dataset_key(name: str) -> str:
    """A data set's name in these tables, however it is written: "CIFAR-100" is "cifar100"."""
    return match_name(name, DATASETS) or name


def extractor_key(config: Mapping[str, Any]) -> str | None:
    """Which row of the extractor ablation a config belongs to, or None for an extractor that the paper lacks."""
    name = plain_name(str(config.get("name", "")))
    if name == "birc2d":
        return "birc2d_circle"
    if "resnet" in name:
        # The two differ in normalisation alone: in the name, or in a setting of its own.
        norm = name.rpartition("resnet")[2].removeprefix("18")
        norm = norm or plain_name(str(config.get("normalisation", config.get("norm", ""))))
        return {"b": "random_resnet18_bn", "l": "random_resnet18_ln"}.get(norm[:1])
    if "vgg" in name:
        return "random_vgg13"
    if "patchrnn" in name:
        return "conv_patch_rnn" if "conv" in name or config.get("stem_channels") else "patch_rnn"
    return "scattering" if "scattering" in name else None


def head_key(config: Mapping[str, Any]) -> str | None:
    """Which row of the head ablation a config belongs to, or None for a head that the paper lacks."""
    name = plain_name(str(config.get("name", "")))
    if "ncm" in name:
        return "cosine_ncm" if "cosine" in (*map(str, config.values()), name.removesuffix("ncm")) else "euclidean_ncm"
    parts = {
        "slda": "slda_circle",
        "ridge": "ridge_rls",
        "diagonal": "diagonal_lda",
        "mahalanobis": "fecam_mahalanobis",
    }
    return next((row for part, row in parts.items() if part in name), "qda" if name == "qda" else None)


def _value(entry: Mapping[str, Any] | None) -> PublishedValue | None:
    return None if entry is None else PublishedValue(**entry)


def _lookup(*keys: str) -> Any:
    """The entry under these keys, or None where one of them is missing."""
    entry: Any = _results()
    for key in keys:
        if key not in entry:
            return None
        entry = entry[key]
    return entry


@cache
def _results() -> dict[str, Any]:
    return tomllib.loads(resources.files("circle.paper").joinpath("published_results.toml").read_text())
