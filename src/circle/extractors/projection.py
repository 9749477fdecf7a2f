"""How extractors begin and end: constants for the pixels, and a random projection that no file ever holds."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

from circle.config import Config, option
from circle.errors import CircleError
from circle.extractors.base import Extractor, ParameterCount, frozen, kaiming_uniform

MAXIMUM_DENSE = 2**27  # entries; half a GiB of float32 in memory
MINIMUM_ROWS = 8  # products of one to three rows take kernels that add in another order (measured)


@dataclass(frozen=True)
class ProjectedConfig(Config):
    """Settings of the last steps, which all extractors share."""

    bits: Literal[8, 16] = option(8, "of the grid that features are rounded to: 16 for features that are much alike")
    mirror: bool = option(False, "whether the vectors of an image and of its mirror image are averaged")
    projection: Literal["none", "linear", "relu"] = option("none", "final random projection, with or without a ReLU")
    projection_size: int = option(1100, "length of the projected vector")
    projection_fan_in: int = option(0, "values that an output of a sparse projection adds up; 0 = dense")

    def check(self) -> None:
        self.require(self.projection_size > 0, "projection_size", "at least 1")
        self.require(self.projection_fan_in >= 0, "projection_fan_in", "0 or more")


@dataclass(frozen=True)
class StandardisedConfig(ProjectedConfig):
    """Settings of extractors that compute with real numbers: pixels get about zero mean and unit variance first."""

    input_mean: float = option(0.5, "constant subtracted from every pixel, from 0 to 1")
    input_scale: float = option(0.25, "constant every pixel is then divided by")

    def check(self) -> None:
        super().check()
        self.require(self.input_scale > 0, "input_scale", "a positive number")


Settings = TypeVar("Settings", bound=ProjectedConfig)
Standardised = TypeVar("Standardised", bound=StandardisedConfig)


def output_projection(config: ProjectedConfig, inputs: int, generator: torch.Generator) -> RandomProjection | None:
    """The projection of ``inputs`` values that a config asks for, if it asks for one."""
    if config.projection == "none":
        return None
    return RandomProjection(
        inputs,
        config.projection_size,
        generator,
        fan_in=config.projection_fan_in,
        relu=config.projection == "relu",
    )


class ProjectedExtractor(Extractor, Generic[Standardised]):
    """z = P v((x - mean) / scale): subclasses make the vector v, this class its input and the projection P, if any.

    Mean and scale are constants, so that no statistic of the data has a say. With ``mirror`` the vector is
    (v(x) + v(mirror image of x)) / 2. A linear head that learned every image and its mirror image could not use
    anything else: for filters that come in mirrored pairs, the other half (v(x) - v(mirror image)) / 2 has the same
    mean, zero, in every class. So this teaches mirror images at no cost in samples, and halves the features needed.
    """

    config: Standardised
    projection: RandomProjection | None
    fixed: int

    @abstractmethod
    def vector(self, images: Tensor) -> Tensor:
        """Images [B, C, H, W] of about zero mean and unit variance, free to be changed -> [B, length]."""

    def mirrored_vector(self, images: Tensor) -> Tensor:
        """The mean of :meth:`vector` of images and of their mirror images [B, length]."""
        # Both at once: half as many calls of operations that are short on small tiles.
        straight, mirrored = self.vector(torch.cat([images, images.flip(3)])).chunk(2)
        return (straight + mirrored).div_(2.0)

    def finish(self, length: int, fixed: int, generator: torch.Generator) -> None:
        """The end of a constructor: ``length`` values per vector, made with ``fixed`` numbers drawn so far."""
        self.projection = output_projection(self.config, length, generator)
        self.size = self.projection.outputs if self.projection else length
        self.bits = self.config.bits
        self.fixed = fixed

    @property
    def dtype(self) -> torch.dtype:
        return next((buffer.dtype for buffer in self.buffers() if buffer.is_floating_point()), torch.float32)

    def forward(self, images: Tensor) -> Tensor:
        images = images.to(self.dtype).div_(255.0).sub_(self.config.input_mean).div_(self.config.input_scale)
        vector = self.mirrored_vector(images) if self.config.mirror else self.vector(images)
        return self.projection(vector) if self.projection else vector

    def parameter_count(self) -> ParameterCount:
        return ParameterCount(fixed=self.fixed, generated=self.projection.generated if self.projection else 0)


class RandomProjection(nn.Module):
    """y = activation(R x), R [outputs, inputs] random and fixed.

    ``fan_in = 0``: R is dense, Kaiming uniform, drawn from the generator. For inputs of a few thousand values.

    ``fan_in > 0``: R is sparse. Each output adds ``fan_in`` inputs with random signs, scaled to keep the variance;
    the inputs are dealt out from shuffled decks, so that all are used equally often. By the central limit theorem
    the outputs are distributed as with a dense R, at a fraction of the memory and work; it serves flattened maps
    of 100,000 values and more.
    """

    index: Tensor  # [outputs, fan_in]
    signs: Tensor  # [outputs, fan_in]
    dense: Tensor  # [outputs, inputs]

    def __init__(
        self, inputs: int, outputs: int, generator: torch.Generator, *, fan_in: int = 0, relu: bool = False
    ) -> None:
        super().__init__()
        self.inputs, self.outputs, self.relu = inputs, outputs, relu
        self.fan_in = min(fan_in, inputs)
        if self.fan_in:
            decks = math.ceil(outputs * self.fan_in / inputs)
            dealt = torch.cat([torch.randperm(inputs, generator=generator) for _ in range(decks)])
            signs = torch.randint(0, 2, (outputs, self.fan_in), generator=generator) * 2.0 - 1.0
            frozen(self, "index", dealt[: outputs * self.fan_in].view(outputs, self.fan_in).contiguous())
            frozen(self, "signs", signs * math.sqrt(2.0 / self.fan_in))
        else:
            if inputs * outputs > MAXIMUM_DENSE:
                raise CircleError(
                    f"a dense projection of {inputs:,} to {outputs:,} values is too large: "
                    "set projection_fan_in (1024, say) for a sparse one"
                )
            frozen(self, "dense", kaiming_uniform((outputs, inputs), inputs, generator, slope=0.0))

    @property
    def generated(self) -> int:
        """Numbers drawn from the seed (an index and a sign count as one)."""
        return self.outputs * (self.fan_in or self.inputs)

    def forward(self, values: Tensor) -> Tensor:
        """[B, inputs] -> [B, outputs], the same bits for any B."""
        count = len(values)
        if count < MINIMUM_ROWS:
            values = nn.functional.pad(values, (0, 0, 0, MINIMUM_ROWS - count))
        if self.fan_in:
            # Row i of the transposed input holds value i of all images, so a gather reads whole cache lines.
            result = nn.functional.embedding_bag(
                self.index, values.T.contiguous(), mode="sum", per_sample_weights=self.signs.to(values.dtype)
            ).T.contiguous()
        else:
            result = values @ self.dense.T.to(values.dtype)
        result = result[:count]
        return result.relu() if self.relu else result
