"""Tensors on disk, for what one process puts together from all and need not have room for."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


def mapped_in(folder: Path) -> Callable[[Sequence[int], torch.dtype], Tensor]:
    """Makes tensors, given their shape and dtype, that are mapped from files without a name in ``folder``.

    A file is gone when its tensor is, and when the process ends, however that ends.
    """

    def new(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        if not math.prod(shape):
            return torch.empty(*shape, dtype=dtype)  # nothing cannot be mapped
        with tempfile.TemporaryFile(dir=folder) as file:  # the mapping holds on to it
            return torch.from_numpy(np.memmap(file, str(dtype).removeprefix("torch."), "w+", shape=tuple(shape)))

    return new
