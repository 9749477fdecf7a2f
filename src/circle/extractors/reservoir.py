"""One BiRC2D layer in exact integers: four fixed reservoirs that scan a map of vectors in four directions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from circle.config import option
from circle.extractors.base import frozen
from circle.extractors.integers import exact_type, tensor
from circle.extractors.projection import ProjectedConfig
from circle.runtime import birc2d as specification
from circle.runtime.birc2d import DIRECTIONS


@dataclass(frozen=True)
class ReservoirConfig(ProjectedConfig):
    """Settings of the recurrence h_t = (1 - a) h_{t-1} + a f(W_in x_t + W h_{t-1}) of every reservoir."""

    leak: float = option(0.8, "a in h_t = (1 - a) h_{t-1} + a f(W_in x_t + W h_{t-1})")
    sparsity: float = option(0.9, "share of zeros in W")
    radius: float = option(0.9, "spectral radius of W")

    def check(self) -> None:
        super().check()
        self.require(0 < self.leak <= 1, "leak", "above 0, at most 1")
        self.require(0 <= self.sparsity < 1, "sparsity", "at least 0, below 1")
        self.require(self.radius >= 0, "radius", "zero or a positive number")


class ReservoirLayer(nn.Module):
    """Maps [B, H, W, inputs] to [B, H, W, 4 width], in integers.

    Each direction d has its own W_in and W and runs along every row or column:

        h_t = (1 - a) h_{t-1} + a leaky_relu(W_in x_t + W h_{t-1}),    h_0 = 0

    The directions are left to right, right to left, top to bottom, bottom to top; the four states at a location
    are concatenated. W is sparse and rescaled to the spectral radius. States have 256 levels to a deviation and are
    rounded after the sum, the leaky ReLU and the leak, whose factors are fractions with a power of two below.
    """

    weight_in: Tensor  # [inputs, 4 width], in levels of states
    recurrent: Tensor  # [4, width, width], transposed

    def __init__(
        self, drawn: specification.Reservoir, config: ReservoirConfig, *, slope: float, largest_input: int
    ) -> None:
        super().__init__()
        self.width = drawn.recurrent.shape[1]
        self.slope = specification.fraction(slope, specification.SLOPE_BITS) * 2.0**-specification.SLOPE_BITS
        self.leak = specification.fraction(config.leak, specification.LEAK_BITS) * 2.0**-specification.LEAK_BITS
        # As many as were drawn, though a few of the recurrent ones are rounded to zero.
        self.fixed = drawn.inputs.size + DIRECTIONS * (self.width**2 - round(config.sparsity * self.width**2))
        # Sums are whole multiples of the finer of the two units.
        unit = max(drawn.input_shift, specification.RECURRENT_BITS)
        largest = int(np.abs(drawn.inputs).sum(1).max()) * largest_input * 2 ** (unit - drawn.input_shift)
        recurrent = int(np.abs(drawn.recurrent).sum(2).max()) * specification.STATE_LIMIT
        dtype = exact_type(largest + recurrent * 2 ** (unit - specification.RECURRENT_BITS))
        frozen(self, "weight_in", tensor(drawn.inputs.T, dtype) * 2.0**-drawn.input_shift)
        frozen(
            self, "recurrent", tensor(drawn.recurrent.transpose(0, 2, 1), dtype) * 2.0**-specification.RECURRENT_BITS
        )

    def forward(self, maps: Tensor) -> Tensor:
        """[B, H, W, inputs] -> [B, H, W, 4 width]."""
        batch, height, width, inputs = maps.shape
        # One product serves the inputs of all four directions.
        drive = maps.reshape(-1, inputs).to(self.weight_in.dtype) @ self.weight_in
        drive = drive.view(batch, height, width, DIRECTIONS, self.width)
        rows, columns = drive[..., :2, :], drive[..., 2:, :].transpose(1, 2)
        if height == width:
            self._scan([rows, columns], self.recurrent)
        else:
            self._scan([rows], self.recurrent[:2])
            self._scan([columns], self.recurrent[2:])
        return drive.view(batch, height, width, DIRECTIONS * self.width).to(torch.float32)

    def _scan(self, drives: list[Tensor], recurrent: Tensor) -> None:
        """Replace the drives [B, lines, steps, 2, width] by the states, going both ways along the steps.

        A step copies its inputs to a work space small enough for the cache, where one batched product and the
        activation take place; the states return to where the inputs came from.
        """
        batch, lines, steps = drives[0].shape[:3]
        current = drives[0].new_empty(len(recurrent), batch * lines, self.width)
        state = torch.zeros_like(current)
        by_direction = current.view(len(recurrent), batch, lines, self.width)
        state_by_direction = state.view(len(recurrent), batch, lines, self.width)
        limit = float(specification.STATE_LIMIT)
        for step in range(steps):
            places = [drive[:, :, at, way] for drive in drives for way, at in enumerate((step, steps - 1 - step))]
            for direction, place in enumerate(places):
                by_direction[direction].copy_(place)
            if step:
                torch.baddbmm(current, state, recurrent, out=current)
            functional.leaky_relu_(current.round_(), self.slope).round_().clamp_(-limit, limit)
            if self.leak == 1.0:
                state.copy_(current)
            else:
                state.mul_(1.0 - self.leak).add_(current, alpha=self.leak).round_()
            for direction, place in enumerate(places):
                place.copy_(state_by_direction[direction])


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
