"""Networks that the rivals train: a ResNet-18 of any width, a small convolutional network, heads that grow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from circle.config import Config, option
from circle.extractors.base import kaiming_normal
from circle.extractors.resnet import FINAL_CHANNELS, residual_blocks

GRID = 4  # the small network averages its maps to 4 x 4, so that it takes images of any size


@dataclass(frozen=True)
class NetworkConfig(Config):
    """Settings of a network that is trained."""

    network: Literal["resnet18", "convnet"] = option("resnet18", "ResNet-18, or two strided convolutions")
    width: int = option(64, "channels of the first layer; 64 is the published ResNet-18, 16 suits a CPU")
    first_kernel: int = option(3, "side of the ResNet's first filters: 3, or 7 with stride 2")
    max_pool: bool = option(False, "whether the ResNet's first maps are halved by 3 x 3 max pooling")

    def check(self) -> None:
        self.require(self.width >= 1, "width", "1 or more")
        self.require(self.first_kernel in (3, 7), "first_kernel", "3 or 7")


class ResNet18(nn.Module):
    """f(x): images [B, C, H, W] -> features [B, 8 w], w = ``width``, never negative: the last ReLU is kept.

    11,168,832 parameters with w = 64 and a 3 x 3 first layer of stride 1, 11,176,512 with 7 x 7 of stride 2; the
    max pooling that goes with the latter has none. PyCIL's "ResNet-18 CBAM" builds attention modules that its
    forward pass never calls, so it is this network, too.
    """

    def __init__(
        self, channels: int, generator: torch.Generator, *, width: int = 64, first_kernel: int = 3, max_pool: bool
    ) -> None:
        super().__init__()
        self.size, self.max_pool = FINAL_CHANNELS * width, max_pool

        def layer(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Module:
            return ConvolutionNorm(inputs, outputs, kernel, stride, generator)

        self.first = layer(channels, width, first_kernel, 1 if first_kernel == 3 else 2)
        self.blocks = residual_blocks(width, layer)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.first(images.contiguous(memory_format=torch.channels_last)).relu_()
        if self.max_pool:
            maps = functional.max_pool2d(maps, 3, stride=2, padding=1)
        return self.blocks(maps).mean((2, 3))


class ConvolutionNorm(nn.Module):
    """BatchNorm(K * x) without a bias, K Kaiming normal with fan-out."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, generator: torch.Generator) -> None:
        super().__init__()
        # Pixels that a 1 x 1 filter skips are left out beforehand: PyTorch 2.13 writes outside of its memory in the
        # gradient of such a strided filter on fewer than eight channels.
        self.skip, self.stride = (stride, 1) if kernel == 1 else (1, stride)
        self.padding = kernel // 2
        weight = kaiming_normal((outputs, inputs, kernel, kernel), outputs * kernel * kernel, generator)
        self.weight = nn.Parameter(weight.contiguous(memory_format=torch.channels_last))
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, maps: Tensor) -> Tensor:
        if self.skip > 1:
            maps = maps[:, :, :: self.skip, :: self.skip].contiguous(memory_format=torch.channels_last)
        maps = functional.conv2d(maps, self.weight, stride=self.stride, padding=self.padding)
        if self.norm.training and maps[:, 0].numel() == 1:
            # A single value has no variance: the running statistics stand in.
            norm = self.norm
            return functional.batch_norm(maps, norm.running_mean, norm.running_var, norm.weight, norm.bias)
        return self.norm(maps)


class ConvNet(nn.Module):
    """Two 3 x 3 convolutions of stride 2 with ReLUs, averaged to 4 x 4: [B, C, H, W] -> [B, 32 w].

    For images of a few pixels, where a ResNet would be slow and no better.
    """

    def __init__(self, channels: int, generator: torch.Generator, *, width: int) -> None:
        super().__init__()
        self.size = 2 * width * GRID**2
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for inputs, outputs in ((channels, width), (width, 2 * width)):
            self.weights.append(nn.Parameter(kaiming_normal((outputs, inputs, 3, 3), 9 * inputs, generator)))
            self.biases.append(nn.Parameter(torch.zeros(outputs)))

    def forward(self, images: Tensor) -> Tensor:
        maps = images * 0.25  # pixels between -1/2 and 1/2
        for weight, bias in zip(self.weights, self.biases, strict=True):
            maps = functional.relu(functional.conv2d(maps, weight, bias, stride=2, padding=1))
        return functional.adaptive_avg_pool2d(maps, GRID).flatten(1)


