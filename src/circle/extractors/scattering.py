"""Wavelet scattering: what wavelets find, averaged. Nothing in it is random or trained.

The filters are Morlet wavelets and their low-pass filter, written down in the Fourier domain.

With g(omega; xi, sigma, slant) = exp(-sigma^2 / 2 (a^2 + b^2 / slant^2)), where a is the distance from omega to xi
along the wavelet's direction and b the distance across it:

- wavelet of scale j = 0 .. J-1: psi_j = g(omega; xi_j, sigma_j, 4/L) - beta g(omega; 0, sigma_j, 4/L), where
  sigma_j = 0.8 2^j, xi_j is 3/4 pi 2^-j long in one of L directions, and beta makes psi_j vanish at omega = 0;
- low-pass filter: phi_J = g(omega; 0, 0.8 2^(J-1), 1).

Pixels cannot tell frequencies apart that differ by 2 pi, so each filter is the sum over all such aliases. In space the
filters are symmetric up to conjugation, hence all these values are real.

The constants are those of kymatio (Andreux et al., JMLR 2020) and of the ScatNet toolbox before it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from circle import machine
from circle.config import option
from circle.errors import CircleError
from circle.extractors.base import ImageShape, frozen, tile_for
from circle.extractors.pooling import grid_matrix, signed_power
from circle.extractors.projection import ProjectedExtractor, StandardisedConfig
from circle.registry import register

WHOLE, AUTOMATIC = 0, -1  # values of ``grid`` that are no size
LONG = 10_000  # values; longer vectors are pooled if ``grid`` is automatic


@dataclass(frozen=True)
class ScatteringConfig(StandardisedConfig):
    """Settings of the scattering transform; the defaults choose by image size.

    ``scales = 0``: 3 scales for a shorter side of up to 32 pixels, 4 for up to 64, 5 beyond; fewer where 2^J would
    exceed that side. ``grid = -1``: the whole map if the vector then has at most 10,000 values, else means over 2 x 2
    regions, and if those are still too many, over the image.
    """

    name: ClassVar[str] = "scattering"

    scales: int = option(0, "J: scales of the wavelets; values are averaged over 2^J pixels; 0 = by image size")
    orientations: int = option(8, "L: directions of the wavelets of each scale")
    order: int = option(2, "how many wavelet transforms follow one another, 1 or 2")
    grid: int = option(AUTOMATIC, "regions per side for pooling; 0 = keep the whole map, -1 = by the vector's length")
    power: float = option(1.0, "exponent p of the signed power sign(v) |v|^p applied to the vector")

    def check(self) -> None:
        super().check()
        self.require(self.scales >= 0, "scales", "at least 1, or 0 to choose by image size")
        self.require(self.orientations > 0, "orientations", "at least 1")
        self.require(self.order in (1, 2), "order", "1 or 2")
        self.require(self.grid >= AUTOMATIC, "grid", "at least 1, 0 for the whole map or -1 to choose by length")
        self.require(self.power > 0, "power", "a positive number")

    def scales_for(self, shape: ImageShape) -> int:
        """J for images of this shape."""
        side = min(shape.height, shape.width)
        usual = 3 if side <= 32 else 4 if side <= 64 else 5
        scales = self.scales or max(1, min(usual, side.bit_length() - 1))
        if 2**scales > side:
            raise CircleError(
                f"scattering over {scales} scales needs images of at least {2**scales} x {2**scales} pixels, "
                f"got {shape.height} x {shape.width}"
            )
        return scales

    def paths(self, scales: int) -> int:
        """Maps of each colour channel: 1 + J L of orders 0 and 1, L^2 J (J - 1) / 2 of order 2."""
        pairs = self.orientations**2 * scales * (scales - 1) // 2 if self.order == 2 else 0
        return 1 + scales * self.orientations + pairs

    def grid_for(self, maps: int, height: int, width: int) -> int:
        """Regions per side for so many maps of height x width; 0 = no pooling."""
        if self.grid != AUTOMATIC:
            return self.grid
        if maps * height * width <= LONG:
            return WHOLE
        return 2 if min(height, width) >= 2 and maps * 4 <= LONG else 1


@register("extractor", ScatteringConfig)
class Scattering(ProjectedExtractor[ScatteringConfig]):
    """z = (x * phi, |x * psi_j| * phi, ||x * psi_j| * psi_k| * phi), j < k, for all directions and colour channels.

    1. x is mirrored at its borders to a size that 2^J divides, see :func:`mirror`;
    2. wavelet transforms and moduli, in the Fourier domain, each result subsampled as far as its scale allows;
    3. all maps are smoothed by phi, subsampled by 2^J and cut back to floor(H / 2^J) x floor(W / 2^J);
    4. mean over a grid of regions, then the signed power.

    The maps are those of kymatio's Scattering2D, in its order [channel, path, row, column]; the formula
    of the filters stands at the top of this file. Only a projection depends on the seed.

    >>> from circle.extractors import ImageShape
    >>> extractor = Scattering(ScatteringConfig(scales=2), ImageShape(3, 32, 32), seed=0)
    >>> extractor.features(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape == (2, extractor.size)
    True
    """

    rows: Tensor  # [M], where each padded row comes from
    columns: Tensor  # [N]
    regions: Tensor  # [g g, h w]

    def __init__(self, config: ScatteringConfig, shape: ImageShape, seed: int) -> None:
        super().__init__(config, shape, seed)
        scales = self.scales = config.scales_for(shape)
        frozen(self, "rows", mirror(shape.height, scales))
        frozen(self, "columns", mirror(shape.width, scales))
        padded = len(self.rows), len(self.columns)
        self.low_passes = nn.ModuleList(LowPass(*padded, level, scales) for level in range(scales))
        self.wavelets = nn.ModuleDict()
        for scale, filters in enumerate(morlet_bank(*padded, scales, config.orientations)):
            for level in range(max(1, scale) if config.order == 2 else 1):
                self.wavelets[f"{level}_{scale}"] = Wavelets(lowest(filters, level), 2 ** (scale - level))
        height, width = shape.height >> scales, shape.width >> scales
        maps = shape.channels * config.paths(scales)
        self.grid = config.grid_for(maps, height, width)
        if self.grid != WHOLE:
            frozen(self, "regions", grid_matrix(height, width, self.grid))
        # The smallest product is that of order 0; with fewer than eight rows it may take another kernel.
        self.minimum_batch = max(2, -(-8 // (shape.channels * height)))
        widest = 2 * shape.channels * config.orientations * padded[0] * padded[1]  # complex, of scale 0
        if config.order == 2 and scales > 1:
            widest = max(widest, widest * config.orientations // 4)  # of scales 0 and 1
        self.tile = tile_for(widest, least=self.minimum_batch)
        fixed = sum(layer.fixed for layer in self.modules() if isinstance(layer, (Wavelets, LowPass)))
        self.finish(
            maps * (height * width if self.grid == WHOLE else self.grid**2),
            fixed,
            torch.Generator().manual_seed(seed),
        )
        self.seeded = self.projection is not None

    def vector(self, images: Tensor) -> Tensor:
        maps = self.maps(images.index_select(2, self.rows).index_select(3, self.columns))
        if self.grid != WHOLE:
            maps = multiply(maps.flatten(3), self.regions)
        return signed_power(maps.flatten(1), self.config.power)

    def maps(self, images: Tensor) -> Tensor:
        """Padded images [B, C, M, N] -> averaged maps [B, C, paths, h, w]."""
        zeroth = self.low_passes[0](images.unsqueeze(2))
        first, second = [], []
        spectrum = torch.fft.fft2(images)
        for fine in range(self.scales):
            found = self.wavelets[f"0_{fine}"](spectrum)  # [B, C, L, m, n]
            first.append(self.low_passes[fine](found))
            if self.config.order == 2 and fine + 1 < self.scales:
                inner = torch.fft.fft2(found)
                pairs = [
                    self.low_passes[coarse](self.wavelets[f"{fine}_{coarse}"](inner))  # [B, C, L, L, h, w]
                    for coarse in range(fine + 1, self.scales)
                ]
                second.append(torch.cat(pairs, 3).flatten(2, 3))
        return torch.cat([zeroth, *first, *second], 2)


class Wavelets(nn.Module):
    """|x * psi| for all directions of one scale, subsampled by s: spectrum of x -> real maps.

    Subsampling folds a spectrum: cut into s x s blocks, their sum remains. So products are formed and added block by
    block; neither the full product nor its inverse transform is ever made.
    """

    filters: Tensor  # [s s, L, 2 m n], each value twice: for a real and for an imaginary part

    def __init__(self, filters: Tensor, step: int) -> None:
        super().__init__()
        self.step, self.height, self.width = step, filters.shape[-2] // step, filters.shape[-1] // step
        blocks = self.blocks(filters.div(step**2).repeat_interleave(2, -1))
        frozen(self, "filters", blocks.transpose(0, 1).to(torch.float32).contiguous())

    @property
    def fixed(self) -> int:
        """Numbers in the filters."""
        return self.filters.numel() // 2

    def blocks(self, spectra: Tensor) -> Tensor:
        """[..., M, 2 N] -> [..., s s, 2 m n]."""
        cut = spectra.unflatten(-1, (self.step, 2 * self.width)).unflatten(-3, (self.step, self.height))
        return cut.transpose(-2, -3).flatten(-2).flatten(-3, -2)

    def forward(self, spectrum: Tensor) -> Tensor:
        """[..., M, N] complex -> [..., L, m, n] real."""
        blocks = self.blocks(torch.view_as_real(spectrum).flatten(-2)).unsqueeze(-2)
        total = blocks[..., 0, :, :] * self.filters[0]
        for block in range(1, self.step**2):
            total.addcmul_(blocks[..., block, :, :], self.filters[block])
        total = torch.view_as_complex(total.unflatten(-1, (self.height, self.width, 2)))
        # abs() takes three times as long, to guard against an overflow that pixels cannot cause.
        squares = torch.view_as_real(torch.fft.ifft2(total)).square_()
        return torch.add(squares[..., 0], squares[..., 1]).sqrt_()


class LowPass(nn.Module):
    """x * phi, subsampled by what is left to 2^J and cut back to the part inside the image."""

    down: Tensor  # [h, m]
    across: Tensor  # [w, n]

    def __init__(self, height: int, width: int, level: int, scales: int) -> None:
        super().__init__()
        frozen(self, "down", low_pass_matrix(height, level, scales).to(torch.float32))
        frozen(self, "across", low_pass_matrix(width, level, scales).to(torch.float32))

    @property
    def fixed(self) -> int:
        """Numbers in the matrices."""
        return self.down.numel() + self.across.numel()

    def forward(self, maps: Tensor) -> Tensor:
        """[..., m, n] -> [..., h, w]."""
        return multiply(self.down @ maps, self.across)


def multiply(maps: Tensor, matrix: Tensor) -> Tensor:
    """The last axis of maps through a matrix, [..., n] x [k, n] -> [..., k], the same bits for any number of maps.

    A matrix of one row would take kernels that add in an order of their own (measured), so it is used twice.
    """
    if len(matrix) == 1:
        return (maps @ matrix.T.repeat(1, 2))[..., :1]
    return maps @ matrix.T


def mirror(length: int, scales: int) -> Tensor:
    """Where the samples of a padded axis come from: 3 2 1 [0 1 2 3 4] 3 2 1, the border itself is not repeated.

    The padded length is 2^J (floor(length / 2^J) + 2). Half of what is added lies before, half after; of an odd number
    the larger part lies after. At one sample per 2^J the first and the last are dropped again.
    """
    padded = ((length >> scales) + 2) << scales
    before = (padded - length) // 2
    period = 2 * (length - 1)
    index = torch.arange(-before, padded - before) % period
    return torch.minimum(index, period - index)


GAIN = math.pi / 3.1415  # kymatio's pi has five digits; with this factor the two agree to rounding
NEGLIGIBLE = 8.0  # standard deviations from the centre, where a Gaussian is 1e-14


def morlet_bank(height: int, width: int, scales: int, orientations: int) -> Tensor:
    """All wavelets for images of height x width, [J, L, height, width] in float64 and FFT order."""
    bank = torch.empty(scales, orientations, height, width, dtype=torch.float64)

    def draw(scale: int, turn: int) -> None:
        bank[scale, turn] = morlet(height, width, scale, turn, orientations)

    machine.run_jobs([partial(draw, scale, turn) for scale in range(scales) for turn in range(orientations)])
    return bank


def morlet(height: int, width: int, scale: int, turn: int, orientations: int) -> Tensor:
    """Wavelet psi of a scale and a direction, [height, width]; directions run down from just below pi / 2."""
    sigma, slant = 0.8 * 2**scale, 4.0 / orientations
    angle = (int(orientations / 2 - 1) - turn) * math.pi / orientations
    wave = gabor(height, width, sigma, angle, centre=0.75 * math.pi / 2**scale, slant=slant)
    envelope = gabor(height, width, sigma, angle, centre=0.0, slant=slant)
    return wave - wave[0, 0] / envelope[0, 0] * envelope


def gabor(height: int, width: int, sigma: float, angle: float, centre: float, slant: float) -> Tensor:
    """g with its aliases, [height, width]."""
    turns = 2 * reach(max(1.0, slant) / sigma, centre) + 1
    down, right = frequencies(height, turns)[:, None], frequencies(width, turns)
    along = down * math.cos(angle) - centre + right * math.sin(angle)
    across = (right * math.cos(angle) - down * math.sin(angle)) / slant
    values = along.square_().add_(across.square_()).mul_(-0.5 * sigma**2).exp_()
    return values.view(turns, height, turns, width).sum(0).sum(1).mul_(GAIN)


def low_pass(length: int, scales: int) -> Tensor:
    """One axis of phi_J with its aliases, [length]; the filter is the product of its two axes."""
    sigma = 0.8 * 2 ** (scales - 1)
    turns = 2 * reach(1.0 / sigma) + 1
    values = frequencies(length, turns).mul_(sigma).square_().mul_(-0.5).exp_()
    return values.view(turns, length).sum(0).mul_(math.sqrt(GAIN))


def low_pass_matrix(length: int, level: int, scales: int) -> Tensor:
    """One axis of phi_J as a matrix that smooths, subsamples and drops the first and the last sample.

    ``length`` is the axis at full size. The matrix takes it subsampled by 2^level and leaves it subsampled by 2^J:
    [length / 2^J - 2, length / 2^level]. Two of them, one per axis, take the place of two Fourier transforms.
    """
    samples, step = length >> level, 1 << (scales - level)
    kernel = torch.fft.ifft(lowest(low_pass(length, scales), level, axes=1)).real
    centres = torch.arange(1, samples // step - 1) * step
    return kernel[(centres[:, None] - torch.arange(samples)) % samples]


def lowest(filters: Tensor, level: int, axes: int = 2) -> Tensor:
    """What images subsampled by 2^level see of filters [..., M, N]: the lowest M / 2^level by N / 2^level frequencies.

    Of the two highest, +pi and -pi of the smaller image, the negative one is kept.
    """
    for axis in range(-axes, 0):
        length = filters.shape[axis]
        half = length >> (level + 1)
        filters = torch.cat([filters.narrow(axis, 0, half), filters.narrow(axis, length - half, half)], axis)
    return filters


def reach(deviation: float, centre: float = 0.0) -> int:
    """How many times 2 pi away a Gaussian around ``centre`` can be and still be felt in [-pi, pi]."""
    return math.ceil((NEGLIGIBLE * deviation + math.pi + centre) / (2.0 * math.pi)) - 1


def frequencies(length: int, turns: int) -> Tensor:
    """The angular frequencies of an axis in FFT order, and their aliases around them: [turns length], turns odd."""
    base = torch.fft.fftfreq(length, dtype=torch.float64)
    aliases = torch.arange(turns, dtype=torch.float64) - turns // 2
    return (aliases[:, None] + base).flatten() * (2.0 * math.pi)
