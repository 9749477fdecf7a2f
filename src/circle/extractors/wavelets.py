"""Morlet wavelets and their low-pass filter, written down in the Fourier domain.

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
from functools import partial

import torch
from torch import Tensor

from circle import machine

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
