"""The random ResNet-18 against one put together from PyTorch's own layers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from circle.errors import CircleError
from circle.extractors import (
    ImageShape,
    ResNet18,
    ResNet18BNConfig,
    ResNet18LNConfig,
    build_extractor,
    calibration_images,
)

SHAPE = ImageShape(3, 20, 20)
NARROW = {"base_channels": 4}


def build(config: ResNet18BNConfig | ResNet18LNConfig, shape: ImageShape = SHAPE) -> ResNet18:
    extractor = build_extractor(config, shape, seed=1)
    assert isinstance(extractor, ResNet18)
    return extractor


class ChannelNorm(nn.LayerNorm):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ReferenceBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            norm(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            norm(outputs),
        )
        self.shortcut = nn.Sequential()
        if stride == 2:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, 2, bias=False), norm(outputs))

    def forward(self, maps: Tensor) -> Tensor:
        return torch.relu(self.body(maps) + self.shortcut(maps))


def reference(channels: int, first_kernel: int, base: int, norm: Callable[[int], nn.Module]) -> nn.Module:
    """ResNet-18 without classifier; its weights drawn as PyTorch does, from the seed that ``build`` uses."""
    if first_kernel == 3:
        first: list[nn.Module] = [nn.Conv2d(channels, base, 3, 1, 1, bias=False), norm(base), nn.ReLU()]
    else:
        first = [nn.Conv2d(channels, base, 7, 2, 3, bias=False), norm(base), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    sizes = [(1, 1, 1), (1, 1, 1), (1, 2, 2), (2, 2, 1), (2, 4, 2), (4, 4, 1), (4, 8, 2), (8, 8, 1)]
    blocks = [ReferenceBlock(base * inputs, base * outputs, stride, norm) for inputs, outputs, stride in sizes]
    network = nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    generator = torch.Generator().manual_seed(1)
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu", generator=generator)
    return network.eval()


@pytest.mark.parametrize("shape", [SHAPE, ImageShape(1, 17, 23)])
@pytest.mark.parametrize("first_kernel", [3, 7])
@pytest.mark.parametrize(
    ("config", "norm"),
    [
        (ResNet18BNConfig(**NARROW), nn.BatchNorm2d),
        (ResNet18LNConfig(**NARROW), lambda channels: nn.GroupNorm(1, channels)),
        (ResNet18LNConfig(**NARROW, layer_norm_over="channels"), ChannelNorm),
    ],
    ids=["batch", "layer", "channels"],
)
def test_equals_the_network_of_torch_layers(
    config: ResNet18BNConfig | ResNet18LNConfig,
    norm: Callable[[int], nn.Module],
    first_kernel: int,
    shape: ImageShape,
) -> None:
    extractor = build(config.replace(first_kernel=first_kernel), shape).double()
    network = reference(shape.channels, first_kernel, config.base_channels, norm).double()
    images = calibration_images(3, shape)
    features = extractor.features(images)
    assert features.shape == (3, 32)
    assert torch.allclose(features, network((images.double() / 255 - 0.5) / 0.25), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("first_kernel", "count"), [(3, 11_168_832), (7, 11_176_512)])
@pytest.mark.parametrize("config", [ResNet18BNConfig(), ResNet18LNConfig()], ids=lambda config: config.name)
def test_parameters_are_those_of_a_resnet18(
    config: ResNet18BNConfig | ResNet18LNConfig, first_kernel: int, count: int
) -> None:
    extractor = build(config.replace(first_kernel=first_kernel), ImageShape(3, 32, 32))
    assert extractor.size == 512
    assert extractor.parameter_count().fixed == count
    assert extractor.parameter_count().generated == 0
    network = reference(3, first_kernel, 64, nn.BatchNorm2d)
    assert sum(weight.numel() for weight in network.parameters()) == count


@pytest.mark.parametrize("config", [ResNet18BNConfig(), ResNet18LNConfig()], ids=lambda config: config.name)
def test_full_width_features_do_not_depend_on_the_batch(config: ResNet18BNConfig | ResNet18LNConfig) -> None:
    """The contracts use few channels, and which kernels a convolution takes depends on their number."""
    shape = ImageShape(3, 32, 32)
    extractor = build(config, shape)
    images = calibration_images(9, shape)
    together = extractor.features(images)
    for batch in (1, 4):
        parts = [extractor.features(images[start : start + batch]) for start in range(0, 9, batch)]
        assert torch.equal(torch.cat(parts), together)


def test_without_centring_images_look_much_alike() -> None:
    features = build(ResNet18BNConfig(base_channels=16), ImageShape(3, 32, 32)).features(
        calibration_images(8, ImageShape(3, 32, 32))
    )
    cosine = torch.nn.functional.cosine_similarity(features[:1], features[1:])
    assert float(cosine.mean()) > 0.95
    assert float(features.mean()) < 10.0, "the magnitude stays harmless"


def test_large_images_come_in_small_tiles() -> None:
    assert build(ResNet18BNConfig(), ImageShape(3, 32, 32)).tile == 32
    assert build(ResNet18BNConfig(first_kernel=7), ImageShape(3, 224, 224)).tile == 10
    assert build(ResNet18BNConfig(), ImageShape(3, 224, 224)).tile == 2


@pytest.mark.parametrize(
    ("config", "changes", "words"),
    [
        (ResNet18BNConfig, {"first_kernel": 5}, "resnet18_bn.first_kernel = 5: expected 3 or 7"),
        (ResNet18BNConfig, {"base_channels": 0}, "resnet18_bn.base_channels = 0: expected at least 1"),
        (ResNet18BNConfig, {"layer_norm_over": "all"}, "unknown resnet18_bn setting 'layer_norm_over'"),
        (ResNet18LNConfig, {"layer_norm_over": "rows"}, "layer_norm_over = 'rows': expected one of all, channels"),
        (ResNet18LNConfig, {"input_scale": 0.0}, "input_scale = 0.0: expected a positive number"),
        (ResNet18LNConfig, {"projection_size": 0}, "projection_size = 0: expected at least 1"),
    ],
)
def test_settings_are_checked(
    config: type[ResNet18BNConfig] | type[ResNet18LNConfig], changes: dict, words: str
) -> None:
    with pytest.raises(CircleError, match=words) as error:
        config.from_dict(changes)
    assert "\n" not in str(error.value)
