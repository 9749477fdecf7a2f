"""What a trained method holds while it learns a task: its images, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from circle import machine


@dataclass
class TaskData:
    """A task in memory: pixels uint8 [N, C, H, W], columns of ``scores`` int64 [N], and classes known before it."""

    pixels: Tensor
    columns: Tensor
    classes_before: int

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def present(self) -> Tensor:
        """The columns of this task's classes, ascending, [C_t]."""
        return self.columns.unique()

    @property
    def local(self) -> Tensor:
        """Targets [N] counted among this task's classes: y - K_t where all of them are new."""
        return torch.searchsorted(self.present, self.columns)


@dataclass
class Pending:
    """A task that was begun and not ended: its size, the stages that are done, and the place within a fit."""

    images: int
    classes_before: int
    stage: int = 0
    fit: dict[str, Any] | None = None  # epoch, step, order of the samples and, when loaded, the optimiser
    extra: dict[str, Tensor] | None = None  # weights of the task's own modules, when loaded


def channels_first(images: np.ndarray) -> Tensor:
    """uint8 [N, H, W] or [N, H, W, C] to uint8 [N, C, H, W]."""
    pixels = torch.from_numpy(np.ascontiguousarray(images if images.ndim == 4 else images[..., None]))
    pixels = pixels.permute(0, 3, 1, 2)
    # Into fresh memory: an axis of one channel may keep odd strides, from which PyTorch chooses other kernels.
    return torch.empty(pixels.shape, dtype=pixels.dtype).copy_(pixels)


def one_thread(job: Callable[[], None]) -> None:
    """Run a job of many small operations: these are no faster on two threads, and slow where another program runs."""
    machine.run_jobs([job])


def copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a module's state, on the CPU and independent of the module."""
    return {name: value.detach().cpu().clone() for name, value in state.items()}


def count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
