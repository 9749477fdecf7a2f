"""The fast portable extractors give the integers of their NumPy specification, whatever the settings and the images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from portable import extreme_images, noise, specified
from sklearn.datasets import load_digits

from circle.config import Config
from circle.extractors import BiRC2DConfig, ImageShape, LocalContrastConfig, build_extractor, integers, local_contrast
from circle.presets import list_presets, read_preset
from circle.presets.forms import side_of
from circle.registry import resolve

SEEDS = st.integers(0, 2**63)


@pytest.fixture(params=["bytes", "floats"], autouse=True)
def product(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of int8, where this processor makes them exactly, and of float32."""
    if request.param == "floats":
        monkeypatch.setattr(local_contrast, "multiplies_bytes", lambda: False)
    elif not integers.multiplies_bytes():
        pytest.skip("this processor multiplies no bytes")


def check(config: Config, shape: ImageShape, seed: int, images: np.ndarray) -> None:
    """The fast path equals the specification, in integers below 2^24."""
    found = build_extractor(config, shape, seed).features(torch.from_numpy(images)).numpy()
    expected = specified(config, images, seed)
    assert found.dtype == np.float32
    assert np.array_equal(found, expected)
    assert np.abs(expected).max(initial=0) < 2**24


def all_kinds(shape: ImageShape) -> np.ndarray:
    return np.concatenate([noise(2, shape), extreme_images(shape)])


@st.composite
def shapes(draw: st.DrawFn) -> ImageShape:
    return ImageShape(draw(st.sampled_from([1, 2, 3, 4])), draw(st.integers(1, 14)), draw(st.integers(1, 14)))


def pooled(draw: st.DrawFn) -> dict[str, object]:
    """Settings that both extractors have."""
    projection = draw(st.sampled_from(["none", "none", "linear", "relu"]))
    return {
        "grid": draw(st.integers(1, 4)),
        "windows": draw(st.sampled_from(["box", "gaussian"])),
        "window_spread": draw(st.floats(0.01, 2.0)),
        "window_margin": draw(st.floats(0.0, 0.5)),
        "moments": draw(st.sampled_from([("mean",), ("square",), ("mean", "square"), ("square", "mean")])),
        "power": draw(st.sampled_from([0.5, 1.0])),
        "mirror": draw(st.booleans()),
        "projection": projection,
        "projection_size": draw(st.integers(1, 30)),
        "projection_fan_in": draw(st.sampled_from([0, 1, 9, 10_000])),
    }


@st.composite
def local_contrasts(draw: st.DrawFn) -> LocalContrastConfig:
    banks = draw(st.integers(0, 3))
    some = {"min_size": banks, "max_size": banks}
    return LocalContrastConfig(
        filters=tuple(draw(st.lists(st.integers(1, 9), **some))),
        kernels=tuple(draw(st.lists(st.integers(2, 6), **some))),
        reductions=tuple(draw(st.lists(st.integers(1, 5), **some))),
        grey_share=draw(st.floats(0.0, 1.0)),
        colours=draw(st.integers(0 if banks else 1, 5)),
        colour_offset=draw(st.one_of(st.floats(0.0, 20.0), st.just(1e6))),
        contrast_epsilon=draw(st.sampled_from([1e-12, 1e-4, 0.05, 1.0, 1e6])),
        **pooled(draw),  # pyright: ignore[reportArgumentType]
    )


