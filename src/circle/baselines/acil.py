"""ACIL: ridge regression on random features of a frozen network, exact over the whole stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from circle import linalg
from circle.baselines.frozen import FrozenConfig, FrozenMethod
from circle.baselines.networks import GrowingHead, LinearHead
from circle.baselines.trainer import TaskData, count_parameters
from circle.config import option
from circle.extractors import ParameterCount
from circle.registry import register

SAMPLES_PER_PRODUCT = 1024


@dataclass(frozen=True)
class BufferConfig(FrozenConfig):
    """Settings of methods that regress on a random layer, the "buffer", on top of the frozen network."""

    published_names: ClassVar[dict[str, str]] = {
        "initial_batch_size": "batch_size",
        "scheduler_gamma": "decay",
    }

    initial_epochs: int = option(160, "passes over the first task's images")
    scheduler: Literal["multi_step", "cosine"] = option("multi_step", "how the step size falls in the first task")
    learning_rate_milestones: tuple[int, ...] = option((120, 140), "epochs at which multi_step lets it fall")
    buffer_size: int = option(8192, "D: random features that the regression sees")
    gamma: float = option(0.1, "ridge of the regression, added to the sum of products")

    def check(self) -> None:
        super().check()
        self.require(self.buffer_size >= 1, "buffer_size", "1 or more")
        self.require(self.gamma > 0, "gamma", "a positive number")


@dataclass(frozen=True)
class ACILConfig(BufferConfig):
    """Settings of :class:`ACIL`."""

    name: ClassVar[str] = "acil"
    inert: ClassVar[dict[str, str]] = {
        "incremental_batch_size": "the sums of products are the same for any batches",
        "backbone": "the attention modules of PyCIL's resnet18_cbam are built, but never called",
    }


BufferSettings = TypeVar("BufferSettings", bound=BufferConfig)


class BufferMethod(FrozenMethod[BufferSettings]):
    """What ACIL and DS-AL share: a network trained with a bias-free linear head that is then dropped, and
    v = P f with P [D, d] uniform on +-1/sqrt(d), in float64."""

    def __init__(self, config: BufferSettings | None = None, seed: int = 0) -> None:
        super().__init__(config, seed)
        self.projection = torch.zeros(0, 0)

    def new_head(self, size: int) -> GrowingHead:
        return LinearHead(size, bias=False)

    def begin(self, data: TaskData) -> None:
        if self.tasks == 0:
            bound = self.network.size**-0.5
            projection = torch.empty(self.config.buffer_size, self.network.size)
            self.projection = projection.uniform_(-bound, bound, generator=self.generator).to(self.device)

    def projected(self, features: Tensor) -> Tensor:
        """v = P f: [B, d] -> float64 [B, D]."""
        return (features @ self.projection.T).to(torch.float64)

    def one_hot(self, columns: Tensor) -> Tensor:
        """Targets float64 [B, len(classes)]."""
        return torch.nn.functional.one_hot(columns, len(self.classes)).to(self.device, torch.float64)

    def own_state(self) -> dict[str, Any]:
        return {"projection": self.projection.cpu().clone()}

    def load_own_state(self, state: dict[str, Any]) -> None:
        self.projection = state["projection"].to(self.device, copy=True)

    def kept_bytes(self, classes: int, size: int) -> int:
        """Products or inverses of two streams at most, a copy and its factor; the random layer."""
        width = self.config.buffer_size
        return 8 * 4 * width**2 + 8 * 4 * width * classes + 4 * width * size

    def parameter_count(self) -> ParameterCount:
        """Network and regression weights; the random layer is fixed, and the sums of products do not count."""
        learned = count_parameters(self.network) + self.config.buffer_size * len(self.classes)
        return ParameterCount(learnable=learned, fixed=self.projection.numel())


@register("method", ACILConfig)
class ACIL(BufferMethod[ACILConfig]):
    """With h = relu(P f) and one-hot targets y, after every task

        A = gamma I + sum_i h_i h_i^T        B = sum_i h_i y_i^T        W = A^{-1} B        score(x) = W^T h

    The published recursion R <- R - R H^T (I + H R H^T)^{-1} H R with R_0 = I / gamma is the same W (tested); sums
    are exact in any order and need one factorisation a task. The first task is learned like every other.

    >>> import numpy as np
    >>> from circle.method import Task
    >>> pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 8), dtype=np.uint8)
    >>> method = ACIL(ACILConfig(network="convnet", width=4, initial_epochs=1))
    >>> for labels in (["cat", "dog"], ["emu", "fox"]):
    ...     method.learn(Task(pixels, np.array(labels * 4)))
    >>> method.scores(pixels).shape
    torch.Size([8, 4])
    """

    config_type = ACILConfig

    def __init__(self, config: ACILConfig | None = None, seed: int = 0) -> None:
        super().__init__(config, seed)
        self.products = torch.zeros(0, 0, dtype=torch.float64)  # sum_i h_i h_i^T, [D, D]
        self.sums = torch.zeros(0, 0, dtype=torch.float64)  # B, [D, classes]
        self.weight = torch.zeros(0, 0, dtype=torch.float64)  # W, [D, classes]

    def update(self, data: TaskData, features: Tensor) -> None:
        size = self.config.buffer_size
        if not self.products.numel():
            self.products = torch.zeros(size, size, dtype=torch.float64, device=self.device)
            self.sums = torch.zeros(size, 0, dtype=torch.float64, device=self.device)
        self.sums = torch.cat([self.sums, self.sums.new_zeros(size, len(self.classes) - self.sums.shape[1])], 1)
        for batch, columns in zip(
            features.split(SAMPLES_PER_PRODUCT), data.columns.split(SAMPLES_PER_PRODUCT), strict=True
        ):
            hidden = self.projected(batch).relu_()
            self.products.addmm_(hidden.T, hidden)
            self.sums.addmm_(hidden.T, self.one_hot(columns))
        self._solve()

    def _solve(self) -> None:
        regular = self.products.clone()
        regular.diagonal().add_(self.config.gamma)
        self.weight = linalg.cholesky(regular).solve(self.sums)

    def scores_of(self, features: Tensor) -> Tensor:
        return self.projected(features).relu_() @ self.weight

    def own_state(self) -> dict[str, Any]:
        return {**super().own_state(), "products": self.products.cpu().clone(), "sums": self.sums.cpu().clone()}

    def load_own_state(self, state: dict[str, Any]) -> None:
        super().load_own_state(state)
        # Copies: sums grow in place, and tensors straight from a file lie at addresses where products add up otherwise.
        self.products = state["products"].to(self.device, copy=True)
        self.sums = state["sums"].to(self.device, copy=True)
        if self.products.numel():
            self._solve()
