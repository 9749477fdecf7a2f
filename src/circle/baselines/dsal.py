"""DS-AL: ACIL with a second regression that learns what the first leaves over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from circle.baselines.acil import BufferConfig, BufferMethod
from circle.baselines.trainer import TaskData
from circle.config import option
from circle.extractors import ParameterCount
from circle.heads.ridge import RecursiveLeastSquares
from circle.registry import register


@dataclass(frozen=True)
class DSALConfig(BufferConfig):
    """Settings of :class:`DSAL`."""

    name: ClassVar[str] = "dsal"

    incremental_batch_size: int = option(256, "samples per step of the regressions; residuals follow each step")
    compensation_ratio: float = option(0.6, "weight of the second regression's scores")
    compensation_gamma: float = option(0.1, "ridge of the second regression")
    residuals: Literal["batch", "task"] = option(
        "batch", "left over after every batch, as published, or once the whole task is in, whatever the order"
    )

    def check(self) -> None:
        super().check()
        self.require(self.compensation_gamma > 0, "compensation_gamma", "a positive number")


@register("method", DSALConfig)
class DSAL(BufferMethod[DSALConfig]):
    """Two streams of recursive least squares on v = P f. For every batch of samples sorted by class:

        main:          regress Y on H = relu(V), which gives W
        compensation:  regress Y' on H' = tanh(V), Y' = Y - H W, columns of earlier tasks set to zero

        score(x) = W^T relu(v) + ratio W'^T tanh(v)

    Residuals are taken after each batch, so batch size and order have a say; with ``residuals = "task"`` the main
    stream first learns the whole task.

    >>> import numpy as np
    >>> from circle.method import Task
    >>> pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 8), dtype=np.uint8)
    >>> method = DSAL(DSALConfig(network="convnet", width=4, initial_epochs=1))
    >>> for labels in (["cat", "dog"], ["emu", "fox"]):
    ...     method.learn(Task(pixels, np.array(labels * 4)))
    >>> method.scores(pixels).shape
    torch.Size([8, 4])
    """

    config_type = DSALConfig

    def __init__(self, config: DSALConfig | None = None, seed: int = 0) -> None:
        super().__init__(config, seed)
        self.main = RecursiveLeastSquares(0, self.config.gamma)
        self.compensation = RecursiveLeastSquares(0, self.config.compensation_gamma)

    def begin(self, data: TaskData) -> None:
        super().begin(data)
        if self.tasks == 0:
            size = self.config.buffer_size
            self.main = RecursiveLeastSquares(size, self.config.gamma, self.device)
            self.compensation = RecursiveLeastSquares(size, self.config.compensation_gamma, self.device)

    def update(self, data: TaskData, features: Tensor) -> None:
        for stream in (self.main, self.compensation):
            stream.grow(len(self.classes))
        current = torch.zeros(len(self.classes), dtype=torch.float64, device=self.device)
        current[data.present] = 1.0
        order = data.columns.argsort(stable=True)
        steps = [
            (self.projected(features[batch]), self.one_hot(data.columns[batch]))
            for batch in order.split(self.config.incremental_batch_size)
        ]
        if self.config.residuals == "task":
            for values, targets in steps:
                self.main.update(values.relu(), targets)
        for values, targets in steps:
            hidden = values.relu()
            if self.config.residuals == "batch":
                self.main.update(hidden, targets)
            left_over = (targets - hidden @ self.main.weight) * current
            self.compensation.update(values.tanh(), left_over)

    def scores_of(self, features: Tensor) -> Tensor:
        values = self.projected(features)
        compensation = values.tanh() @ self.compensation.weight
        return values.relu_() @ self.main.weight + self.config.compensation_ratio * compensation

    def own_state(self) -> dict[str, Any]:
        streams = {"main": self.main, "compensation": self.compensation}
        return {
            **super().own_state(),
            **{
                name: {"inverse": stream.inverse.cpu().clone(), "weight": stream.weight.cpu().clone()}
                for name, stream in streams.items()
            },
        }

    def load_own_state(self, state: dict[str, Any]) -> None:
        super().load_own_state(state)
        for name, stream in (("main", self.main), ("compensation", self.compensation)):
            stream.inverse = state[name]["inverse"].to(self.device, copy=True)
            stream.weight = state[name]["weight"].to(self.device, copy=True)

    def parameter_count(self) -> ParameterCount:
        return super().parameter_count() + ParameterCount(learnable=self.compensation.weight.numel())
