"""The grid and the noise it is calibrated on."""

from __future__ import annotations

import pytest
import torch

from circle.extractors import BiRC2DConfig, Grid, ImageShape, build_extractor, calibrate, pink_noise

CONFIG = BiRC2DConfig(stem_channels=(4,), stem_kernels=(3,), patch_sizes=(4,), width=4)


def test_noise_is_pink() -> None:
    noise = pink_noise(64, ImageShape(1, 64, 64))
    power = torch.fft.rfft2(noise[:, 0]).abs().mean(0)[0, 1:25].log()
    slope = torch.linalg.lstsq(
        torch.stack([torch.arange(1, 25).double().log(), torch.ones(24).double()], 1), power[:, None]
    ).solution[0]
    assert float(slope) == pytest.approx(-1.0, abs=0.15)
    assert float(noise.min()) >= 0.0
    assert float(noise.max()) <= 1.0


def test_noise_never_changes() -> None:
    """A model file keeps its grid, but models from two sites merge only if both found the same one."""
    assert torch.equal(pink_noise(3, ImageShape(3, 8, 8)), pink_noise(3, ImageShape(3, 8, 8)))
    assert float(pink_noise(4, ImageShape(3, 8, 8))[1, 2, 3, 4]) == pytest.approx(0.28469623844544484, abs=1e-12)


def test_grid_survives_rounding_differences() -> None:
    extractor = build_extractor(CONFIG, ImageShape(3, 16, 16), 0)
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


def test_sixteen_bits_are_finer_and_reach_further() -> None:
    extractors = [build_extractor(CONFIG.replace(bits=bits), ImageShape(3, 16, 16), 0) for bits in (8, 16)]
    coarse, fine = (calibrate(extractor, 32, 8.0) for extractor in extractors)
    assert torch.equal(coarse.scale, fine.scale * 128)
    images = pink_noise(8, ImageShape(3, 16, 16)).float()
    found, expected = fine.quantise(extractors[1].features(images)), coarse.positions(extractors[0].features(images))
    assert found.dtype == torch.int16
    offset = (coarse.offset - fine.offset) / coarse.scale  # either is a whole number of its own steps
    assert float((found / 128 - expected - offset).abs().max()) < 0.5 / 128 + 1e-3


def test_a_dead_feature_is_harmless() -> None:
    config = CONFIG.replace(stem_channels=(1,), patch_sizes=(16,), width=1, projection="relu", projection_size=40)
    extractor = build_extractor(config, ImageShape(1, 16, 16), 0)
    grid = calibrate(extractor, 16, 8.0)
    assert bool((grid.scale > 0).all())
    assert bool(torch.isfinite(grid.positions(extractor.features(pink_noise(4, extractor.shape).float()))).all())
