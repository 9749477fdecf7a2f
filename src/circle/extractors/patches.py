"""A map cut into patches, each of them one vector."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def patches(maps: Tensor, side: int) -> Tensor:
    """Non-overlapping side x side patches as vectors: [B, H, W, C] -> [B, ceil(H/side), ceil(W/side), side side C].

    Maps that the side does not divide are padded with zeros on all sides, as evenly as it goes.
    """
    batch, height, width, channels = maps.shape
    more_rows, more_columns = -height % side, -width % side
    if more_rows or more_columns:
        top, left = more_rows // 2, more_columns // 2
        maps = functional.pad(maps, (0, 0, left, more_columns - left, top, more_rows - top))
    rows, columns = maps.shape[1] // side, maps.shape[2] // side
    cut = maps.reshape(batch, rows, side, columns, side, channels).transpose(2, 3)
    return cut.reshape(batch, rows, columns, side * side * channels)
