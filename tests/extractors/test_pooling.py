"""Grids of regions at any map size."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

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
