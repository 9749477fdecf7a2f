"""BiRC2D: bidirectional two-dimensional reservoirs over a random convolutional stem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from circle.config import option
from circle.extractors.base import ImageShape, frozen
from circle.extractors.pooling import PooledConfig, pool, signed_power
from circle.extractors.projection import ProjectedExtractor
from circle.extractors.reservoir import DIRECTIONS, ReservoirConfig, ReservoirLayer, patches
from circle.extractors.stem import ContrastStem, PlainStem, StemConfig
from circle.registry import register


@dataclass(frozen=True)
class BiRC2DConfig(StemConfig, ReservoirConfig, PooledConfig):
    """Settings of BiRC2D; where the paper leaves a choice open, both readings are here.

    The preset ``reservoir`` has what served best here; the published values are in the preset ``paper``.
    """

    name: ClassVar[str] = "birc2d"

    stem: Literal["plain", "contrast"] = option("contrast", "random convolutions, as they are or contrast-normalised")
    contrast_epsilon: float = option(0.05, "added to a patch's variance by the contrast stem")
    patch_sizes: tuple[int, ...] = option((2,), "sides of the non-overlapping patches, one stack of layers each")
    width: int = option(30, "reservoir units; what they count is set by width_of")
    width_of: Literal["direction", "location", "model"] = option(
        "direction", "width counts the units of one direction, of the four at a location, or of all stacks"
    )
    layers: int = option(1, "BiRC2D layers in every stack")
    zero_mean_inputs: bool = option(True, "whether the rows of W_in are centred, so that they ignore brightness")
    aggregation: Literal["pool", "flatten"] = option("pool", "map to vector: means over windows, or all of it")
    join_stem: bool = option(True, "whether the stem's maps are joined to the reservoirs'")

    def check(self) -> None:
        super().check()
        self.require(self.contrast_epsilon > 0, "contrast_epsilon", "a positive number")
        self.require(
            len(self.patch_sizes) > 0 and all(side > 0 for side in self.patch_sizes),
            "patch_sizes",
            "positive numbers",
        )
        self.require(
            self.width > 0 and self.width % self._width_divisor() == 0,
            "width",
            f"a positive multiple of {self._width_divisor()} with width_of = {self.width_of}",
        )
        self.require(self.layers > 0, "layers", "at least 1")

    def _width_divisor(self) -> int:
        counted = {
            "direction": 1,
            "location": DIRECTIONS,
            "model": DIRECTIONS * max(1, len(self.patch_sizes)),
        }
        return counted[self.width_of]

    @property
    def direction_width(self) -> int:
        """Units of one reservoir: of one direction, patch size and layer."""
        return self.width // self._width_divisor()


@register("extractor", BiRC2DConfig)
class BiRC2D(ProjectedExtractor[BiRC2DConfig]):
    """z = phi_s(x): stem, patches, reservoirs in four directions, aggregation, projection.

    1. x <- (x - mean) / scale, constants;
    2. random convolutional stem, [B, C, H, W] -> [B, H, W, channels];
    3. for every patch size p: p x p patches become vectors, [B, H/p, W/p, p p channels], and pass through
       ``layers`` layers of :class:`ReservoirLayer`, [B, H/p, W/p, 4 r];
    4. all maps become one vector by pooling or flattening, then the signed power;
    5. optional random projection.

    Nothing is trained, nothing comes from data: config, image shape and seed determine every weight.

    >>> from circle.extractors import ImageShape
    >>> extractor = BiRC2D(BiRC2DConfig(width=8), ImageShape(3, 32, 32), seed=0)
    >>> extractor.features(torch.rand(2, 3, 32, 32)).shape == (2, extractor.size)
    True
    """

    def __init__(self, config: BiRC2DConfig, shape: ImageShape, seed: int) -> None:
        super().__init__(config, shape, seed)
        generator = torch.Generator().manual_seed(seed)
        if config.stem == "contrast":
            self.stem = ContrastStem(
                shape.channels,
                config.stem_channels,
                config.stem_kernels,
                generator,
                epsilon=config.contrast_epsilon,
            )
        else:
            self.stem = PlainStem(
                shape.channels,
                config.stem_channels,
                config.stem_kernels,
                generator,
                slope=config.slope,
                bias=config.stem_bias,
            )
        width = config.direction_width
        self.stacks = nn.ModuleList()
        sides: list[tuple[int, int, int]] = []
        for patch in config.patch_sizes:
            inputs = [patch * patch * self.stem.channels] + [DIRECTIONS * width] * (config.layers - 1)
            layers = [
                ReservoirLayer(
                    size,
                    width,
                    generator,
                    leak=config.leak,
                    slope=config.slope,
                    sparsity=config.sparsity,
                    radius=config.radius,
                    zero_mean_inputs=config.zero_mean_inputs,
                )
                for size in inputs
            ]
            self.stacks.append(nn.Sequential(*layers))
            sides.append((-(-shape.height // patch), -(-shape.width // patch), DIRECTIONS * width))
        if config.join_stem:
            sides.append((shape.height, shape.width, self.stem.channels))
        self.maps = len(sides)
        length = 0
        for index, (height, width, channels) in enumerate(sides):
            if config.aggregation == "pool":
                frozen(self, f"grid_{index}", config.window_matrix(height, width))
                length += config.grid**2 * len(config.moments) * channels
            else:
                length += height * width * channels
        fixed = self.stem.parameters_fixed()
        fixed += sum(layer.fixed for layer in self.stacks.modules() if isinstance(layer, ReservoirLayer))
        self.finish(length, fixed, generator)
        # Products of fewer than eight rows take other kernels, which add in another order (measured).
        self.minimum_batch = max(2, -(-8 // min(min(height, width) for height, width, _ in sides)))

    def vector(self, images: Tensor) -> Tensor:
        config = self.config
        stem = self.stem(images.contiguous(memory_format=torch.channels_last))
        stem = stem.permute(0, 2, 3, 1)  # [B, H, W, channels], contiguous
        maps = [stack(patches(stem, patch)) for stack, patch in zip(self.stacks, config.patch_sizes, strict=True)]
        if config.join_stem:
            maps.append(stem)
        if config.aggregation == "pool":
            parts = [pool(part, self.get_buffer(f"grid_{i}"), config.moments) for i, part in enumerate(maps)]
        else:
            parts = [part.flatten(1) for part in maps]
        return signed_power(torch.cat(parts, 1), config.power)
