"""Gradient steps and their schedule, with a state that can be saved in the middle of a task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

# The functions behind torch.optim's classes: making one of those first imports PyTorch's compiler, which takes longer
# than a task of the demo.
from torch.optim.adam import adam
from torch.optim.sgd import sgd

WARMUP_START = 1e-3  # share of the learning rate that a warm-up begins with


@dataclass(frozen=True)
class Training:
    """How one fit goes: passes over the samples, and the size of the steps.

    The rate of epoch e (from 0) is ``learning_rate`` times ``decay`` for each of the ``milestones`` that are at most e,
    or times (1 + cos(pi e / epochs)) / 2 with ``cosine``. Before that it rises linearly for ``warmup_epochs``, after
    which e and the epochs are counted.
    Weight decay is coupled: it is added to the gradient, for Adam too.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    optimiser: Literal["sgd", "adam"] = "sgd"
    momentum: float = 0.9
    weight_decay: float = 0.0
    milestones: tuple[int, ...] = ()
    decay: float = 0.1
    cosine: bool = False
    warmup_epochs: int = 0
    drop_last: bool = False  # whether a last batch that is not full is left out
    clip: float | None = None  # largest norm of the gradient of all parameters together

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0."""
        if epoch < self.warmup_epochs:
            share = WARMUP_START + (1.0 - WARMUP_START) * epoch / self.warmup_epochs
            return self.learning_rate * share
        epoch, epochs = epoch - self.warmup_epochs, self.epochs - self.warmup_epochs
        if self.cosine:
            return self.learning_rate * (1.0 + math.cos(math.pi * epoch / epochs)) / 2.0
        return self.learning_rate * self.decay ** sum(epoch >= milestone for milestone in self.milestones)

    def batches(self, order: Tensor) -> list[Tensor]:
        """The samples of each step [N] -> [B] each. A single one that is left over joins the batch before it.

        Batch norm has no variance for it where maps have shrunk to one pixel.
        """
        parts = list(order.split(self.batch_size))
        if self.drop_last and len(parts) > 1 and len(parts[-1]) < self.batch_size:
            return parts[:-1]
        if len(parts) > 1 and len(parts[-1]) == 1:
            parts[-2:] = [torch.cat(parts[-2:])]
        return parts


class Optimiser:
    """SGD with momentum, v <- mu v + g, w <- w - rate v, or Adam; g includes weight decay times w.

    Parameters
    ----------
    parameters : sequence of Parameter
        What is moved.
    training : Training
        Rule of the steps.
    scales : sequence of float or None
        Factors of the rate for each parameter, for methods that let some learn more slowly.

    Attributes
    ----------
    first, second : list of Tensor
        Momentum, or the two moments of Adam, of each parameter.
    steps : int
        Steps taken.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], training: Training, scales: Sequence[float] | None = None
    ) -> None:
        self.parameters = list(parameters)
        self.training = training
        self.scales = list(scales) if scales is not None else [1.0] * len(self.parameters)
        self.first = [torch.zeros_like(parameter) for parameter in self.parameters]
        adaptive = training.optimiser == "adam"
        self.second = [torch.zeros_like(parameter) for parameter in self.parameters] if adaptive else []
        self.steps = 0

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rate: float) -> None:
        """Move all parameters, given their gradients."""
        gradients = list(gradients)
        if self.training.clip is not None:
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(each) for each in gradients]))
            share = float((self.training.clip / (norm + 1e-6)).clamp_max(1.0))
            gradients = [gradient * share for gradient in gradients]
        for scale in sorted(set(self.scales)):
            chosen = [index for index, each in enumerate(self.scales) if each == scale]
            self._step(chosen, gradients, scale * rate)
        self.steps += 1

    def _step(self, chosen: list[int], gradients: list[Tensor], rate: float) -> None:
        parameters: list[Tensor] = [self.parameters[index] for index in chosen]
        own = [gradients[index] for index in chosen]
        first = [self.first[index] for index in chosen]
        shared: dict[str, Any] = {"weight_decay": self.training.weight_decay, "maximize": False, "foreach": False}
        if self.training.optimiser == "adam":
            second = [self.second[index] for index in chosen]
            counts = [torch.tensor(float(self.steps)) for _ in chosen]
            adam(
                params=parameters,
                grads=own,
                exp_avgs=first,
                exp_avg_sqs=second,
                max_exp_avg_sqs=[],
                state_steps=counts,
                **shared,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=rate,
                eps=1e-8,
            )
        else:
            momenta: list[Tensor | None] = list(first)
            sgd(
                params=parameters,
                d_p_list=own,
                momentum_buffer_list=momenta,
                **shared,
                momentum=self.training.momentum,
                lr=rate,
                dampening=0.0,
                nesterov=False,
            )

    def state_dict(self) -> dict[str, Any]:
        named = {f"first{index}": value.clone() for index, value in enumerate(self.first)}
        named |= {f"second{index}": value.clone() for index, value in enumerate(self.second)}
        return {"steps": self.steps, "moments": named}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        for kind, values in (("first", self.first), ("second", self.second)):
            for index, value in enumerate(values):
                value.copy_(state["moments"][f"{kind}{index}"])
