"""Settings of the convolutional networks that their defaults do not reach, on odd sides and one channel."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from circle.config import Config
from circle.extractors import (
    Extractor,
    ImageShape,
    ResNet18BNConfig,
    ResNet18LNConfig,
    VGG13Config,
    build_extractor,
)

CONFIGS = [
    ResNet18BNConfig(base_channels=2, first_kernel=7),
    ResNet18LNConfig(base_channels=2, layer_norm_over="channels"),
    VGG13Config(base_channels=2, grid=2),
]


@pytest.mark.parametrize("shape", [ImageShape(1, 17, 23), ImageShape(3, 12, 12)], ids=["grey", "colour"])
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_form(config: Config, shape: ImageShape, error_of: Callable[[Extractor], float]) -> None:
    assert error_of(build_extractor(config, shape, 3)) < 1e-3
