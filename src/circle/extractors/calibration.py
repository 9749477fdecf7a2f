"""The fixed int8 grid of an extractor, calibrated on synthetic noise: no data is ever looked at."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from circle.extractors.base import Extractor, ImageShape

NOISE_SEED = 20_240_521  # one noise for all members: the grid depends on the extractor alone
LIMIT = 127


@dataclass(frozen=True)
class Grid:
    """q = clamp(round((z - offset) / scale), -127, 127), value by value; scale and offset are float32 [size]."""

    scale: Tensor
    offset: Tensor

    def positions(self, features: Tensor) -> Tensor:
        """Features [B, size] in units of the grid, unrounded."""
        return (features - self.offset).div_(self.scale)

    def quantise(self, features: Tensor) -> Tensor:
        """Features [B, size] -> int8 [B, size]."""
        return self.positions(features).round_().clamp_(-LIMIT, LIMIT).to(torch.int8)


def pink_noise(count: int, shape: ImageShape, seed: int = NOISE_SEED) -> Tensor:
    """Synthetic images [count, C, H, W] in [0, 1] whose amplitude falls as 1/f, as in natural images.

    White noise is divided by the frequency; brightness and contrast vary from image to image, and colours share
    most of their structure, as they do in photographs.
    """
    generator = torch.Generator().manual_seed(seed)

    def uniform(*size: int) -> Tensor:
        return torch.rand(*size, generator=generator, dtype=torch.float64) * 2.0 - 1.0

    rows = torch.fft.fftfreq(shape.height, dtype=torch.float64)[:, None]
    columns = torch.fft.rfftfreq(shape.width, dtype=torch.float64)[None, :]
    frequency = (rows.square() + columns.square()).sqrt()
    frequency[0, 0] = float("inf")  # the mean is drawn apart
    own = uniform(count, shape.channels, shape.height, shape.width)
    shared = uniform(count, 1, shape.height, shape.width)
    white = shared + 0.5 * own if shape.channels > 1 else shared
    pink = torch.fft.irfft2(torch.fft.rfft2(white) / frequency, s=(shape.height, shape.width))
    pink /= pink.std(dim=(1, 2, 3), keepdim=True).clamp_min(1e-12) if pink[0].numel() > 1 else 1.0
    contrast = 0.2 + 0.1 * uniform(count, 1, 1, 1)
    brightness = 0.5 + 0.25 * uniform(count, 1, 1, 1)
    return (brightness + contrast * pink).clamp_(0.0, 1.0)


@torch.inference_mode()
def calibrate(extractor: Extractor, images: int, levels: float) -> Grid:
    """Grid with ``levels`` steps per standard deviation of each feature over synthetic noise.

    Runs in float64 and snaps the scale to sixteenths of an octave and the offset to whole steps, so that machines
    whose arithmetic differs in the last bits agree on the grid, and their models merge.
    """
    precise = copy.deepcopy(extractor).to(torch.float64)
    features = precise.features(pink_noise(images, extractor.shape).to(extractor_device(extractor)))
    deviation = features.std(0)
    dead = deviation <= 1e-12
    step = torch.where(dead, torch.ones_like(deviation), deviation) / levels
    scale = torch.exp2((step.log2() * 16.0).round() / 16.0)
    offset = (features.mean(0) / scale).round() * scale
    return Grid(scale.to(torch.float32), offset.to(torch.float32))


def extractor_device(extractor: Extractor) -> torch.device:
    return next(iter(extractor.buffers()), torch.zeros(0)).device
