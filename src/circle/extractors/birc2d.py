"""BiRC2D: bidirectional two-dimensional reservoirs over a random convolutional stem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from circle.config import Config, option
from circle.extractors.base import Extractor, ImageShape, ParameterCount, frozen
from circle.extractors.pooling import grid_matrix, pool, signed_power
from circle.extractors.projection import RandomProjection
from circle.extractors.reservoir import DIRECTIONS, ReservoirLayer
from circle.extractors.stem import ContrastStem, PlainStem
from circle.registry import register


@dataclass(frozen=True)
class BiRC2DConfig(Config):
    """Settings of BiRC2D; where the paper leaves a choice open, both readings are here.

    The defaults are those of the preset ``small``; the published ones are in the preset ``paper``.
    """

    name: ClassVar[str] = "birc2d"

    input_mean: float = option(0.5, "constant subtracted from every pixel")
    input_scale: float = option(0.25, "constant every pixel is then divided by")
    stem: Literal["plain", "contrast"] = option("contrast", "random convolutions, as they are or contrast-normalised")
    stem_channels: tuple[int, ...] = option((32,), "filters of each stem layer; none = reservoirs see pixels")
    stem_kernels: tuple[int, ...] = option((3,), "side of each stem layer's filters")
    stem_bias: bool = option(True, "whether the plain stem's convolutions have a random bias")
    contrast_epsilon: float = option(0.05, "added to a patch's variance by the contrast stem")
    slope: float = option(0.01, "of the leaky ReLU for negative values")
    patch_sizes: tuple[int, ...] = option((2,), "sides of the non-overlapping patches, one stack of layers each")
    width: int = option(30, "reservoir units; what they count is set by width_of")
    width_of: Literal["direction", "location", "model"] = option(
        "direction", "width counts the units of one direction, of the four at a location, or of all stacks"
    )
    layers: int = option(1, "BiRC2D layers in every stack")
    leak: float = option(0.8, "a in h_t = (1 - a) h_{t-1} + a lrelu(W_in x_t + W h_{t-1})")
    sparsity: float = option(0.9, "share of zeros in W")
    radius: float = option(0.9, "spectral radius of W")
    zero_mean_inputs: bool = option(True, "whether the rows of W_in are centred, so that they ignore brightness")
    aggregation: Literal["pool", "flatten"] = option("pool", "map to vector: mean over a grid of regions, or all of it")
    grid: int = option(3, "regions per side for pooling")
    moments: tuple[Literal["mean", "square"], ...] = option(
        ("mean", "square"), "what is pooled: values, their squares, or both"
    )
    join_stem: bool = option(True, "whether the stem's maps are joined to the reservoirs'")
    power: float = option(0.5, "exponent p of the signed power sign(v) |v|^p applied to the vector")
    projection: Literal["none", "linear", "relu"] = option("none", "final random projection, with or without a ReLU")
    projection_size: int = option(1100, "length of the projected vector")
    projection_fan_in: int = option(0, "values that an output of a sparse projection adds up; 0 = dense")

    def check(self) -> None:
        self.require(self.input_scale > 0, "input_scale", "a positive number")
        self.require(all(count > 0 for count in self.stem_channels), "stem_channels", "positive numbers")
        self.require(
            len(self.stem_kernels) == len(self.stem_channels) and all(side > 0 for side in self.stem_kernels),
            "stem_kernels",
            f"a positive number for each of the {len(self.stem_channels)} stem_channels",
        )
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
        self.require(0 < self.leak <= 1, "leak", "above 0, at most 1")
        self.require(0 <= self.sparsity < 1, "sparsity", "at least 0, below 1")
        self.require(self.radius >= 0, "radius", "zero or a positive number")
        self.require(self.grid > 0, "grid", "at least 1")
        self.require(
            len(self.moments) > 0 and len(set(self.moments)) == len(self.moments),
            "moments",
            "mean, square or both",
        )
        self.require(self.power > 0, "power", "a positive number")
        self.require(self.projection_size > 0, "projection_size", "at least 1")
        self.require(self.projection_fan_in >= 0, "projection_fan_in", "0 or more")

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
class BiRC2D(Extractor):
    """z = phi_s(x): stem, patches, reservoirs in four directions, aggregation, projection.

    1. x <- (x - mean) / scale, constants;
    2. random convolutional stem, [B, C, H, W] -> [B, H, W, channels];
    3. for every patch size p: p x p patches become vectors, [B, H/p, W/p, p p channels], and pass through
       ``layers`` layers of :class:`ReservoirLayer`, [B, H/p, W/p, 4 r];
    4. all maps become one vector by pooling or flattening, then the signed power;
    5. optional random projection.

    Nothing is trained, nothing comes from data: config, image shape and seed determine every weight.
    """

    config: BiRC2DConfig

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
                frozen(self, f"grid_{index}", grid_matrix(height, width, config.grid))
                length += config.grid**2 * len(config.moments) * channels
            else:
                length += height * width * channels
        self.projection = None
        if config.projection != "none":
            self.projection = RandomProjection(
                length,
                config.projection_size,
                generator,
                fan_in=config.projection_fan_in,
                relu=config.projection == "relu",
            )
        self.size = self.projection.outputs if self.projection else length
        # Products of fewer than eight rows take other kernels, which add in another order (measured).
        self.minimum_batch = max(2, -(-8 // min(min(height, width) for height, width, _ in sides)))

    def forward(self, images: Tensor) -> Tensor:
        config = self.config
        images = images.sub(config.input_mean).div_(config.input_scale)
        stem = self.stem(images.contiguous(memory_format=torch.channels_last))
        stem = stem.permute(0, 2, 3, 1)  # [B, H, W, channels], contiguous
        maps = [stack(patches(stem, patch)) for stack, patch in zip(self.stacks, config.patch_sizes, strict=True)]
        if config.join_stem:
            maps.append(stem)
        if config.aggregation == "pool":
            parts = [pool(part, self.get_buffer(f"grid_{i}"), config.moments) for i, part in enumerate(maps)]
        else:
            parts = [part.flatten(1) for part in maps]
        vector = signed_power(torch.cat(parts, 1), config.power)
        return self.projection(vector) if self.projection else vector

    def parameter_count(self) -> ParameterCount:
        fixed = self.stem.parameters_fixed()
        fixed += sum(layer.fixed for layer in self.stacks.modules() if isinstance(layer, ReservoirLayer))
        return ParameterCount(fixed=fixed, generated=self.projection.generated if self.projection else 0)


def patches(maps: Tensor, side: int) -> Tensor:
    """Non-overlapping side x side patches as vectors: [B, H, W, C] -> [B, ceil(H/side), ceil(W/side), side side C].

    Maps that the side does not divide are padded with zeros on all sides, as evenly as it goes.
    """
    batch, height, width, channels = maps.shape
    more_rows, more_columns = -height % side, -width % side
    if more_rows or more_columns:
        top, left = more_rows // 2, more_columns // 2
        maps = functional.pad(maps, (0, 0, left, more_columns - left, top, more_rows - top))
    rows, columns = maps.shape[1] // side, maps.shape[2] // side
    cut = maps.reshape(batch, rows, side, columns, side, channels).transpose(2, 3)
    return cut.reshape(batch, rows, columns, side * side * channels)
