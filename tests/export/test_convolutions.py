"""Settings of the convolutional extractors that their defaults do not reach, on odd sides and one channel."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from circle.config import Config
from circle.extractors import (
    Extractor,
    ImageShape,
    LocalContrastConfig,
    ResNet18BNConfig,
    ResNet18LNConfig,
    VGG13Config,
    build_extractor,
)

CONFIGS = [
    LocalContrastConfig(filters=(4, 3, 5), kernels=(3, 4, 2), reductions=(2, 3, 1), colours=2, power=0.7),
    LocalContrastConfig(filters=(4,), kernels=(5,), reductions=(2,), colours=0, windows="box", moments=("mean",)),
    LocalContrastConfig(filters=(), kernels=(), reductions=(), colours=3, mirror=False, power=1.0),
    ResNet18BNConfig(base_channels=2, first_kernel=7),
    ResNet18LNConfig(base_channels=2, layer_norm_over="channels"),
    VGG13Config(base_channels=2, grid=2),
]


@pytest.mark.parametrize("shape", [ImageShape(1, 17, 23), ImageShape(3, 12, 12)], ids=["grey", "colour"])
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_form(config: Config, shape: ImageShape, error_of: Callable[[Extractor], float]) -> None:
    assert error_of(build_extractor(config, shape, 3)) < 1e-3


def test_what_compression_leaves(error_of: Callable[[Extractor], float]) -> None:
    whole = build_extractor(CONFIGS[0], ImageShape(3, 12, 12), 3)
    for parts in ([0, 2, 8, 13], [1, 3], [12]):  # of three banks and colours; without the last bank; a colour alone
        assert error_of(whole.keep(parts)) < 1e-3
