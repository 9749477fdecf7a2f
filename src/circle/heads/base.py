"""What every head is: a pure function from statistics to scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from circle.config import Config, option
from circle.errors import CircleError
from circle.heads.scores import Scores
from circle.registry import entry
from circle.statistics.parts import parts_named

if TYPE_CHECKING:
    from circle.statistics import Statistics


@dataclass(frozen=True)
class HeadConfig(Config):
    """Settings that every head has.

    Features are positions on the extractor's calibrated grid, for every head: origin and unit of each feature are
    its mean and an eighth of its deviation over synthetic noise. For heads that care about the origin (cosine,
    ridge without intercept) or about units (Euclidean, anything with a ridge) that is what z means.
    """

    #: Names of the parts (:mod:`circle.statistics.parts`) that the head needs besides those that are always kept.
    parts: ClassVar[tuple[str, ...]] = ()

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

    def numbers(self, classes: int, size: int) -> int:
        """Learned numbers in the materialised head, biases aside."""
        return classes * size

    def candidates(self) -> dict[str, tuple[float, ...]]:
        """Settings that decide accuracy, with values worth trying on a validation split."""
        return {}

    @classmethod
    def temperatures(cls) -> tuple[float, ...]:
        """Temperatures worth trying on a validation split."""
        return (0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class RidgeConfig(HeadConfig):
    """Settings of heads that add a ridge to the diagonal of a matrix."""

    ridge: float = option(0.01, "lambda, added to the diagonal of the matrix that is solved")
    ridge_rule: Literal["relative", "absolute", "shrinkage"] = option(
        "relative", "lambda is a multiple of the mean diagonal, a number of its own, or (SLDA) falls with samples"
    )
    #: Whether the rule ``shrinkage`` is known to the head.
    follows_samples: ClassVar[bool] = False

    def check(self) -> None:
        super().check()
        self.require(self.ridge >= 0, "ridge", "zero or a positive number")
        self.require(
            self.follows_samples or self.ridge_rule != "shrinkage", "ridge_rule", "relative or absolute for this head"
        )

    def added(self, mean_diagonal: float) -> float:
        """What is added to a diagonal with this mean."""
        if mean_diagonal <= 0.0:
            # No scatter yet (one sample per class, or constant features): the identity, the nearest mean.
            return max(1.0, self.ridge)
        return self.ridge * (1.0 if self.ridge_rule == "absolute" else mean_diagonal)

    def candidates(self) -> dict[str, tuple[float, ...]]:
        if self.ridge_rule == "shrinkage":
            return {"ridge": (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)}
        return {"ridge": (1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)}


class Head(ABC):
    """A registered head. It knows only observed classes, in the order of ``statistics.classes``."""

    def __init__(self, config: HeadConfig) -> None:
        self.config = config

    @abstractmethod
    def materialise(self, statistics: Statistics) -> Scores:
        """Closed form of the classifier. The same statistics give the same classifier."""


def build_head(config: Config) -> Head:
    """The registered head that a config describes."""
    return entry("head", config.name).part(config)
