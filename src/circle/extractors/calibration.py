"""The fixed int8 or int16 grid of an extractor, calibrated on synthetic noise: no data is ever looked at."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from circle.extractors.base import Extractor, ImageShape
from circle.runtime.noise import noise_images

INTEGERS = {8: torch.int8, 16: torch.int16}
#: Steps of the grid for one step of an 8 bit grid; 16 bits go to finer steps and to a range twice as wide.
FINER = {8: 1.0, 16: 128.0}


@dataclass(frozen=True)
class Grid:
    """q = clamp(round((z - offset) / scale), -L, L), value by value; scale and offset are float32 [size].

    L is 127 with 8 bits, 32,767 with 16. Rounding to 8 bits is noise of about a thousandth of a feature's variance
    over the noise images. A head that tells classes apart by small differences of large, similar features sees it: the
    strongly overlapping windows of ``local_contrast`` lost 1.7 points of accuracy.
    """

    scale: Tensor
    offset: Tensor
    bits: int = 8

    @property
    def dtype(self) -> torch.dtype:
        return INTEGERS[self.bits]

    def positions(self, features: Tensor) -> Tensor:
        """Features [B, size] in units of the grid, unrounded."""
        return (features - self.offset).div_(self.scale)

    def quantise(self, features: Tensor) -> Tensor:
        """Features [B, size] -> int8 or int16 [B, size]."""
        limit = torch.iinfo(self.dtype).max
        return self.positions(features).round_().clamp_(-limit, limit).to(self.dtype)


def calibration_images(count: int, shape: ImageShape) -> Tensor:
    """Synthetic images uint8 [count, C, H, W], the same for all extractors: the grid depends on the extractor alone."""
    return torch.from_numpy(noise_images(count, shape.channels, shape.height, shape.width))


@torch.inference_mode()
def calibrate(extractor: Extractor, images: int, levels: float) -> Grid:
    """Grid with ``levels`` steps per standard deviation of each feature over synthetic noise (finer for 16 bits).

    Values of portable extractors are integers, whose means and deviations come from exact sums. Others are computed in
    float64, and the scale is snapped to sixteenths of an octave and the offset to whole steps, so that machines whose
    arithmetic differs in the last bits mostly agree on the grid.
    """
    noise = calibration_images(images, extractor.shape).to(extractor_device(extractor))
    steps = levels * FINER[extractor.bits]
    if extractor.portable:
        return _exact_grid(extractor.features(noise).to(torch.int64).cpu(), steps, extractor.bits)
    features = copy.deepcopy(extractor).to(torch.float64).features(noise)
    deviation = features.std(0)
    dead = deviation <= 1e-12
    step = torch.where(dead, torch.ones_like(deviation), deviation) / steps
    scale = torch.exp2((step.log2() * 16.0).round() / 16.0)
    offset = (features.mean(0) / scale).round() * scale
    return Grid(scale.to(torch.float32), offset.to(torch.float32), extractor.bits)


def _exact_grid(values: Tensor, steps: float, bits: int) -> Grid:
    """The grid of integers [n, size]: the mean rounded half up, and sqrt(n sum v^2 - (sum v)^2) / (n steps).

    Whole numbers of Python's hold every sum, and its division is correctly rounded.
    """
    count, per_deviation = len(values), int(steps)
    sums, squares = values.sum(0).tolist(), values.square().sum(0).tolist()
    offset = [(2 * each + count) // (2 * count) for each in sums]
    scatters = [count * square - each * each for each, square in zip(sums, squares, strict=True)]
    scale = [math.isqrt(scatter << 32) / (count * per_deviation << 16) or 1.0 for scatter in scatters]
    return Grid(torch.tensor(scale, dtype=torch.float32), torch.tensor(offset, dtype=torch.float32), bits)


def extractor_device(extractor: Extractor) -> torch.device:
    return next(iter(extractor.buffers()), torch.zeros(0)).device
