"""From a map to a vector: weighted means over windows, and the signed power."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from circle.config import option
from circle.extractors.projection import ProjectedConfig
from circle.machine import workspace


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
    power: float = option(0.5, "exponent p of the signed power sign(v) |v|^p applied to the vector")

    def check(self) -> None:
        super().check()
        self.require(self.grid > 0, "grid", "at least 1")
        self.require(self.window_spread > 0, "window_spread", "a positive number")
        self.require(0 <= self.window_margin <= 0.5, "window_margin", "at least 0, at most 0.5")
        self.require(
            len(self.moments) > 0 and len(set(self.moments)) == len(self.moments),
            "moments",
            "mean, square or both",
        )
        self.require(self.power > 0, "power", "a positive number")

    def window_matrix(self, height: int, width: int) -> Tensor:
        """A [g g, H W] that averages a flattened map over these windows."""
        if self.windows == "box":
            return grid_matrix(height, width, self.grid)
        sides = [_gaussian_matrix(side, self.grid, self.window_spread, self.window_margin) for side in (height, width)]
        return torch.kron(sides[0], sides[1])


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


def _gaussian_matrix(length: int, grid: int, spread: float, margin: float) -> Tensor:
    """Rows exp(-(p - c_i)^2 / (2 (spread L)^2)), each with sum 1; centres c_i evenly from margin to L - margin.

    A shift of the image by a few pixels changes such means little, where it moves whole edges from one box to the
    next. That is worth three points of accuracy on small photographs.
    """
    places = torch.arange(length, dtype=torch.float64) + 0.5
    centres = torch.linspace(margin, 1.0 - margin, grid, dtype=torch.float64) * length
    if grid == 1:
        centres = torch.tensor([length / 2], dtype=torch.float64)
    weights = torch.exp(-((places - centres[:, None]) / (spread * length)).square() / 2)
    return (weights / weights.sum(1, keepdim=True)).to(torch.float32)


def pool(maps: Tensor, matrix: Tensor, moments: tuple[str, ...]) -> Tensor:
    """Maps [B, H, W, C] -> [B, len(moments) g g C]: means of the values and, if asked, of their squares."""
    flat = maps.reshape(len(maps), -1, maps.shape[-1])
    matrix = matrix.to(flat.dtype).expand(len(maps), -1, -1)
    parts = {"mean": torch.bmm(matrix, flat)} if "mean" in moments else {}
    if "square" in moments:
        parts["square"] = torch.bmm(matrix, flat.square())
    return torch.cat([parts[moment].flatten(1) for moment in moments], 1)


def pool_signs(maps: Tensor, windows: Tensor, moments: tuple[str, ...], into: Tensor) -> None:
    """Moments of the positive and of the negative part of maps [B, P, J], which are overwritten, into [2 m, B, G, J].

    Windows are [G, P]. Values are in the order of sign and moment.
    """
    positive = workspace.take("positive", tuple(maps.shape), maps)
    torch.clamp_min(maps, 0.0, out=positive)
    windows = windows.expand(len(maps), -1, -1)
    for sign, part in enumerate((positive, maps.clamp_max_(0.0))):
        results = dict(zip(moments, into[sign * len(moments) :], strict=False))
        if "mean" in moments:
            product(windows, part, results["mean"])
            if sign:
                results["mean"].neg_()
        if "square" in moments:
            product(windows, part.square_(), results["square"])


def product(left: Tensor, right: Tensor, into: Tensor) -> None:
    """Products of matrices [B, ., .]; straight into memory that is contiguous, else PyTorch makes them one by one."""
    if into.is_contiguous():
        torch.bmm(left, right, out=into)
    else:
        into.copy_(torch.bmm(left, right))


def signed_power(values: Tensor, exponent: float) -> Tensor:
    """sign(v) |v|^p, which evens out heavy tails for p < 1."""
    if exponent == 1.0:
        return values
    size = values.abs().sqrt() if exponent == 0.5 else values.abs().pow(exponent)
    return torch.copysign(size, values)
