"""From a map to a vector: weighted means over windows, and the signed power."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from circle.config import option
from circle.extractors.projection import ProjectedConfig
from circle.runtime.arithmetic import windows_along


@dataclass(frozen=True)
class PooledConfig(ProjectedConfig):
    """Settings of extractors that average maps over windows."""

    grid: int = option(3, "windows per side for pooling")
    windows: Literal["box", "gaussian"] = option("box", "windows that tile the map, or smooth ones that overlap")
    window_spread: float = option(0.2, "deviation of a Gaussian window, as a share of the map's side")
    window_margin: float = option(0.25, "from the map's edge to the centre of the first Gaussian window, likewise")
    moments: tuple[Literal["mean", "square"], ...] = option(
        ("mean", "square"), "what is pooled: values, their squares, or both"
    )
    power: float = option(0.5, "exponent p of the signed power sign(v) |v|^p applied to the vector: a root, or none")

    def check(self) -> None:
        super().check()
        self.require(self.grid > 0, "grid", "at least 1")
        self.require(self.window_spread >= 0.01, "window_spread", "at least 0.01")
        self.require(0 <= self.window_margin <= 0.5, "window_margin", "at least 0, at most 0.5")
        self.require(
            len(self.moments) > 0 and len(set(self.moments)) == len(self.moments),
            "moments",
            "mean, square or both",
        )
        self.require(self.power in (0.5, 1.0), "power", "0.5, a square root, or 1")

    def windows_along(self, length: int) -> np.ndarray:
        """Windows int64 [g, length] along one side of a map, whose weights add up to 254."""
        return windows_along(length, self)


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
    parts = {"mean": torch.bmm(matrix, flat)} if "mean" in moments else {}
    if "square" in moments:
        parts["square"] = torch.bmm(matrix, flat.square())
    return torch.cat([parts[moment].flatten(1) for moment in moments], 1)


def signed_power(values: Tensor, exponent: float) -> Tensor:
    """sign(v) |v|^p, which evens out heavy tails for p < 1."""
    if exponent == 1.0:
        return values
    size = values.abs().sqrt() if exponent == 0.5 else values.abs().pow(exponent)
    return torch.copysign(size, values)
