"""From a map to a vector: mean over a grid of regions, and the signed power."""

from __future__ import annotations

import torch
from torch import Tensor


def grid_matrix(height: int, width: int, grid: int) -> Tensor:
    """A [g g, H W] that averages a flattened map over a g x g grid of regions.

    Region i of an axis of length L runs from floor(i L / g) to ceil((i + 1) L / g), so that every map size works:
    regions share border cells where g does not divide L, and repeat cells where L < g.
    """
    return torch.kron(_axis_matrix(height, grid), _axis_matrix(width, grid))


def _axis_matrix(length: int, grid: int) -> Tensor:
    matrix = torch.zeros(grid, length)
    for region in range(grid):
        start, stop = region * length // grid, -((-(region + 1) * length) // grid)
        matrix[region, start:stop] = 1.0 / (stop - start)
    return matrix


def pool(maps: Tensor, matrix: Tensor, moments: tuple[str, ...]) -> Tensor:
    """Maps [B, H, W, C] -> [B, len(moments) g g C]: means of the values and, if asked, of their squares."""
    flat = maps.reshape(len(maps), -1, maps.shape[-1])
    matrix = matrix.to(flat.dtype).expand(len(maps), -1, -1)
    parts = [torch.bmm(matrix, flat if moment == "mean" else flat.square()) for moment in moments]
    return torch.cat([part.flatten(1) for part in parts], 1)


def signed_power(values: Tensor, exponent: float) -> Tensor:
    """sign(v) |v|^p, which evens out heavy tails for p < 1."""
    if exponent == 1.0:
        return values
    size = values.abs().sqrt() if exponent == 0.5 else values.abs().pow(exponent)
    return torch.copysign(size, values)
