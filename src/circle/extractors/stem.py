"""Random convolutional stems in exact integers: local features for the reservoirs to scan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from circle.config import option
from circle.extractors.base import frozen
from circle.extractors.integers import exact_type, patch_factor, tensor
from circle.extractors.local_contrast import box_sums, channel_sums
from circle.extractors.projection import ProjectedConfig
from circle.runtime import birc2d as specification
from circle.runtime.local_contrast import RESPONSE_SHIFT, PatchScale
from circle.runtime.weights import centred_filters


@dataclass(frozen=True)
class StemConfig(ProjectedConfig):
    """Settings of the random convolutions that come before reservoirs."""

    stem_channels: tuple[int, ...] = option((32,), "filters of each stem layer; none = reservoirs see pixels")
    stem_kernels: tuple[int, ...] = option((3,), "side of each stem layer's filters")
    stem_bias: bool = option(True, "whether the plain stem's convolutions have a random bias")
    slope: float = option(0.01, "of the leaky ReLU for negative values")

    def check(self) -> None:
        super().check()
        self.require(all(count > 0 for count in self.stem_channels), "stem_channels", "positive numbers")
        self.require(
            len(self.stem_kernels) == len(self.stem_channels) and all(side > 0 for side in self.stem_kernels),
            "stem_kernels",
            f"a positive number for each of the {len(self.stem_channels)} stem_channels",
        )


class Stem(nn.Module):
    """Layers of fixed filters, stride 1, as many pixels out as in; subclasses draw the filters and apply them."""

    maps_per_filter = 1
    level_bits: int  # levels of the maps for one deviation: 2^level_bits
    limit: int  # of the maps' values

    def __init__(self, inputs: int, channels: Sequence[int], kernels: Sequence[int]) -> None:
        super().__init__()
        self.shapes: list[tuple[int, int, int, int]] = []  # of the layers' weights
        for outputs, kernel in zip(channels, kernels, strict=True):
            self.shapes.append((outputs, inputs, kernel, kernel))
            inputs = self.maps_per_filter * outputs
        self.channels = inputs
        if not self.shapes:
            self.level_bits, self.limit = specification.PIXEL_BITS, 255

    def parameters_fixed(self) -> int:
        return sum(buffer.numel() for buffer in self.buffers())


class PlainStem(Stem):
    """x <- leaky_relu(K * x + b), layer by layer; same padding, Kaiming uniform, nothing trained.

    Maps have 64 levels to a deviation and are rounded after the sum and after the leaky ReLU.
    """

    level_bits, limit = specification.STEM_BITS, specification.STEM_LIMIT

    def __init__(
        self, inputs: int, channels: Sequence[int], kernels: Sequence[int], seed: int, *, slope: float, bias: bool
    ) -> None:
        super().__init__(inputs, channels, kernels)
        self.slope = specification.fraction(slope, specification.SLOPE_BITS) * 2.0**-specification.SLOPE_BITS
        limit = 255
        for layer, shape in enumerate(self.shapes):
            drawn = specification.plain_layer(seed, layer, shape, slope, bias)
            filters = drawn.filters.reshape(shape[0], -1)
            largest = int((np.abs(filters).sum(1) * limit + np.abs(drawn.biases)).max()) + 2**drawn.shift
            unit = 2.0**-drawn.shift
            frozen(self, f"weight_{layer}", tensor(filters, exact_type(largest)) * unit)
            if bias:
                frozen(self, f"bias_{layer}", tensor(drawn.biases, exact_type(largest)) * unit)
            limit = self.limit

    def forward(self, images: Tensor) -> Tensor:
        """Integers [B, C, H, W] -> [B, H, W, channels]."""
        maps = images.permute(0, 2, 3, 1)
        for layer, (outputs, _, kernel, _) in enumerate(self.shapes):
            weight = self.get_buffer(f"weight_{layer}")
            patches = shifted_copies(maps.permute(0, 3, 1, 2), kernel).to(weight.dtype)
            maps = (weight @ patches).T
            if f"bias_{layer}" in self._buffers:
                maps += self.get_buffer(f"bias_{layer}")
            maps = functional.leaky_relu_(maps.add_(0.5).floor_(), self.slope).round_().clamp_(-self.limit, self.limit)
            maps = maps.to(torch.float32).reshape(len(images), *images.shape[2:], outputs)
        return maps


class ContrastStem(Stem):
    """Contrast-normalised random filters, both signs kept: a layer doubles its filters into maps.

        r = (f * x) / sqrt(variance of the patch + epsilon)        maps: max(r, 0), max(-r, 0)

    The filters f are random with mean zero and norm one, so neither brightness nor contrast of a patch decides
    its response. The variance runs over all channels and pixels under the filter; pixels outside the image are zero,
    a middling grey. Normalised patches have 8 bits, maps 8 bits, 32 of their levels to a deviation.
    """

    maps_per_filter = 2
    level_bits, limit = specification.MAP_BITS, specification.MAP_LIMIT

    def __init__(
        self, inputs: int, channels: Sequence[int], kernels: Sequence[int], seed: int, *, epsilon: float
    ) -> None:
        super().__init__(inputs, channels, kernels)
        self.scales: list[PatchScale] = []
        for layer, (outputs, channels_in, kernel, _) in enumerate(self.shapes):
            size = channels_in * kernel**2
            filters = centred_filters(seed, f"stem filters {layer}", outputs, size)
            frozen(self, f"weight_{layer}", tensor(filters) * 2.0**-RESPONSE_SHIFT)
            level_bits = specification.PIXEL_BITS if layer == 0 else self.level_bits
            self.scales.append(PatchScale.of_whole(size, epsilon, level_bits))

    def forward(self, images: Tensor) -> Tensor:
        """Integers [B, C, H, W] -> [B, H, W, channels]."""
        maps = images
        for layer, (outputs, _, kernel, _) in enumerate(self.shapes):
            size = maps.shape[1] * kernel**2
            patches = shifted_copies(maps, kernel)  # [C k k, B P]
            sums = same_box_sums(channel_sums(maps.clone()), kernel).flatten()
            squares = channel_sums(maps.to(exact_type(255**2 * size)).square())
            squares = same_box_sums(squares, kernel).flatten().to(torch.float64)
            scatter = squares.mul_(size).sub_(sums.to(torch.float64).square_())
            patches = (
                patches.mul_(size)
                .sub_(sums)
                .mul_(patch_factor(self.scales[layer], scatter))
                .round_()
                .clamp_(-127.0, 127.0)
            )
            response = (self.get_buffer(f"weight_{layer}") @ patches).add_(0.5).floor_().clamp_(-self.limit, self.limit)
            both = torch.cat([response.clamp_min(0.0), response.neg_().clamp_min_(0.0)])
            maps = both.view(2 * outputs, len(images), *images.shape[2:]).transpose(0, 1)
        return maps.permute(0, 2, 3, 1).contiguous()


def shifted_copies(maps: Tensor, kernel: int) -> Tensor:
    """Maps [B, C, H, W] -> [C k k, B H W], row (c, i, j) the map c moved by (i, j); zeros around the maps.

    An even kernel reaches one pixel further right and down. A product of such rows is a convolution, and adds in no
    other way: the algorithms of convolutions may go through fractions.
    """
    before, after = (kernel - 1) // 2, kernel // 2
    count, channels, height, width = maps.shape
    padded = functional.pad(maps, (before, after, before, after))
    image, channel, row, pixel = padded.stride()
    shape = (channels, kernel, kernel, count, height, width)
    return padded.as_strided(shape, (channel, row, pixel, image, row, pixel)).reshape(channels * kernel**2, -1)


def same_box_sums(values: Tensor, kernel: int) -> Tensor:
    """Sums over the k x k neighbours of each pixel of [B, H, W], zeros around the image."""
    before, after = (kernel - 1) // 2, kernel // 2
    padded = functional.pad(values, (before, after, before, after))
    return box_sums(box_sums(padded, kernel, 1), kernel, 2)
