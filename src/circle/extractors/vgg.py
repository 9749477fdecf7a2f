"""VGG-13 with random weights that are never trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from circle.config import option
from circle.extractors.base import ImageShape, frozen, kaiming_normal, tile_for
from circle.extractors.pooling import grid_matrix, pool
from circle.extractors.projection import ProjectedExtractor, StandardisedConfig
from circle.registry import register

MULTIPLES = (1, 2, 4, 8, 8)  # of base_channels, for the two layers before each of five poolings


@dataclass(frozen=True)
class VGG13Config(StandardisedConfig):
    """Settings of the random VGG-13."""

    name: ClassVar[str] = "vgg13"

    base_channels: int = option(64, "filters of the first stage; later ones have up to 8 times as many")
    grid: int = option(1, "regions per side for pooling")

    def check(self) -> None:
        super().check()
        self.require(self.base_channels > 0, "base_channels", "at least 1")
        self.require(self.grid > 0, "grid", "at least 1")


@register("extractor", VGG13Config)
class VGG13(ProjectedExtractor[VGG13Config]):
    """z = mean over g x g regions of x after five stages, [B, 8 c g g] with c = ``base_channels``.

        x <- relu(K * x), twice;    x <- max over 2 x 2 pixels        with c, 2 c, 4 c, 8 c and 8 c channels

    The ten layers' 3 x 3 filters are normal with variance 2 / fan-in (He); their biases are zero and left out, and
    so is the classifier of the trained network. An odd side is halved upwards: no border pixel is lost, a side of one
    stays one, so that images of any size pass, and sides that five poolings halve evenly are none the wiser.

    >>> from circle.extractors import ImageShape
    >>> extractor = VGG13(VGG13Config(base_channels=8), ImageShape(3, 32, 32), seed=0)
    >>> extractor.features(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape == (2, extractor.size)
    True
    """

    regions: Tensor  # [g g, h w]
    #: A single image takes convolutions that add in another order; two or more agree on every map size (measured).
    minimum_batch = 2

    def __init__(self, config: VGG13Config, shape: ImageShape, seed: int) -> None:
        super().__init__(config, shape, seed)
        generator = torch.Generator().manual_seed(seed)
        inputs, height, width = shape.channels, shape.height, shape.width
        self.tile = tile_for(config.base_channels * height * width)
        fixed = 0
        for stage, multiple in enumerate(MULTIPLES):
            outputs = multiple * config.base_channels
            for layer in range(2):
                weight = kaiming_normal((outputs, inputs, 3, 3), inputs * 9, generator)
                frozen(self, f"weight_{stage}_{layer}", weight.contiguous(memory_format=torch.channels_last))
                fixed += weight.numel() + outputs  # the zero biases count
                inputs = outputs
            height, width = -(-height // 2), -(-width // 2)
        frozen(self, "regions", grid_matrix(height, width, config.grid))
        self.finish(inputs * config.grid**2, fixed, generator)

    def vector(self, images: Tensor) -> Tensor:
        maps = images.contiguous(memory_format=torch.channels_last)
        for stage in range(len(MULTIPLES)):
            for layer in range(2):
                maps = functional.conv2d(maps, self.get_buffer(f"weight_{stage}_{layer}"), padding=1).relu_()
            maps = functional.max_pool2d(maps, 2, ceil_mode=True)
        return pool(maps.permute(0, 2, 3, 1), self.regions, ("mean",))
