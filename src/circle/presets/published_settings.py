"""Settings as the paper published them, for every method, data set and number of tasks.

The files of ``presets/paper`` hold the values under the paper's own names. They are facts to look up and to translate:
:func:`circle_preset` turns CIRCLE's into settings that ``CircleClassifier`` takes.
"""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from circle.errors import CircleError
from circle.extractors.reservoir import DIRECTIONS
from circle.presets import read_preset
from circle.registry import entry

# Display names in the order of the paper's tables; CIRCLE comes last there, below a rule.
METHODS = {
    "adagauss": "AdaGauss",
    "efc_plus_plus": "EFC++",
    "adc": "ADC",
    "acil": "ACIL",
    "fecam": "FeCAM",
    "fetril": "FeTrIL",
    "il2a": "IL2A",
    "pass": "PASS",
    "lwf": "LwF",
    "dsal": "DS-AL",
    "circle": "CIRCLE",
}
# Names as the paper writes them, and the side of the images that the paper feeds to the networks.
DATASETS = {"cifar100": "CIFAR-100", "tinyimagenet": "TinyImageNet", "imagenet_subset": "ImageNet-Subset"}
IMAGE_SIZES = {"cifar100": 32, "tinyimagenet": 64, "imagenet_subset": 224}

# The paper's name of a setting, and ours. The reservoirs' internal dimension is read as the units of all directions and
# patch sizes together (``width_of = "model"``); where that does not come out even, as those of each patch size.
_MODEL_NAMES = {"head_ensemble_size": "groups", "feature_ensemble_size": "members"}
_EXTRACTOR_NAMES = {
    "cnn_stem_channels": "stem_channels",
    "cnn_stem_kernels": "stem_kernels",
    "leaky_relu_slope": "slope",
    "patch_sizes": "patch_sizes",
    "reservoir_internal_dimension": "width",
    "reservoir_layers": "layers",
    "leak": "leak",
    "sparsity": "sparsity",
    "spectral_radius": "radius",
    "reservoir_output_dimension": "projection_size",
}
# Published, and without effect here: the rotation is always 0 degrees, the activation is the leaky ReLU that the stem
# has anyway, and an internal state width is listed for one data set only, at odds with the internal dimension there.
NOT_USED = ("maximum_rotation", "cnn_stem_activation", "internal_state_width")


def published_settings(dataset: str, tasks: int | str, method: str, *, with_defaults: bool = False) -> dict[str, Any]:
    """The values that the paper states for one method, data set and number of tasks, under the paper's names.

    with_defaults: fill what the paper leaves out with what the method's official code most likely used. The
        paper's own values always win; ``source`` then says where the others come from.

    >>> published_settings("cifar100", 20, "lwf")["epochs"]
    110
    """
    table = _read(dataset)
    splits = [name for name in table if name != "defaults"]
    if f"T{tasks}" not in splits:
        known = ", ".join(split.removeprefix("T") for split in splits)
        raise CircleError(f"no published settings for {tasks} tasks of {dataset}: the paper has {known} tasks")
    methods = table[f"T{tasks}"]
    if method not in methods:
        raise CircleError(f"no published settings for method {method!r}: the paper has {', '.join(methods)}")
    defaults = table["defaults"].get(method, {}) if with_defaults else {}
    return copy.deepcopy({**defaults, **methods[method]})  # the file is read once: nobody may change it


def circle_preset(dataset: str, tasks: int | str) -> dict[str, Any]:
    """CIRCLE's published setting for a data set and number of tasks, in the form that ``read_preset`` returns.

    What the paper does not state (ridge, projection, how the map becomes a vector) is as in the preset ``paper``.

    >>> circle_preset("tinyimagenet", 50)["groups"]
    7
    """
    published = published_settings(dataset, tasks, "circle")
    settings = read_preset("paper")
    for name, value in published.items():
        if name in _MODEL_NAMES:
            settings[_MODEL_NAMES[name]] = value
        elif name in _EXTRACTOR_NAMES:
            settings["extractor"][_EXTRACTOR_NAMES[name]] = value
        elif name not in NOT_USED:
            raise CircleError(f"published setting {name!r} of CIRCLE has no translation")
    extractor = settings["extractor"]
    if extractor["width"] % (DIRECTIONS * len(extractor["patch_sizes"])):
        extractor["width_of"] = "location"
    settings["image_size"] = IMAGE_SIZES[dataset]
    members = settings["groups"] * settings["members"]
    settings["description"] = (
        f"the published {DATASETS[dataset]} setting: {members} plain BiRC2D members in {settings['groups']} groups"
    )
    return settings


def settings_for(preset: str, dataset: str | None) -> dict[str, Any]:
    """The settings of a preset; ``paper`` has its own for each published data set, for any number of tasks."""
    return circle_preset(dataset, 10) if preset == "paper" and dataset in DATASETS else read_preset(preset)


def rival_settings(dataset: str, tasks: int | str, method: str) -> dict[str, Any]:
    """A rival's published settings for a data set and number of tasks, under the names of its own config.

    What the paper leaves out is as in the official code, or as the method's defaults have it. Settings that change
    nothing are left out; ``inert`` of the config says why.

    >>> rival_settings("cifar100", 20, "lwf")["distillation_weight"]
    3
    """
    config = entry("method", method).config
    names, inert = getattr(config, "published_names", {}), getattr(config, "inert", {})
    settings = dict(getattr(config, "by_dataset", {}).get(dataset, {}))
    for name, value in published_settings(dataset, tasks, method, with_defaults=True).items():
        own = names.get(name, name)
        if name in inert or name == "source" or own == "by_dataset":
            continue
        if own not in config.field_names():
            raise CircleError(f"published setting {name!r} of {method} has no translation")
        settings[own] = value
    return settings


def method_key(name: str) -> str | None:
    """A method's name in the paper's tables ("EFC++" and "efc_plus_plus" are the same), or None for others."""
    return match_name(name.replace("+", "plus"), METHODS)


def match_name(name: str, known: Mapping[str, str]) -> str | None:
    """The one of some known names that is meant, whatever its spaces, signs and capitals."""
    return next((key for key in known if plain_name(key) == plain_name(name)), None)


def plain_name(name: str) -> str:
    """
    >>> plain_name("CIFAR-100")
    'cifar100'
    """
    return re.sub(r"[^a-z0-9]", "", name.lower())


@cache
def _read(dataset: str) -> dict[str, Any]:
    """The file of one data set."""
    if dataset not in DATASETS:
        raise CircleError(f"no published settings for data set {dataset!r}: the paper has {', '.join(DATASETS)}")
    return tomllib.loads(resources.files("circle.presets").joinpath("paper", f"{dataset}.toml").read_text())
