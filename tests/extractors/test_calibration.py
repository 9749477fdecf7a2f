"""The grid and the noise it is calibrated on."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from circle.extractors import BiRC2DConfig, Grid, ImageShape, VGG13Config, build_extractor, calibrate
from circle.extractors.calibration import calibration_images
from circle.runtime.arithmetic import on_grid
from circle.runtime.noise import noise_images

CONFIG = BiRC2DConfig(stem_channels=(4,), stem_kernels=(3,), patch_sizes=(4,), width=4)


def test_noise_is_pink() -> None:
    """Its amplitude falls as 1/f: the mean power on rings of 1 to 24 waves across the image."""
    noise = noise_images(128, 1, 64, 64)[:, 0].astype(np.float64)
    power = np.square(np.abs(np.fft.fft2(noise)).mean(0))
    waves = np.fft.fftfreq(64) * 64
    rings, count = np.rint(np.hypot(waves[:, None], waves)).astype(int), np.arange(1, 25)
    amplitude = np.sqrt([power[rings == each].mean() for each in count])
    slope = np.polyfit(np.log(count), np.log(amplitude), 1)[0]
    assert slope == pytest.approx(-1.0, abs=0.15)


def test_noise_looks_like_photographs() -> None:
    noise = calibration_images(128, ImageShape(3, 32, 32)).double()
    brightness, contrast = noise.mean((1, 2, 3)), noise.std((1, 2, 3))
    assert 110 < float(brightness.mean()) < 145
    assert float(brightness.std()) > 30
    assert 30 < float(contrast.mean()) < 60
    assert float(contrast.max()) > 2 * float(contrast.min())
    colours = torch.corrcoef(noise.sub(noise.mean((2, 3), keepdim=True)).transpose(0, 1).flatten(1))
    assert 0.6 < float(colours[0, 1]) < 0.95, "colours share most of their structure, and not all of it"
    clipped = ((noise == 0) | (noise == 255)).double().mean()
    assert float(clipped) < 0.1


def test_noise_never_changes() -> None:
    """A model file keeps its grid, but models from two sites merge only if both found the same one."""
    assert torch.equal(calibration_images(3, ImageShape(3, 8, 8)), calibration_images(3, ImageShape(3, 8, 8)))
    digests = [hashlib.sha256(noise_images(*shape).tobytes()).hexdigest()[:16] for shape in NOISE_DIGESTS]
    assert digests == list(NOISE_DIGESTS.values())


NOISE_DIGESTS = {
    (4, 3, 8, 8): "8c772d51edd851c9",
    (1, 1, 17, 23): "0721a9428a6b4fd4",
    (2, 3, 64, 64): "0e302a48e333411b",
}


def test_the_grid_of_integers_is_exact() -> None:
    """The mean, rounded half up, and a 64th of the deviation of the values, in float32."""
    extractor = build_extractor(CONFIG.replace(bits=16), ImageShape(3, 16, 16), 0)
    grid = calibrate(extractor, 32, 8.0)
    values = extractor.features(calibration_images(32, extractor.shape)).double().numpy()
    assert np.array_equal(grid.offset.numpy(), np.floor(values.mean(0) + 0.5))
    np.testing.assert_allclose(grid.scale.numpy(), values.std(0) / (8 * 128), rtol=1e-6)
    again = calibrate(extractor, 32, 8.0)
    assert torch.equal(again.scale, grid.scale)


def test_the_grid_of_an_extractor_that_is_not_portable_survives_rounding_differences() -> None:
    extractor = build_extractor(VGG13Config(base_channels=4), ImageShape(3, 16, 16), 0)
    assert not extractor.portable
    reference = calibrate(extractor, 32, 8.0)
    with torch.no_grad():
        for buffer in extractor.buffers():
            buffer.mul_(1.0 + 1e-9 * torch.rand_like(buffer))
    again = calibrate(extractor, 32, 8.0)
    assert torch.equal(again.scale, reference.scale)
    assert torch.equal(again.offset, reference.offset)


def test_quantise_rounds_and_clips() -> None:
    grid = Grid(torch.tensor([0.5, 2.0]), torch.tensor([1.0, -4.0]))
    values = torch.tensor([[1.0, -4.0], [1.76, 0.9], [1e6, -1e6]])
    assert grid.quantise(values).tolist() == [[0, 0], [2, 2], [127, -127]]
    assert values[2, 0] == 1e6, "the features belong to the caller"
    assert Grid(grid.scale, grid.offset, 16).quantise(values).tolist() == [[0, 0], [2, 2], [32767, -32767]]


@pytest.mark.parametrize("bits", [8, 16])
def test_the_specification_rounds_alike(bits: int) -> None:
    random = np.random.default_rng(0)
    values = random.integers(-(2**20), 2**20, (200, 50))
    scale = np.float32(random.uniform(20, 20000, 50))
    offset = np.float32(random.integers(-5000, 5000, 50))
    scale[:5], values[:, :5] = 2.0, values[:, :5] // 4096  # halves
    grid = Grid(torch.from_numpy(scale), torch.from_numpy(offset), bits)
    found = grid.quantise(torch.from_numpy(values).float()).numpy()
    expected = on_grid(values, scale, offset, bits)
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)


def test_sixteen_bits_are_finer_and_reach_further() -> None:
    extractors = [build_extractor(CONFIG.replace(bits=bits), ImageShape(3, 16, 16), 0) for bits in (8, 16)]
    coarse, fine = (calibrate(extractor, 32, 8.0) for extractor in extractors)
    assert torch.equal(coarse.scale, fine.scale * 128)
    assert torch.equal(coarse.offset, fine.offset)
    images = calibration_images(8, ImageShape(3, 16, 16))
    found, expected = fine.quantise(extractors[1].features(images)), coarse.positions(extractors[0].features(images))
    assert found.dtype == torch.int16
    assert float((found / 128 - expected).abs().max()) < 0.5 / 128 + 1e-3


def test_a_dead_feature_is_harmless() -> None:
    config = CONFIG.replace(stem_channels=(1,), patch_sizes=(16,), width=1, projection="relu", projection_size=40)
    extractor = build_extractor(config, ImageShape(1, 16, 16), 0)
    grid = calibrate(extractor, 16, 8.0)
    assert bool((grid.scale > 0).all())
    assert bool((grid.scale == 1).any()), "some feature is dead"
    assert bool(torch.isfinite(grid.positions(extractor.features(calibration_images(4, extractor.shape)))).all())
