"""The random VGG-13 against one put together from PyTorch's own layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from circle.errors import CircleError
from circle.extractors import VGG13, ImageShape, VGG13Config, build_extractor, calibration_images


def build(config: VGG13Config, shape: ImageShape) -> VGG13:
    extractor = build_extractor(config, shape, seed=1)
    assert isinstance(extractor, VGG13)
    return extractor


def reference(channels: int, base: int, grid: int, *, ceil_mode: bool) -> nn.Module:
    """The layers in the order they are published; weights drawn as PyTorch does, from the seed ``build`` uses."""
    layers: list[nn.Module] = []
    inputs = channels
    for size in (1, 1, "M", 2, 2, "M", 4, 4, "M", 8, 8, "M", 8, 8, "M"):
        if isinstance(size, str):
            layers.append(nn.MaxPool2d(2, ceil_mode=ceil_mode))
            continue
        layers += [nn.Conv2d(inputs, size * base, 3, padding=1), nn.ReLU()]
        inputs = size * base
    generator = torch.Generator().manual_seed(1)
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_in", nonlinearity="relu", generator=generator)
            nn.init.zeros_(layer.bias)  # pyright: ignore[reportArgumentType]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(grid))


@pytest.mark.parametrize("grid", [1, 2])
@pytest.mark.parametrize(
    ("shape", "ceil_mode"),
    [(ImageShape(3, 32, 32), False), (ImageShape(1, 64, 96), False), (ImageShape(1, 17, 23), True)],
)
def test_equals_the_network_of_torch_layers(shape: ImageShape, ceil_mode: bool, grid: int) -> None:
    extractor = build(VGG13Config(base_channels=4, grid=grid), shape).double()
    images = calibration_images(3, shape)
    expected = reference(shape.channels, 4, grid, ceil_mode=ceil_mode).double()((images.double() / 255 - 0.5) / 0.25)
    features = extractor.features(images)
    assert features.shape == (3, 32 * grid**2)
    assert torch.allclose(features, expected.permute(0, 2, 3, 1).flatten(1), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("side", [1, 2, 5, 33])
def test_images_of_any_size_pass(side: int) -> None:
    shape = ImageShape(3, side, 2 * side)
    features = build(VGG13Config(base_channels=4), shape).features(calibration_images(4, shape))
    assert features.shape == (4, 32)
    assert float(features.std(0).max()) > 0


def test_parameters_are_those_of_vgg13() -> None:
    extractor = build(VGG13Config(), ImageShape(3, 32, 32))
    assert extractor.size == 512
    assert extractor.parameter_count().fixed == 9_404_992


def test_full_width_features_do_not_depend_on_the_batch() -> None:
    """The contracts use few channels, and which kernels a convolution takes depends on their number."""
    shape = ImageShape(3, 32, 32)
    extractor = build(VGG13Config(), shape)
    images = calibration_images(9, shape)
    together = extractor.features(images)
    for batch in (1, 4):
        parts = [extractor.features(images[start : start + batch]) for start in range(0, 9, batch)]
        assert torch.equal(torch.cat(parts), together)


@pytest.mark.parametrize("projection", ["linear", "relu"])
def test_projection(projection: str) -> None:
    shape = ImageShape(3, 16, 16)
    config = VGG13Config(base_channels=4).replace(projection=projection, projection_size=70)
    extractor, plain = build(config, shape), build(VGG13Config(base_channels=4), shape)
    images = calibration_images(9, shape)
    assert extractor.size == 70
    assert extractor.parameter_count().generated == 70 * plain.size
    expected = plain.features(images) @ extractor.projection.dense.T  # pyright: ignore[reportOptionalMemberAccess]
    expected = expected.relu() if projection == "relu" else expected
    assert torch.allclose(extractor.features(images), expected, atol=1e-6)
    assert torch.equal(extractor.features(images[:1]), extractor.features(images)[:1])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"base_channels": -1}, "vgg13.base_channels = -1: expected at least 1"),
        ({"grid": 0}, "vgg13.grid = 0: expected at least 1"),
        ({"grid": 1.5}, "vgg13.grid = 1.5: expected int"),
        ({"input_scale": -1.0}, "vgg13.input_scale = -1.0: expected a positive number"),
    ],
)
def test_settings_are_checked(changes: dict, words: str) -> None:
    with pytest.raises(CircleError, match=words) as error:
        VGG13Config.from_dict(changes)
    assert "\n" not in str(error.value)
