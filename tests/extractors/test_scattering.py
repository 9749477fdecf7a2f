"""Scattering against kymatio's Scattering2D."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import Any

import pytest
import torch
from kymatio.scattering2d.filter_bank import filter_bank
from kymatio.scattering2d.frontend import base_frontend
from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D

from circle.errors import CircleError
from circle.extractors import ImageShape, build_extractor, calibrate, calibration_images
from circle.extractors.scattering import (
    AUTOMATIC,
    WHOLE,
    Scattering,
    ScatteringConfig,
    low_pass,
    low_pass_matrix,
    lowest,
    mirror,
    morlet_bank,
)

SMALL, ODD, LARGE = ImageShape(3, 32, 32), ImageShape(1, 17, 23), ImageShape(3, 64, 64)
RAW = ScatteringConfig(grid=WHOLE, input_mean=0.0, input_scale=1.0)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """kymatio's many small operations crawl on two threads while other tests run."""
    torch.set_num_threads(1)


def build(config: ScatteringConfig, shape: ImageShape, seed: int = 0) -> Scattering:
    extractor = build_extractor(config, shape, seed)
    assert isinstance(extractor, Scattering)
    return extractor


@pytest.fixture
def drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """kymatio's filters of one size serve both orders: drawing them takes longer than all else."""
    monkeypatch.setattr(base_frontend, "filter_bank", lambda *sizes: deepcopy(kymatio_filter_bank(*sizes)))


@cache
def kymatio_filter_bank(height: int, width: int, scales: int, orientations: int) -> dict[str, Any]:
    return filter_bank(height, width, scales, orientations)


