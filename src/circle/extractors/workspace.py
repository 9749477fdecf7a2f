"""Memory that a thread uses again and again for maps that live for microseconds.

Fresh memory of a few megabytes comes from the system page by page, filled with zeros, and goes back right after: that
took longer than the arithmetic on it (measured). Every thread has its own buffers, so nothing is shared.
"""

from __future__ import annotations

import math
import threading

import torch
from torch import Tensor


class Workspace(threading.local):
    """Buffers by name, data type and device; each grows to the largest size that was asked for."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """An uninitialised tensor of this shape, and of ``like``'s type and place; the former one of the name ends."""
        count, key = math.prod(shape), (name, like.dtype, like.device)
        buffer = self._buffers.get(key)
        if buffer is None or len(buffer) < count:
            # A tensor that was made in inference mode could not be written to outside of it.
            with torch.inference_mode(False):
                buffer = self._buffers[key] = torch.empty(count, dtype=like.dtype, device=like.device)
        return buffer[:count].view(shape)


workspace = Workspace()