class Narrowed(nn.Module):
    """A network with signed features of any size: P f(x) + b, [B, C, H, W] -> [B, size].

    The same as a 1 x 1 convolution of the last maps before they are averaged. P and b are uniform on +-1/sqrt(d).
    """

    def __init__(self, network: ResNet18 | ConvNet, size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.network, self.size = network, size
        bound = network.size**-0.5
        self.weight = nn.Parameter(torch.empty(size, network.size).uniform_(-bound, bound, generator=generator))
        self.bias = nn.Parameter(torch.empty(size).uniform_(-bound, bound, generator=generator))

    def forward(self, images: Tensor) -> Tensor:
        return functional.linear(self.network(images), self.weight, self.bias)


Backbone = ResNet18 | ConvNet | Narrowed


def build_backbone(config: NetworkConfig, channels: int, generator: torch.Generator) -> ResNet18 | ConvNet:
    """The network that a config describes, its weights drawn from the generator."""
    if config.network == "convnet":
        return ConvNet(channels, generator, width=config.width)
    return ResNet18(channels, generator, width=config.width, first_kernel=config.first_kernel, max_pool=config.max_pool)


def norm_parameters(network: nn.Module) -> list[nn.Parameter]:
    """Weights and biases of a network's batch norms."""
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    return [parameter for norm in norms for parameter in norm.parameters()]


def train_mode(network: nn.Module, *, batch_statistics: bool) -> None:
    """Training mode, in which batch norms normalise by the batch, or go on using their running statistics."""
    network.train()
    if not batch_statistics:
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()


class LinearHead(nn.Module):
    """z = W f + b, [B, d] -> [B, classes]; :meth:`grow` adds rows and keeps the others as they are.

    New rows are uniform with variance ``gain`` / d, biases start at zero.
    """

    def __init__(self, size: int, *, bias: bool = True, gain: float = 1.0) -> None:
        super().__init__()
        self.gain = gain
        self.weight = nn.Parameter(torch.zeros(0, size))
        self.bias = nn.Parameter(torch.zeros(0)) if bias else None

    def grow(self, rows: int, generator: torch.Generator) -> None:
        """Make room for ``rows`` more classes."""
        size = self.weight.shape[1]
        bound = math.sqrt(3.0 * self.gain / size)
        new = torch.empty(rows, size).uniform_(-bound, bound, generator=generator)
        self.weight = _longer(self.weight, new)
        if self.bias is not None:
            self.bias = _longer(self.bias, torch.zeros(rows))

    def forward(self, features: Tensor) -> Tensor:
        return functional.linear(features, self.weight, self.bias)


class CosineHead(nn.Module):
    """z_c = sigma cos(f, w_c), [B, d] -> [B, classes], with a learned scale sigma that starts at 1."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(0, size))
        self.scale = nn.Parameter(torch.ones(()))

    def grow(self, rows: int, generator: torch.Generator) -> None:
        """Make room for ``rows`` more classes; their vectors are uniform, of which only the direction counts."""
        bound = self.weight.shape[1] ** -0.5
        self.weight = _longer(
            self.weight, torch.empty(rows, self.weight.shape[1]).uniform_(-bound, bound, generator=generator)
        )

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * (unit_rows(features) @ unit_rows(self.weight).T)


GrowingHead = LinearHead | CosineHead


def unit_rows(values: Tensor) -> Tensor:
    """v / |v| for each row [N, d]; rows of zeros stay. Nothing is added to the norm: features may be tiny."""
    largest = values.detach().abs().amax(1, keepdim=True)  # whose squares would vanish, or overflow
    values = values / largest.where(largest > 0, 1.0)
    norms = torch.linalg.vector_norm(values, dim=1, keepdim=True)
    return values / norms.where(norms > 0, 1.0)


def _longer(rows: nn.Parameter, new: Tensor) -> nn.Parameter:
    return nn.Parameter(torch.cat([rows.detach(), new.to(rows)]))
