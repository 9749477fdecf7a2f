"""Random convolutional stems: local features for the reservoirs to scan."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from circle.extractors.base import frozen, kaiming_uniform


class PlainStem(nn.Module):
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
        super().__init__()
        self.slope = slope
        self.layers = len(channels)
        for layer, (outputs, kernel) in enumerate(zip(channels, kernels, strict=True)):
            fan_in = inputs * kernel * kernel
            weight = kaiming_uniform((outputs, inputs, kernel, kernel), fan_in, generator, slope)
            frozen(self, f"weight_{layer}", weight.contiguous(memory_format=torch.channels_last))
            if bias:
                bound = fan_in**-0.5
                frozen(self, f"bias_{layer}", torch.empty(outputs).uniform_(-bound, bound, generator=generator))
            inputs = outputs
        self.bias = bias
        self.channels = inputs

    def forward(self, images: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, channels, H, W], channels last in memory."""
        for layer in range(self.layers):
            bias = self.get_buffer(f"bias_{layer}") if self.bias else None
            images = functional.conv2d(images, self.get_buffer(f"weight_{layer}"), bias, padding="same")
            images = functional.leaky_relu_(images, self.slope)
        return images

    def parameters_fixed(self) -> int:
        return sum(buffer.numel() for buffer in self.buffers())


class ContrastStem(nn.Module):
    """Contrast-normalised random filters, both signs kept: a layer doubles its filters into maps.

        r = (f * x) / sqrt(variance of the patch + epsilon)        maps: max(r, 0), max(-r, 0)

    The filters f are random with mean zero and norm one, so neither brightness nor contrast of a patch decides
    its response. The variance runs over all channels and pixels under the filter.
    """

    def __init__(
        self,
        inputs: int,
        channels: Sequence[int],
        kernels: Sequence[int],
        generator: torch.Generator,
        *,
        epsilon: float,
    ) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.kernels = tuple(kernels)
        for layer, (outputs, kernel) in enumerate(zip(channels, kernels, strict=True)):
            weight = kaiming_uniform((outputs, inputs * kernel * kernel), 1, generator)
            if weight.shape[1] > 1:  # a filter of a single weight has no shape but its mean
                weight -= weight.mean(1, keepdim=True)
            weight /= weight.norm(dim=1, keepdim=True)
            weight = weight.view(outputs, inputs, kernel, kernel)
            frozen(self, f"weight_{layer}", weight.contiguous(memory_format=torch.channels_last))
            inputs = 2 * outputs
        self.channels = inputs

    def forward(self, images: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, channels, H, W], channels last in memory."""
        for layer, kernel in enumerate(self.kernels):
            weight = self.get_buffer(f"weight_{layer}")
            response = functional.conv2d(images, weight, padding="same")
            response /= (patch_variance(images, kernel) + self.epsilon).sqrt_()
            images = torch.cat([response.relu(), (-response).relu_()], 1)
        return images

    def parameters_fixed(self) -> int:
        return sum(buffer.numel() for buffer in self.buffers())


def patch_variance(images: Tensor, kernel: int) -> Tensor:
    """Variance of the k x k patch of all channels around each pixel: [B, C, H, W] -> [B, 1, H, W].

    Pixels outside the image count as zero, as they do for the filters.
    """
    moments = torch.stack([images.mean(1), images.square().mean(1)]).unsqueeze(2)  # [2, B, 1, H, W]
    box = images.new_full((1, 1, kernel, kernel), kernel**-2)
    mean, square = functional.conv2d(moments.flatten(0, 1), box, padding="same").unflatten(0, (2, len(images)))
    return (square - mean.square()).clamp_min_(0.0)
