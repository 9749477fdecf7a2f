"""The fixed int8 or int16 grid of an extractor, calibrated on synthetic noise: no data is ever looked at."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from circle.extractors.base import Extractor, ImageShape

NOISE_SEED = 20_240_521  # one noise for all members: the grid depends on the extractor alone
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
    """Grid with ``levels`` steps per standard deviation of each feature over synthetic noise (finer for 16 bits).

    Runs in float64 and snaps the scale to sixteenths of an octave and the offset to whole steps, so that machines
    whose arithmetic differs in the last bits agree on the grid, and their models merge.
    """
    precise = copy.deepcopy(extractor).to(torch.float64)
    features = precise.features(pink_noise(images, extractor.shape).to(extractor_device(extractor)))
    deviation = features.std(0)
    dead = deviation <= 1e-12
    step = torch.where(dead, torch.ones_like(deviation), deviation)
    step /= levels * FINER[extractor.bits]
    scale = torch.exp2((step.log2() * 16.0).round() / 16.0)
    offset = (features.mean(0) / scale).round() * scale
    return Grid(scale.to(torch.float32), offset.to(torch.float32), extractor.bits)


def extractor_device(extractor: Extractor) -> torch.device:
    return next(iter(extractor.buffers()), torch.zeros(0)).device
