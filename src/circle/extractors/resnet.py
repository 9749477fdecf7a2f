"""ResNet-18 with random weights that are never trained, normalised by identity batch norm or by layer norm."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from circle.config import option
from circle.extractors.base import ImageShape, frozen, kaiming_normal, tile_for
from circle.extractors.projection import ProjectedExtractor, StandardisedConfig
from circle.registry import register

STAGES, BLOCKS = 4, 2  # blocks in each stage
FINAL_CHANNELS = 2 ** (STAGES - 1)  # times those of the first stage
EPSILON = 1e-5  # added to variances, as in PyTorch's layers

Normalise = Callable[[Tensor], Tensor]
MakeLayer = Callable[[int, int, int, int], nn.Module]  # inputs, outputs, kernel, stride


@dataclass(frozen=True)
class ResNet18Config(StandardisedConfig):
    """Settings of both random ResNets."""

    first_kernel: int = option(3, "side of the first filters: 3, or 7 with stride 2 and max pooling for large images")
    base_channels: int = option(64, "filters of the first stage; later ones have up to 8 times as many")

    def check(self) -> None:
        super().check()
        self.require(self.first_kernel in (3, 7), "first_kernel", "3 or 7")
        self.require(self.base_channels > 0, "base_channels", "at least 1")


@dataclass(frozen=True)
class ResNet18BNConfig(ResNet18Config):
    """Settings of the random ResNet-18 with batch norm, see :func:`initial_batch_norm`."""

    name: ClassVar[str] = "resnet18_bn"


@dataclass(frozen=True)
class ResNet18LNConfig(ResNet18Config):
    """Settings of the random ResNet-18 with layer norm, see :func:`layer_norm` and :func:`channel_norm`."""

    name: ClassVar[str] = "resnet18_ln"

    layer_norm_over: Literal["all", "channels"] = option(
        "all", "layer norm over all values of an image's maps at once, or over the channels of each pixel"
    )


@register("extractor", ResNet18BNConfig)
@register("extractor", ResNet18LNConfig)
class ResNet18(ProjectedExtractor[ResNet18Config]):
    """z = mean over pixels of x after eight residual blocks, [B, 8 c] with c = ``base_channels``.

        x <- relu(N(K * x)), [B, c, H, W];  after 7 x 7 filters of stride 2: 3 x 3 max pooling of stride 2
        x <- relu(N(K2 * relu(N(K1 * x))) + s(x)), eight times, two each with c, 2 c, 4 c and 8 c channels

    s(x) is x, but N(K3 * x) with 1 x 1 filters where the channels double; there K1 and K3 have stride 2. All filters
    are Kaiming normal with fan-out and have no bias. N is batch norm as it was made, or layer norm.

    >>> from circle.extractors import ImageShape
    >>> extractor = ResNet18(ResNet18BNConfig(base_channels=8), ImageShape(3, 32, 32), seed=0)
    >>> extractor.features(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape == (2, extractor.size)
    True
    """

    #: A single image takes convolutions that add in another order; two or more agree on every map size (measured).
    minimum_batch = 2

    def __init__(self, config: ResNet18Config, shape: ImageShape, seed: int) -> None:
        super().__init__(config, shape, seed)
        generator = torch.Generator().manual_seed(seed)
        normalise = initial_batch_norm
        if isinstance(config, ResNet18LNConfig):
            normalise = layer_norm if config.layer_norm_over == "all" else channel_norm
        channels = config.base_channels
        stride, shrink = (1, 1) if config.first_kernel == 3 else (2, 4)  # of the first layer, and with its pooling
        self.tile = tile_for(channels * math.ceil(shape.height / shrink) * math.ceil(shape.width / shrink))
        layer = partial(Layer, normalise=normalise, generator=generator)
        self.first = layer(shape.channels, channels, config.first_kernel, stride)
        self.blocks = residual_blocks(channels, layer)
        # Every normalisation has a weight and a bias per channel; they count, though they are one and zero.
        fixed = sum(weight.numel() + 2 * len(weight) for weight in self.buffers())
        self.finish(FINAL_CHANNELS * channels, fixed, generator)

    def vector(self, images: Tensor) -> Tensor:
        maps = self.first(images.contiguous(memory_format=torch.channels_last)).relu_()
        if self.config.first_kernel == 7:
            maps = functional.max_pool2d(maps, 3, stride=2, padding=1)
        return self.blocks(maps).mean((2, 3))


class Layer(nn.Module):
    """N(K * x): [B, inputs, H, W] -> [B, outputs, H / stride, W / stride], sides rounded up."""

    weight: Tensor  # [outputs, inputs, kernel, kernel]

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int, *, normalise: Normalise, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.stride, self.padding, self.normalise = stride, kernel // 2, normalise
        weight = kaiming_normal((outputs, inputs, kernel, kernel), outputs * kernel * kernel, generator)
        frozen(self, "weight", weight.contiguous(memory_format=torch.channels_last))

    def forward(self, maps: Tensor) -> Tensor:
        return self.normalise(functional.conv2d(maps, self.weight, stride=self.stride, padding=self.padding))


class Block(nn.Module):
    """relu(second(relu(first(x))) + shortcut(x)); halves the sides where it changes the number of channels.

    ``layer`` makes a convolution and its normalisation: frozen here, trained in the networks of the rivals.
    """

    def __init__(self, inputs: int, outputs: int, layer: MakeLayer) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.first = layer(inputs, outputs, 3, stride)
        self.second = layer(outputs, outputs, 3, 1)
        self.shortcut = nn.Identity() if stride == 1 else layer(inputs, outputs, 1, stride)

    def forward(self, maps: Tensor) -> Tensor:
        return self.second(self.first(maps).relu_()).add_(self.shortcut(maps)).relu_()


def residual_blocks(channels: int, layer: MakeLayer) -> nn.Sequential:
    """The eight blocks of a ResNet-18: [B, c, H, W] -> [B, 8 c, H / 8, W / 8] with c = ``channels``."""
    blocks = nn.Sequential()
    inputs = channels
    for stage in range(STAGES):
        outputs = channels * 2**stage
        blocks.append(Block(inputs, outputs, layer))
        blocks.extend(Block(outputs, outputs, layer) for _ in range(BLOCKS - 1))
        inputs = outputs
    return blocks


def initial_batch_norm(maps: Tensor) -> Tensor:
    """N(x) = x / sqrt(1 + 1e-5), in place: batch norm with the mean 0, variance 1, weight 1 and bias 0 it starts with.

    It is the one mode in which a feature depends on its own image alone. With statistics of the batch it would depend
    on the classes that share the task, or the test batch; with running averages it would drift, while sums of earlier
    features are kept.

    Nothing is ever centred, so features of different images have a cosine of 0.99: what tells images apart is small
    beside what they share. The offset of the calibrated grid takes that common part away.
    """
    return maps.mul_((1.0 + EPSILON) ** -0.5)


def layer_norm(maps: Tensor) -> Tensor:
    """N(x) = (x - mean) / sqrt(variance + 1e-5) over the C H W values of one image: group norm with one group."""
    return functional.group_norm(maps, 1, eps=EPSILON)


def channel_norm(maps: Tensor) -> Tensor:
    """N(x) = (x - mean) / sqrt(variance + 1e-5) over the C values at each pixel of one image."""
    by_pixel = maps.permute(0, 2, 3, 1)  # [B, H, W, C], contiguous
    return functional.layer_norm(by_pixel, by_pixel.shape[-1:], eps=EPSILON).permute(0, 3, 1, 2)
