"""The filter bank against kymatio's, which draws its filters in space."""

from __future__ import annotations

import math

import pytest
import torch
from kymatio.scattering2d.filter_bank import filter_bank, morlet_2d, periodize_filter_fft

from circle.extractors.scattering import GAIN, frequencies, low_pass, low_pass_matrix, lowest, morlet, morlet_bank


@pytest.mark.parametrize(
    ("height", "width", "scales", "orientations"), [(48, 48, 3, 8), (32, 24, 2, 8), (24, 40, 3, 5), (6, 10, 1, 2)]
)
def test_equals_kymatio(height: int, width: int, scales: int, orientations: int) -> None:
    """kymatio sums in float32, so seven digits can agree."""
    expected = filter_bank(height, width, scales, orientations)
    bank = morlet_bank(height, width, scales, orientations)
    assert bank.shape == (scales, orientations, height, width)
    for wavelet in expected["psi"]:
        for level, values in enumerate(wavelet["levels"]):
            found = lowest(bank[wavelet["j"], wavelet["theta"]], level)
            assert torch.allclose(found, torch.from_numpy(values).double(), rtol=0, atol=5e-7)
    down, right = low_pass(height, scales), low_pass(width, scales)
    for level, values in enumerate(expected["phi"]["levels"]):
        found = torch.outer(lowest(down, level, axes=1), lowest(right, level, axes=1))
        assert torch.allclose(found, torch.from_numpy(values).double(), rtol=0, atol=5e-7)


def test_equals_kymatio_at_the_size_of_photographs() -> None:
    drawn = morlet_2d(256, 256, 0.8 * 4, math.pi / 8, 0.75 * math.pi / 4, 0.5)
    expected = torch.fft.fft2(torch.from_numpy(drawn).to(torch.complex128)).real
    assert torch.allclose(morlet(256, 256, 2, 2, 8), expected, rtol=0, atol=5e-7)


def test_wavelets_ignore_brightness() -> None:
    assert float(morlet_bank(24, 32, 3, 6)[..., 0, 0].abs().max()) < 1e-15
    assert float(low_pass(24, 3)[0]) == pytest.approx(math.sqrt(GAIN), rel=1e-12)


def test_frequencies_and_their_aliases() -> None:
    found = frequencies(4, 3) / (2 * math.pi)
    assert found.tolist() == [-1, -0.75, -1.5, -1.25, 0, 0.25, -0.5, -0.25, 1, 1.25, 0.5, 0.75]


def test_the_lowest_frequencies_keep_their_order() -> None:
    line = torch.tensor([0, 1, 2, 3, -4, -3, -2, -1])
    assert lowest(line, 1, axes=1).tolist() == [0, 1, -2, -1]
    assert lowest(line, 2, axes=1).tolist() == [0, -1]
    plane = line[:, None] * 10 + line
    assert lowest(plane, 2).tolist() == [[0, -1], [-10, -11]]
    filters = torch.rand(40, 48, generator=torch.Generator().manual_seed(0))
    assert torch.equal(lowest(filters, 2), torch.from_numpy(periodize_filter_fft(filters.numpy(), 2)))


@pytest.mark.parametrize("level", [0, 1, 2])
def test_the_low_pass_matrix_is_the_filter(level: int) -> None:
    signal = torch.rand(48 >> level, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    smooth = torch.fft.ifft(torch.fft.fft(signal) * lowest(low_pass(48, 3), level, axes=1)).real
    found = low_pass_matrix(48, level, 3) @ signal
    assert torch.allclose(found, smooth[:: 8 >> level][1:-1], rtol=1e-12)
