"""An eleventh rival in one file: a network trained on the first task, then nearest class means of its features.

Run it beside the others:

    CIRCLE_PLUGINS=examples/nearest_mean.py circle bench run --dataset digits --tasks 5 \
        --method circle finetune nearest_mean --rival.network convnet --rival.width 8 --rival.initial-epochs 20
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from circle.baselines.frozen import FrozenConfig, FrozenMethod
from circle.baselines.networks import unit_rows
from circle.baselines.trainer import TaskData
from circle.config import option
from circle.registry import register


@dataclass(frozen=True)
class NearestMeanConfig(FrozenConfig):
    """Settings of :class:`NearestMean`; those of the network and its training are inherited."""

    name: ClassVar[str] = "nearest_mean"

    centred: bool = option(True, "whether the mean of all class means is subtracted first")


@register("method", NearestMeanConfig)
class NearestMean(FrozenMethod[NearestMeanConfig]):
    """score_c(x) = cos(f(x) - m, mu_c - m), mu_c the mean feature of class c and m the mean of all mu_c, or zero."""

    config_type = NearestMeanConfig
    keeps = "means"

    def update(self, data: TaskData, features: Tensor) -> None:
        self.bank.describe(data.columns, features)

    def scores_of(self, features: Tensor) -> Tensor:
        means = self.bank.means
        middle = means.mean(0) if self.config.centred and len(means) > 2 else 0.0
        return unit_rows(features.double() - middle) @ unit_rows(means - middle).T
