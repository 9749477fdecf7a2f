"""One reservoir that reads an image patch by patch, over pixels or over a random convolutional stem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from circle import linalg
from circle.config import option
from circle.errors import CircleError
from circle.extractors.base import ImageShape, frozen, kaiming_uniform, tile_for
from circle.extractors.calibration import calibration_images
from circle.extractors.projection import ProjectedExtractor, StandardisedConfig
from circle.extractors.reservoir import ReservoirConfig, patches
from circle.extractors.stem import StemConfig
from circle.registry import register

LARGEST_STATE = 1e6  # float32 features beyond it have no use, and before long no bound


@dataclass(frozen=True)
class PatchRNNConfig(StandardisedConfig, ReservoirConfig):
    """Settings of Patch-RNN."""

    name: ClassVar[str] = "patch_rnn"

    patch_size: int = option(0, "side of the patches; 0 = an eighth of the image's shorter side")
    width: int = option(512, "reservoir units")
    activation: Literal["tanh", "relu"] = option("tanh", "f of the recurrence; relu may diverge, and is then refused")

    def check(self) -> None:
        super().check()
        self.require(self.patch_size >= 0, "patch_size", "at least 1, or 0 for an eighth of the image's shorter side")
        self.require(self.width > 0, "width", "at least 1")

    def patch_for(self, shape: ImageShape) -> int:
        """Side of the patches for images of a shape."""
        return self.patch_size or max(1, min(shape.height, shape.width) // 8)


@dataclass(frozen=True)
class ConvPatchRNNConfig(StemConfig, PatchRNNConfig):
    """Settings of Patch-RNN over a random convolutional stem."""

    name: ClassVar[str] = "conv_patch_rnn"

    stem_channels: tuple[int, ...] = option((16, 32), "filters of each stem layer; none = reservoirs see pixels")
    stem_kernels: tuple[int, ...] = option((3, 3), "side of each stem layer's filters")


@register("extractor", PatchRNNConfig)
@register("extractor", ConvPatchRNNConfig)
class PatchRNN(ProjectedExtractor[PatchRNNConfig]):
    """z = h_L, the state after the last of L patches in raster order, [B, width].

        h_l = (1 - a) h_{l-1} + a f(W_in x_l + W h_{l-1}),    h_0 = 0

    x_l holds the pixels of a p x p patch or, with Conv-Patch-RNN, that patch of all maps of a random stem. Patches do
    not overlap, and images that p does not divide are padded with zeros. W_in is Kaiming uniform; W is sparse and
    rescaled to the spectral radius.

    With f = tanh no state exceeds one. With f = relu nothing bounds them: a radius below one does not, W not being
    normal, nor does a larger one make them grow for sure. So the constructor reads one image of synthetic noise and
    refuses settings whose states exceed 1e6. Without bias, states grow in proportion to the input, and no image has
    standardised pixels much larger than the noise's: what passes is finite for all images.

    >>> from circle.extractors import ImageShape
    >>> extractor = PatchRNN(PatchRNNConfig(), ImageShape(3, 32, 32), seed=0)
    >>> extractor.features(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape == (2, extractor.size)
    True
    """

    weight_in: Tensor  # [p p C, width]
    recurrent: Tensor  # [width, width], transposed
    #: A step's products have a row per image; fewer than four rows take kernels that add in another order (measured).
    minimum_batch = 8

    def __init__(self, config: PatchRNNConfig, shape: ImageShape, seed: int) -> None:
        super().__init__(config, shape, seed)
        generator = torch.Generator().manual_seed(seed)
        self.stem = draw_stem(config, shape.channels, generator)
        # Many rows make the steps' products fast; only a stem's maps of large images are too large for many.
        values = self.stem.channels * shape.height * shape.width
        self.tile = tile_for(values, most=128, least=16 if self.stem.shapes else 64)
        self.patch = config.patch_for(shape)
        inputs, width = self.patch**2 * self.stem.channels, config.width
        # The gain for the activation: tanh passes small values as they are, a ReLU halves their variance.
        slope = 1.0 if config.activation == "tanh" else 0.0
        weight_in = kaiming_uniform((width, inputs), inputs, generator, slope)
        recurrent = sparse_recurrent(width, config.sparsity, config.radius, generator, slope)
        frozen(self, "weight_in", weight_in.T.contiguous())
        frozen(self, "recurrent", recurrent.T.contiguous())
        fixed = self.stem.parameters_fixed() + weight_in.numel() + int((recurrent != 0).sum())
        self.finish(width, fixed, generator)
        if config.activation == "relu":
            self._refuse_divergence()

    def vector(self, images: Tensor) -> Tensor:
        maps = self.stem(images.contiguous(memory_format=torch.channels_last)).permute(0, 2, 3, 1)
        sequence = patches(maps, self.patch).flatten(1, 2).transpose(0, 1)  # [L, B, p p C]
        activation = torch.tanh_ if self.config.activation == "tanh" else torch.relu_
        state = images.new_zeros(len(images), self.config.width)
        for patch in sequence:
            # The inputs' product is made step by step: for all steps at once it would leave the cache.
            drive = (patch @ self.weight_in).addmm_(state, self.recurrent)
            state.lerp_(activation(drive), self.config.leak)
        return state

    @torch.inference_mode()
    def _refuse_divergence(self) -> None:
        config = self.config
        noise = calibration_images(1, self.shape).float().div_(255.0).sub_(config.input_mean).div_(config.input_scale)
        largest = float(self.vector(noise).abs().max())
        if not largest <= LARGEST_STATE:
            raise CircleError(
                f"{config.name}.radius = {config.radius!r}: the states of a relu reservoir reach {largest:.1g} on "
                f"{self.shape.height} x {self.shape.width} images, expected at most {LARGEST_STATE:.0g}; "
                "lower radius or leak, or set activation = tanh"
            )


def draw_stem(config: PatchRNNConfig, channels: int, generator: torch.Generator) -> ConvolutionStem:
    """The random convolutions of Conv-Patch-RNN; for Patch-RNN a stem without layers, which passes pixels on."""
    if not isinstance(config, ConvPatchRNNConfig):
        return ConvolutionStem(channels, (), (), generator, slope=0.0, bias=False)
    return ConvolutionStem(
        channels, config.stem_channels, config.stem_kernels, generator, slope=config.slope, bias=config.stem_bias
    )


class ConvolutionStem(nn.Module):
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
        self.slope, self.bias = slope, bias
        self.shapes: list[tuple[int, int, int, int]] = []  # of the layers' weights
        for layer, (outputs, kernel) in enumerate(zip(channels, kernels, strict=True)):
            shape, fan_in = (outputs, inputs, kernel, kernel), inputs * kernel**2
            weight = kaiming_uniform(shape, fan_in, generator, slope)
            frozen(self, f"weight_{layer}", weight.contiguous(memory_format=torch.channels_last))
            if bias:
                bound = fan_in**-0.5
                frozen(self, f"bias_{layer}", torch.empty(outputs).uniform_(-bound, bound, generator=generator))
            self.shapes.append(shape)
            inputs = outputs
        self.channels = inputs

    def weight(self, layer: int) -> Tensor:
        return self.get_buffer(f"weight_{layer}")

    def parameters_fixed(self) -> int:
        return sum(buffer.numel() for buffer in self.buffers())

    def forward(self, images: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, channels, H, W], channels last in memory."""
        for layer in range(len(self.shapes)):
            bias = self.get_buffer(f"bias_{layer}") if self.bias else None
            images = functional.leaky_relu_(same_convolution(images, self.weight(layer), bias), self.slope)
        return images


def same_convolution(images: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Convolution that keeps height and width; an even kernel reaches one pixel further right and down.

    ``padding="same"`` is the same to the last bit, but warns of its padding for even kernels.
    """
    kernel = weight.shape[-1]
    if kernel % 2 == 0:
        images = functional.pad(images, (0, 1, 0, 1))
    return functional.conv2d(images, weight, bias, padding=(kernel - 1) // 2)


def sparse_recurrent(width: int, sparsity: float, radius: float, generator: torch.Generator, slope: float) -> Tensor:
    """W [r, r]: Kaiming uniform, a share ``sparsity`` of the entries zero, spectral radius ``radius``.

    The radius of a nilpotent draw (possible when few entries are left) is zero; it is kept as it is.
    """
    weight = kaiming_uniform((width, width), width, generator, slope)
    zeros = round(sparsity * width * width)
    weight.view(-1)[torch.randperm(width * width, generator=generator)[:zeros]] = 0.0
    own = linalg.spectral_radius(weight)
    return (weight.to(torch.float64) * (radius / own)).to(torch.float32) if own > 1e-9 else weight
