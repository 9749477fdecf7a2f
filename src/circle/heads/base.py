"""What every head is: a pure function from statistics to scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from circle.config import Config, option
from circle.registry import entry

if TYPE_CHECKING:
    from circle.statistics import Statistics


@dataclass(frozen=True)
class HeadConfig(Config):
    """Settings that every head has."""

    temperature: float = option(1.0, "scores are divided by it before the softmax; above 1 is less certain")

    def check(self) -> None:
        self.require(self.temperature > 0, "temperature", "a positive number")


@dataclass(frozen=True)
class LinearScores:
    """A materialised head whose scores are linear in the features: scores = z W^T + b."""

    weight: Tensor  # [C, D]
    bias: Tensor  # [C]

    def __call__(self, features: Tensor) -> Tensor:
        """Features [B, D] of any type -> scores float64 [B, C]."""
        weight = self.weight.to(torch.float64)
        return torch.addmm(self.bias.to(torch.float64), features.to(weight.device, torch.float64), weight.T)

    def rounded(self) -> LinearScores:
        """Weights to float32, as a predicting model stores them, so that both kinds of model say the same."""
        return LinearScores(self.weight.to(torch.float32), self.bias)


class Head(ABC):
    """A registered head. It knows only observed classes, in the order of ``statistics.classes``."""

    def __init__(self, config: HeadConfig) -> None:
        self.config = config

    @abstractmethod
    def materialise(self, statistics: Statistics) -> LinearScores:
        """Closed form of the classifier. The same statistics give the same classifier."""


def build_head(config: Config) -> Head:
    """The registered head that a config describes."""
    return entry("head", config.name).part(config)
