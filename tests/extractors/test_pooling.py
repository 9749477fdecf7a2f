"""Grids of regions at any map size."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from circle.extractors import LocalContrastConfig
from circle.extractors.pooling import grid_matrix, pool, signed_power


@pytest.mark.parametrize(("height", "width", "grid"), [(8, 8, 2), (16, 16, 3), (7, 12, 4), (2, 3, 4), (1, 1, 3)])
def test_equals_adaptive_average_pooling(height: int, width: int, grid: int) -> None:
    maps = torch.rand(2, height, width, 5, generator=torch.Generator().manual_seed(0))
    found = pool(maps, grid_matrix(height, width, grid), ("mean",)).view(2, grid, grid, 5)
    expected = functional.adaptive_avg_pool2d(maps.permute(0, 3, 1, 2), grid).permute(0, 2, 3, 1)
    assert torch.allclose(found, expected, atol=1e-6)


def test_signed_power() -> None:
    values = torch.tensor([-4.0, 0.0, 9.0])
    assert signed_power(values, 0.5).tolist() == [-2.0, 0.0, 3.0]
    assert signed_power(values, 2.0).tolist() == [-16.0, 0.0, 81.0]
    assert signed_power(values, 1.0) is values


@pytest.mark.parametrize(("height", "width"), [(8, 8), (7, 12), (1, 1)])
def test_gaussian_windows(height: int, width: int) -> None:
    config = LocalContrastConfig(grid=3, window_spread=0.2, window_margin=0.25)
    matrix = config.window_matrix(height, width).view(3, 3, height, width)
    assert torch.allclose(matrix.sum((2, 3)), torch.ones(3, 3))
    # By the formula, one window: the second row, third column.
    rows, columns = (torch.arange(height) + 0.5) / height, (torch.arange(width) + 0.5) / width
    bell = torch.exp(-((rows - 0.5) ** 2) / 0.08)[:, None] * torch.exp(-((columns - 0.75) ** 2) / 0.08)
    assert torch.allclose(matrix[1, 2], bell / bell.sum(), atol=1e-6)
    assert torch.allclose(matrix.flip(1).flip(3), matrix, atol=1e-6), "left and right are treated alike"


def test_a_single_window_is_in_the_middle() -> None:
    matrix = LocalContrastConfig(grid=1).window_matrix(5, 5).view(5, 5)
    assert int(matrix.argmax()) == 12
