"""What every head is: settings, and a pure function from statistics to scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from circle.config import Config, option
from circle.errors import CircleError
from circle.heads.probabilities import softmax
from circle.heads.scores import Scores
from circle.registry import entry
from circle.statistics.parts import parts_named

if TYPE_CHECKING:
    from torch import Tensor

    from circle.statistics import Statistics


@dataclass(frozen=True)
class HeadConfig(Config):
    """Settings that every head has.

    Features z are positions on the extractor's calibrated grid, for every head: zero is the mean of the feature over
    synthetic noise, and one step a fixed fraction of its deviation there. Heads that depend on the origin (cosine,
    ridge without intercept) or on units (Euclidean, anything with a ridge) mean these.

    Parameters
    ----------
    temperature : float
        Scores are divided by it before the softmax.

    Attributes
    ----------
    name : str
        What presets, files and flags call the head.
    parts : tuple of str
        Names of the parts (:mod:`circle.statistics.parts`) that it needs besides those that are always kept.
    calibrated : bool
        Whether every image has a temperature of its own (:mod:`circle.runtime.probabilities`).
    """

    parts: ClassVar[tuple[str, ...]] = ()
    calibrated: ClassVar[bool] = False

    temperature: float = option(1.0, "scores are divided by it before the softmax; above 1 is less certain")

    def check(self) -> None:
        self.require(self.temperature > 0, "temperature", "a positive number")

    def check_statistics(self, statistics: Statistics) -> None:
        """Refuse statistics that lack what this head needs."""
        for part in parts_named(self.parts):
            if part.name not in statistics.kept:
                raise CircleError(
                    f"head {self.name!r} needs {part.described()}, which were not kept: learn with this head"
                )

    def probabilities(self, scores: Tensor) -> Tensor:
        """Probabilities [..., C] of scores [..., C]."""
        return softmax(scores, self.temperature, calibrated=self.calibrated)

    def numbers(self, classes: int, size: int) -> int:
        """Learned numbers in the materialised head, biases aside."""
        return classes * size

    def candidates(self) -> dict[str, tuple[float, ...]]:
        """Settings that decide accuracy, with values worth trying on a validation split."""
        return {}

    @classmethod
    def temperatures(cls) -> tuple[float, ...]:
        """Temperatures worth trying on a validation split; those of the scores' own scale."""
        return (0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class RidgeConfig(HeadConfig):
    """Settings of heads that add a ridge to the diagonal of a matrix.

    Parameters
    ----------
    ridge : float
        lambda.
    ridge_rule : {"relative", "absolute", "shrinkage"}
        Whether lambda is a multiple of the mean diagonal, a number of its own, or falls as samples arrive, which
        only SLDA knows.
    temperature : float
        Scores are divided by it before the softmax.

    Attributes
    ----------
    follows_samples : bool
        Whether the head knows the rule ``shrinkage``.
    """

    follows_samples: ClassVar[bool] = False

    ridge: float = option(0.01, "lambda, added to the diagonal of the matrix that is solved")
    ridge_rule: Literal["relative", "absolute", "shrinkage"] = option(
        "relative", "lambda is a multiple of the mean diagonal, a number of its own, or (SLDA) falls with samples"
    )

    def check(self) -> None:
        super().check()
        self.require(self.ridge >= 0, "ridge", "zero or a positive number")
        self.require(
            self.follows_samples or self.ridge_rule != "shrinkage", "ridge_rule", "relative or absolute for this head"
        )

    def ridge_for(self, mean_diagonal: float) -> float:
        """What is added to each entry of a diagonal with this mean."""
        if mean_diagonal <= 0.0:
            # No scatter yet (one sample per class, or constant features): the identity, the nearest mean.
            return max(1.0, self.ridge)
        return self.ridge * (1.0 if self.ridge_rule == "absolute" else mean_diagonal)

    def candidates(self) -> dict[str, tuple[float, ...]]:
        if self.ridge_rule == "shrinkage":
            return {"ridge": (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)}
        return {"ridge": (1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)}


class Head(ABC):
    """A pure function from statistics to scores. It knows only observed classes, in the order of their rows there.

    Parameters
    ----------
    config : HeadConfig
        The settings; ``@register("head", ...)`` says which class of them the head takes.

    Examples
    --------
    >>> from circle.heads import NCMConfig
    >>> head = build_head(NCMConfig())
    >>> type(head).__name__, head.config.temperature
    ('NCM', 1.0)
    """

    def __init__(self, config: HeadConfig) -> None:
        self.config = config

    @abstractmethod
    def materialise(self, statistics: Statistics) -> Scores:
        """The classifier in closed form. The same statistics give the same classifier."""


def build_head(config: Config) -> Head:
    """The registered head that a config describes."""
    return entry("head", config.name).part(config)