@st.composite
def birc2ds(draw: st.DrawFn) -> BiRC2DConfig:
    layers = draw(st.integers(0, 2))
    some = {"min_size": layers, "max_size": layers}
    return BiRC2DConfig(
        stem=draw(st.sampled_from(["plain", "contrast"])),
        stem_channels=tuple(draw(st.lists(st.integers(1, 5), **some))),
        stem_kernels=tuple(draw(st.lists(st.integers(1, 5), **some))),
        stem_bias=draw(st.booleans()),
        slope=draw(st.sampled_from([0.0, 0.01, 0.3, 1.0, 2.5, -0.5, 1e3])),
        contrast_epsilon=draw(st.sampled_from([1e-12, 0.05, 10.0])),
        patch_sizes=tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=2))),
        width=draw(st.integers(1, 7)),
        layers=draw(st.integers(1, 3)),
        leak=draw(st.sampled_from([1 / 512, 0.01, 0.5, 0.8, 1.0])),
        sparsity=draw(st.floats(0.0, 0.99)),
        radius=draw(st.sampled_from([0.0, 0.5, 0.9, 3.0, 1e6])),
        zero_mean_inputs=draw(st.booleans()),
        join_stem=draw(st.booleans()),
        aggregation=draw(st.sampled_from(["pool", "pool", "flatten"])),
        **pooled(draw),  # pyright: ignore[reportArgumentType]
    )


drawn = settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@drawn
@given(local_contrasts(), shapes(), SEEDS)
def test_any_local_contrast(config: LocalContrastConfig, shape: ImageShape, seed: int) -> None:
    check(config, shape, seed, all_kinds(shape))


@drawn
@given(birc2ds(), shapes(), SEEDS)
def test_any_birc2d(config: BiRC2DConfig, shape: ImageShape, seed: int) -> None:
    check(config, shape, seed, all_kinds(shape))


def preset_config(name: str) -> tuple[Config, ImageShape]:
    preset = read_preset(name)
    side = side_of(preset)
    return resolve("extractor", preset["extractor"]), ImageShape(preset["channels"], side, side)


@pytest.mark.parametrize("name", list_presets())
def test_presets(name: str) -> None:
    config, shape = preset_config(name)
    few = np.concatenate([noise(1, shape), extreme_images(shape)[3:]])
    check(config, shape, 0, few[:3] if name == "paper" else few)


@pytest.mark.parametrize("config", [LocalContrastConfig(), BiRC2DConfig()], ids=lambda config: config.name)
def test_digits(config: Config) -> None:
    images = (load_digits().images[:20] * 15.9375).astype(np.uint8)[:, None]
    check(config, ImageShape(1, 8, 8), 0, images)


@pytest.mark.parametrize("config", [LocalContrastConfig(), BiRC2DConfig(mirror=True)], ids=lambda config: config.name)
def test_images_of_a_pixel_and_long_ones(config: Config) -> None:
    for height, width in ((1, 1), (1, 90), (90, 1), (2, 2)):
        shape = ImageShape(3, height, width)
        check(config, shape, 7, all_kinds(shape))


@pytest.mark.parametrize(
    "config",
    [
        LocalContrastConfig(filters=(6, 6), kernels=(11, 16), reductions=(1, 3), colours=2),
        LocalContrastConfig(filters=(100,), kernels=(7,), colours=0, grey_share=0.0),
        BiRC2DConfig(stem_channels=(6,), stem_kernels=(11,), patch_sizes=(7,), width=3),
        BiRC2DConfig(stem="plain", stem_channels=(40, 50), stem_kernels=(9, 7), patch_sizes=(4,), width=4),
    ],
    ids=lambda config: config.name,
)
def test_large_filters(config: Config) -> None:
    """Whose sums need more bits: patches may exceed eight bits and are cut off, stems take float64."""
    shape = ImageShape(3, 20, 19)
    check(config, shape, 0, all_kinds(shape))


def test_many_channels() -> None:
    shape = ImageShape(13, 12, 12)
    for config in (LocalContrastConfig(filters=(20,), colours=20), BiRC2DConfig(stem_channels=(7,))):
        check(config, shape, 0, all_kinds(shape))


@pytest.mark.real_data
@pytest.mark.parametrize("name", ["small", "fast", "best", "reservoir", "medium", "paper"])
def test_real_images(name: str, real_data: Path) -> None:
    records = np.fromfile(real_data / "cifar-100-binary" / "train.bin", np.uint8, count=3074 * 300).reshape(-1, 3074)
    config, shape = preset_config(name)
    count = {"paper": 10, "best": 60}.get(name, 150)
    check(config, shape, 0, records[:count, 2:].reshape(-1, 3, 32, 32).copy())
