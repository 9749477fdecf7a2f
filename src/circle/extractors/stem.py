"""Random convolutional stems: local features for the reservoirs to scan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from circle.config import option
from circle.extractors.base import frozen, kaiming_uniform
from circle.extractors.projection import ProjectedConfig


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

    def __init__(self, inputs: int, channels: Sequence[int], kernels: Sequence[int]) -> None:
        super().__init__()
        self.shapes: list[tuple[int, int, int, int]] = []  # of the layers' weights
        for outputs, kernel in zip(channels, kernels, strict=True):
            self.shapes.append((outputs, inputs, kernel, kernel))
            inputs = self.maps_per_filter * outputs
        self.channels = inputs

    def keep(self, layer: int, weight: Tensor) -> None:
        frozen(self, f"weight_{layer}", weight.contiguous(memory_format=torch.channels_last))

    def weight(self, layer: int) -> Tensor:
        return self.get_buffer(f"weight_{layer}")

    def parameters_fixed(self) -> int:
        return sum(buffer.numel() for buffer in self.buffers())


class PlainStem(Stem):
    """x <- leaky_relu(K * x + b), layer by layer; stride 1, same padding, Kaiming uniform, nothing trained."""

    def __init__(
        self,
        inputs: int,
        channels: Sequence[int],
        kernels: Sequence[int],
        generator: torch.Generator,
        *,
        slope: float,
        bias: bool,
    ) -> None:
        super().__init__(inputs, channels, kernels)
        self.slope, self.bias = slope, bias
        for layer, shape in enumerate(self.shapes):
            fan_in = math.prod(shape[1:])
            self.keep(layer, kaiming_uniform(shape, fan_in, generator, slope))
            if bias:
                bound = fan_in**-0.5
                frozen(self, f"bias_{layer}", torch.empty(shape[0]).uniform_(-bound, bound, generator=generator))

    def forward(self, images: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, channels, H, W], channels last in memory."""
        for layer in range(len(self.shapes)):
            bias = self.get_buffer(f"bias_{layer}") if self.bias else None
            images = functional.leaky_relu_(same_convolution(images, self.weight(layer), bias), self.slope)
        return images


class ContrastStem(Stem):
    """Contrast-normalised random filters, both signs kept: a layer doubles its filters into maps.

        r = (f * x) / sqrt(variance of the patch + epsilon)        maps: max(r, 0), max(-r, 0)

    The filters f are random with mean zero and norm one, so neither brightness nor contrast of a patch decides
    its response. The variance runs over all channels and pixels under the filter.
    """

    maps_per_filter = 2

    def __init__(
        self,
        inputs: int,
        channels: Sequence[int],
        kernels: Sequence[int],
        generator: torch.Generator,
        *,
        epsilon: float,
    ) -> None:
        super().__init__(inputs, channels, kernels)
        self.epsilon = epsilon
        for layer, shape in enumerate(self.shapes):
            weight = kaiming_uniform((shape[0], math.prod(shape[1:])), 1, generator)
            if weight.shape[1] > 1:  # a filter of a single weight has no shape but its mean
                weight -= weight.mean(1, keepdim=True)
            weight /= weight.norm(dim=1, keepdim=True)
            self.keep(layer, weight.view(shape))

    def forward(self, images: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, channels, H, W], channels last in memory."""
        for layer, (*_, kernel) in enumerate(self.shapes):
            response = same_convolution(images, self.weight(layer))
            response /= (patch_variance(images, kernel) + self.epsilon).sqrt_()
            images = torch.cat([response.relu(), (-response).relu_()], 1)
        return images


def same_convolution(images: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Convolution that keeps height and width; an even kernel reaches one pixel further right and down.

    ``padding="same"`` is the same to the last bit, but warns of its padding for even kernels.
    """
    kernel = weight.shape[-1]
    if kernel % 2 == 0:
        images = functional.pad(images, (0, 1, 0, 1))
    return functional.conv2d(images, weight, bias, padding=(kernel - 1) // 2)


def patch_variance(images: Tensor, kernel: int) -> Tensor:
    """Variance of the k x k patch of all channels around each pixel: [B, C, H, W] -> [B, 1, H, W].

    Pixels outside the image count as zero, as they do for the filters.
    """
    moments = torch.stack([images.mean(1), images.square().mean(1)]).unsqueeze(2)  # [2, B, 1, H, W]
    box = images.new_full((1, 1, kernel, kernel), kernel**-2)
    mean, square = same_convolution(moments.flatten(0, 1), box).unflatten(0, (2, len(images)))
    return (square - mean.square()).clamp_min_(0.0)
