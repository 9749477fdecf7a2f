"""Maps cut into patches."""

from __future__ import annotations

import torch

from circle.extractors.reservoir import patches


def test_patches_hold_their_pixels_row_by_row() -> None:
    maps = torch.arange(4.0 * 6 * 2).view(1, 4, 6, 2)
    cut = patches(maps, 2)
    assert cut.shape == (1, 2, 3, 8)
    assert torch.equal(cut[0, 1, 2], maps[0, 2:4, 4:6].reshape(-1))


def test_patches_pad_evenly() -> None:
    maps = torch.arange(1.0, 26.0).view(1, 5, 5, 1)
    cut = patches(maps, 4)
    assert cut.shape == (1, 2, 2, 16)
    assert float(cut.sum()) == float(maps.sum())
    assert cut[0, 0, 0].view(4, 4)[0].tolist() == [0, 0, 0, 0]  # three rows to add: one above, two below
    assert cut[0, 0, 0].view(4, 4)[1].tolist() == [0, 1, 2, 3]
