"""BiRC2D: bidirectional two-dimensional reservoirs over a random convolutional stem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from circle.config import option
from circle.extractors.base import ImageShape, frozen
from circle.extractors.integers import IntegerExtractor, pool_windows, signed_root, tensor
from circle.extractors.pooling import PooledConfig
from circle.extractors.reservoir import ReservoirConfig, ReservoirLayer, patches
from circle.extractors.stem import ContrastStem, PlainStem, StemConfig
from circle.registry import register
from circle.runtime import birc2d as specification
from circle.runtime.birc2d import DIRECTIONS
from circle.runtime.weights import PLAIN_SHIFT


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
        self.require(0 < self.contrast_epsilon <= 1e6, "contrast_epsilon", "a positive number, at most 1e6")
        # Beyond these the integers are all zero, or all at the end of their range.
        self.require(specification.fraction(self.leak, specification.LEAK_BITS) > 0, "leak", "at least 1/512")
        self.require(self.radius <= 1e6, "radius", "at most 1e6")
        self.require(abs(self.slope) <= 1e3, "slope", "from -1000 to 1000")
        self.require(
            len(self.patch_sizes) > 0 and all(side > 0 for side in self.patch_sizes),
            "patch_sizes",
            "positive numbers",
        )
        self.require(
            self.width > 0 and self.width % specification.reservoirs_counted(self) == 0,
            "width",
            f"a positive multiple of {specification.reservoirs_counted(self)} with width_of = {self.width_of}",
        )
        self.require(self.layers > 0, "layers", "at least 1")

    @property
    def direction_width(self) -> int:
        """Units of one reservoir: of one direction, patch size and layer."""
        return self.width // specification.reservoirs_counted(self)


@register("extractor", BiRC2DConfig)
class BiRC2D(IntegerExtractor[BiRC2DConfig]):
    """z = phi_s(x): stem, patches, reservoirs in four directions, aggregation, projection.

    1. x <- (x - mean) / scale, constants;
    2. random convolutional stem, [B, C, H, W] -> [B, H, W, channels];
    3. for every patch size p: p x p patches become vectors, [B, H/p, W/p, p p channels], and pass through
       ``layers`` layers of :class:`ReservoirLayer`, [B, H/p, W/p, 4 r];
    4. all maps become one vector by pooling or flattening, then the signed root;
    5. optional random projection.

    Nothing is trained, nothing comes from data: config, image shape and seed determine every weight.

    >>> from circle.extractors import ImageShape
    >>> extractor = BiRC2D(BiRC2DConfig(width=8), ImageShape(3, 32, 32), seed=0)
    >>> extractor.features(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape == (2, extractor.size)
    True
    """

    def __init__(self, config: BiRC2DConfig, shape: ImageShape, seed: int) -> None:
        super().__init__(config, shape, seed)
        channels, kernels = config.stem_channels, config.stem_kernels
        if config.stem == "contrast":
            self.stem = ContrastStem(shape.channels, channels, kernels, seed, epsilon=config.contrast_epsilon)
        else:
            self.stem = PlainStem(shape.channels, channels, kernels, seed, slope=config.slope, bias=config.stem_bias)
        width = config.direction_width
        self.stacks = nn.ModuleList()
        sides: list[tuple[int, int, int]] = []
        for patch in config.patch_sizes:
            sizes = [patch * patch * self.stem.channels] + [DIRECTIONS * width] * (config.layers - 1)
            self.stacks.append(nn.Sequential(*(self._layer(patch, layer, size) for layer, size in enumerate(sizes))))
            sides.append((-(-shape.height // patch), -(-shape.width // patch), DIRECTIONS * width))
        if config.join_stem:
            sides.append((shape.height, shape.width, self.stem.channels))
        length = 0
        for index, (height, width, count) in enumerate(sides):
            if config.aggregation == "pool":
                frozen(self, f"rows_{index}", tensor(config.windows_along(height)))
                frozen(self, f"columns_{index}", tensor(config.windows_along(width)))
                length += config.grid**2 * len(config.moments) * count
            else:
                length += height * width * count
        fixed = self.stem.parameters_fixed()
        fixed += sum(layer.fixed for layer in self.stacks.modules() if isinstance(layer, ReservoirLayer))
        self.finish(length, fixed)

    def _layer(self, patch: int, layer: int, inputs: int) -> ReservoirLayer:
        config = self.config
        first = layer == 0
        drawn = specification.reservoir(
            self.seed,
            f"reservoir {patch} {layer}",
            inputs,
            config.direction_width,
            level_bits=self.stem.level_bits if first else specification.STATE_BITS,
            slope=config.slope,
            sparsity=config.sparsity,
            radius=config.radius,
            zero_mean_inputs=config.zero_mean_inputs,
        )
        largest = self.stem.limit if first else specification.STATE_LIMIT
        return ReservoirLayer(drawn, config, slope=config.slope, largest_input=largest)

    def vector(self, images: Tensor) -> Tensor:
        config = self.config
        stem = self.stem(images * 2.0 - 255.0)  # [B, H, W, channels]
        maps = [stack(patches(stem, patch)) for stack, patch in zip(self.stacks, config.patch_sizes, strict=True)]
        if config.aggregation == "pool":
            limit = float(specification.WIDE_LIMIT)
            maps = [states.mul_(2.0**-specification.STATE_SHIFT).round_().clamp_(-limit, limit) for states in maps]
        if config.join_stem:
            maps.append(stem)
        if config.aggregation == "flatten":
            vector = torch.cat([part.flatten(1) for part in maps], 1)
            return signed_root(vector) if config.power == 0.5 else vector
        limits = [specification.WIDE_LIMIT] * len(self.stacks) + [self.stem.limit]
        vector = torch.cat(
            [self._pooled(i, part, limit) for i, (part, limit) in enumerate(zip(maps, limits, strict=False))], 1
        )
        return signed_root(vector) if config.power == 0.5 else vector.mul_(2.0**-PLAIN_SHIFT).floor_()

    def _pooled(self, index: int, maps: Tensor, limit: int) -> Tensor:
        """Sums over windows of maps [B, H, W, J] of values up to ``limit``, and of their squares: [B, m g g J].

        Of ten bits, sums along columns are shortened by two, and squares by four, so that both stay below 2^24.
        """
        moments, rows = self.config.moments, self.get_buffer(f"rows_{index}")
        count, height, width, channels = maps.shape
        wide = limit > specification.MAP_LIMIT
        flat, windows = maps.reshape(count, height, -1), rows.expand(count, -1, -1)
        sums = []
        for moment in moments:
            if moment == "mean":
                sums.append(torch.bmm(windows, flat))
                if wide:
                    sums[-1].mul_(2.0**-2).round_()
            else:
                squares = flat.square()
                sums.append(torch.bmm(windows, squares.mul_(2.0**-4).round_() if wide else squares))
        quantities = torch.stack(sums).view(1, len(moments), count, len(rows), width, channels)
        return pool_windows(quantities, self.get_buffer(f"columns_{index}"), moments).transpose(0, 1).flatten(1)