@pytest.mark.usefixtures("drawn_once")
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(
    ("shape", "scales"),
    [(SMALL, 2), (SMALL, 3), (LARGE, 3), (ODD, 3), (ImageShape(2, 16, 20), 4), (ImageShape(1, 13, 9), 1)],
    ids=lambda value: f"{value.height}x{value.width}" if isinstance(value, ImageShape) else f"J{value}",
)
def test_equals_kymatio(shape: ImageShape, scales: int, order: int) -> None:
    images = calibration_images(2, shape)
    expected = ScatteringTorch2D(J=scales, shape=(shape.height, shape.width), max_order=order)(images.float() / 255)
    found = build(RAW.replace(scales=scales, order=order), shape).features(images).view(expected.shape)
    assert torch.allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "scales", "orientations", "order"),
    [(SMALL, 3, 8, 1), (SMALL, 3, 8, 2), (ODD, 2, 5, 1), (ODD, 2, 5, 2), (ImageShape(1, 224, 224), 4, 8, 2)],
    ids=["32-1", "32-2", "17-1", "17-2", "224-2"],
)
def test_equals_kymatio_to_the_last_digits(
    shape: ImageShape, scales: int, orientations: int, order: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float64 and with the same filters, which kymatio has only in float32 and takes half a minute to draw."""
    extractor = build(RAW.replace(scales=scales, orientations=orientations, order=order), shape).to(torch.float64)
    padded = len(extractor.rows), len(extractor.columns)
    for level, layer in enumerate(extractor.low_passes):
        layer.down, layer.across = (low_pass_matrix(length, level, scales) for length in padded)
    monkeypatch.setattr(base_frontend, "filter_bank", our_filter_bank)
    peer = ScatteringTorch2D(J=scales, shape=(shape.height, shape.width), L=orientations, max_order=order)
    images = calibration_images(1, shape)
    expected = peer(images.double() / 255)
    assert expected.dtype == torch.float64
    found = extractor.features(images).view(expected.shape)
    assert torch.allclose(found, expected, rtol=0, atol=1e-13)


def our_filter_bank(height: int, width: int, scales: int, orientations: int) -> dict[str, Any]:
    """Our filters in kymatio's form, the wavelets rounded to float32 as the extractor holds them."""
    bank = morlet_bank(height, width, scales, orientations).float().double()
    wavelets = [
        {"j": scale, "theta": turn, "levels": [lowest(bank[scale, turn], level).numpy() for level in range(scale + 1)]}
        for scale in range(scales)
        for turn in range(orientations)
    ]
    smooth = torch.outer(low_pass(height, scales), low_pass(width, scales))
    return {"psi": wavelets, "phi": {"j": scales, "levels": [lowest(smooth, level).numpy() for level in range(scales)]}}


@pytest.mark.parametrize(
    ("side", "scales", "maps", "map_side", "length"),
    [
        (32, 2, 243, 8, 15_552),
        (32, 3, 651, 4, 10_416),
        (64, 3, 651, 8, 41_664),
        (64, 4, 1_251, 4, 20_016),
        (224, 4, 1_251, 14, 245_196),
        (224, 5, 2_043, 7, 100_107),
    ],
)
def test_sizes(side: int, scales: int, maps: int, map_side: int, length: int) -> None:
    config = RAW.replace(scales=scales)
    assert 3 * config.paths(scales) == maps
    assert maps * map_side**2 == length
    assert build(config, ImageShape(3, side, side)).size == length


@pytest.mark.parametrize(
    ("shape", "scales", "grid", "length"),
    [
        (SMALL, 3, 2, 2_604),
        (LARGE, 4, 2, 5_004),
        (ImageShape(3, 224, 224), 5, 2, 8_172),
        (ODD, 3, WHOLE, 868),
        (ImageShape(1, 32, 32), 3, WHOLE, 3_472),
        (ImageShape(1, 5, 40), 2, WHOLE, 810),
        (ImageShape(1, 2, 2), 1, WHOLE, 9),
    ],
)
def test_what_is_chosen_by_image_size(shape: ImageShape, scales: int, grid: int, length: int) -> None:
    extractor = build(ScatteringConfig(), shape)
    assert (extractor.scales, extractor.grid, extractor.size) == (scales, grid, length)


def test_very_many_maps_are_averaged_over_the_image() -> None:
    config = ScatteringConfig()
    assert config.grid == AUTOMATIC
    assert config.grid_for(maps=2_501, height=2, width=2) == 1
    assert config.grid_for(maps=2_500, height=2, width=2) == WHOLE
    assert config.grid_for(maps=2_500, height=3, width=3) == 2
    assert config.grid_for(maps=2_500, height=1, width=5) == 1
    assert config.replace(grid=3).grid_for(maps=9_999, height=8, width=8) == 3


def test_pooling_is_the_mean_over_regions() -> None:
    images = calibration_images(2, SMALL)
    whole = build(RAW, SMALL).features(images).view(2, -1, 2, 2, 2, 2)
    halves = build(RAW.replace(grid=2), SMALL).features(images)
    assert torch.allclose(halves, whole.mean((3, 5)).flatten(1), atol=1e-6)
    single = build(RAW.replace(grid=1), SMALL).features(images)
    assert torch.allclose(single, whole.mean((2, 3, 4, 5)), atol=1e-6)


def test_signed_power_of_the_vector() -> None:
    images = calibration_images(2, ODD)
    plain = build(ScatteringConfig(), ODD).features(images)
    rooted = build(ScatteringConfig(power=0.5), ODD).features(images)
    assert float(plain.min()) < 0, "the mean brightness can be below input_mean"
    assert torch.equal(rooted, torch.copysign(plain.abs().sqrt(), plain))


def test_a_flat_image_leaves_its_brightness_only() -> None:
    maps = (
        build(RAW, SMALL)
        .to(torch.float64)
        .features(torch.full((1, 3, 32, 32), 179, dtype=torch.uint8))
        .view(3, 217, 16)
    )
    assert torch.allclose(maps[:, 0], torch.tensor(179 / 255).double(), atol=1e-4)
    assert float(maps[:, 1:].abs().max()) < 1e-6


@pytest.mark.parametrize(
    ("shape", "changes"),
    [
        (SMALL, {"grid": 1}),
        (SMALL, {"order": 1, "projection": "relu"}),
        (ODD, {"grid": 1}),
        (ODD, {"projection": "relu"}),
    ],
    ids=str,
)
def test_batch_and_threads_do_not_matter(shape: ImageShape, changes: dict) -> None:
    """With the usual settings they do not, either: that is in the contract of all extractors."""
    extractor = build(ScatteringConfig(**changes), shape)
    images = calibration_images(35, shape)
    reference = extractor.features(images)
    for batch, count, threads in [(1, 5, 1), (2, 7, 2), (7, 16, 1), (33, 35, 2)]:
        torch.set_num_threads(threads)
        parts = [extractor.features(part) for part in images[:count].split(batch)]
        assert torch.equal(torch.cat(parts), reference[:count]), f"{batch} at a time on {threads} threads"


def test_one_sample_per_map_and_one_channel() -> None:
    """The smallest products there are, where BLAS would fall back on other kernels."""
    extractor = build(ScatteringConfig(scales=4), ImageShape(1, 16, 64))
    assert extractor.minimum_batch == 8
    images = calibration_images(9, extractor.shape)
    alone = torch.cat([extractor.features(image[None]) for image in images])
    assert torch.equal(alone, extractor.features(images))


def test_only_a_projection_is_random() -> None:
    images = calibration_images(2, ODD)
    plain = [build(ScatteringConfig(), ODD, seed) for seed in (1, 2)]
    projected = [build(ScatteringConfig(projection="relu", projection_size=30), ODD, seed) for seed in (1, 2)]
    assert not plain[0].seeded
    assert torch.equal(plain[0].features(images), plain[1].features(images))
    assert projected[0].seeded
    assert projected[0].size == 30
    assert not torch.equal(projected[0].features(images), projected[1].features(images))


def test_parameters_are_counted() -> None:
    """A number counts once at every resolution it is used at: 32 x 32 padded, 16 x 16, 8 x 8."""
    wavelets = 3 * 8 * 32 * 32 + 8 * 16 * 16
    smoothing = 2 * 2 * (32 + 16 + 8)
    extractor = build(ScatteringConfig(projection="linear", projection_size=10), ODD)
    count = extractor.parameter_count()
    assert (count.learnable, count.fixed, count.generated) == (0, wavelets + smoothing, 868 * 10)
    first = build(ScatteringConfig(order=1), ODD).parameter_count()
    assert (first.fixed, first.generated) == (3 * 8 * 32 * 32 + smoothing, 0)


def test_filters_are_real_in_any_precision() -> None:
    extractor = build(ScatteringConfig(), ODD)
    before = extractor.features(calibration_images(4, ODD))
    grid = calibrate(extractor, images=16, levels=8.0)
    assert grid.scale.shape == (extractor.size,)
    after = extractor.to(torch.float64).features(calibration_images(4, ODD))
    assert {buffer.dtype for buffer in extractor.buffers()} == {torch.float64, torch.int64}
    assert torch.allclose(after.float(), before, atol=1e-5)


def test_mirrors_pad_evenly() -> None:
    assert mirror(5, 1).tolist() == [1, 0, 1, 2, 3, 4, 3, 2]  # 8 = 2 (2 + 2): one before, two after
    assert mirror(4, 2).tolist() == [2, 3, 2, 1, 0, 1, 2, 3, 2, 1, 0, 1]  # as far as the other border and back
    assert len(mirror(224, 5)) == 288


@pytest.mark.parametrize(("shape", "scales"), [(ImageShape(3, 15, 64), 4), (ImageShape(3, 1, 9), 0)])
def test_images_can_be_too_small(shape: ImageShape, scales: int) -> None:
    with pytest.raises(CircleError, match=f"at least {2 ** max(1, scales)} x .* got {shape.height} x {shape.width}"):
        build(ScatteringConfig(scales=scales), shape)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scales": -1}, "scales = -1: expected at least 1, or 0"),
        ({"orientations": 0}, "orientations"),
        ({"order": 3}, "order = 3: expected 1 or 2"),
        ({"grid": -2}, "grid"),
        ({"power": 0.0}, "power"),
        ({"input_scale": 0.0}, "input_scale"),
        ({"projection_size": 0}, "projection_size"),
        ({"scale": 3}, "did you mean 'scales'"),
    ],
)
def test_settings_are_checked(changes: dict, words: str) -> None:
    with pytest.raises(CircleError, match=words):
        ScatteringConfig.from_dict(changes)
