"""What every extractor is: a frozen module, fully determined by its config, the image shape and a seed."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from circle import machine
from circle.config import Config
from circle.errors import CircleError
from circle.registry import entry


@dataclass(frozen=True)
class ImageShape:
    """Channels, height and width of the images an extractor takes."""

    channels: int
    height: int
    width: int


@dataclass(frozen=True)
class ParameterCount:
    """Numbers that a model uses: trained, drawn once and stored, or drawn anew from the seed when needed."""

    learnable: int = 0
    fixed: int = 0
    generated: int = 0

    def __add__(self, other: ParameterCount) -> ParameterCount:
        return ParameterCount(
            self.learnable + other.learnable, self.fixed + other.fixed, self.generated + other.generated
        )


class Extractor(nn.Module, ABC):
    """Base of all extractors: z = phi(x).

    ``forward`` takes images uint8 [B, C, H, W] and returns values [B, size] that :class:`Grid` then rounds. It never
    sees a statistic of the data. The values of a ``portable`` extractor are integers, the same on every machine.
    """

    size: int
    #: Whether every processor, number of threads, batch and library gives the same integers, by construction.
    portable: bool = False
    #: Kernels for very small batches add in another order; :func:`extract` never calls forward with fewer images.
    minimum_batch: int = 1
    #: Images per call that stay in cache; more are cut into tiles of this many.
    tile: int = 32
    #: Bits of the grid that the features are rounded to, 8 or 16.
    bits: int = 8
    #: Whether the seed has a say; members without one would all be the same.
    seeded: bool = True

    def __init__(self, config: Config, shape: ImageShape, seed: int) -> None:
        super().__init__()
        self.config = config
        self.shape = shape
        self.seed = seed

    @property
    def dtype(self) -> torch.dtype:
        """Of the values that :meth:`forward` returns: float32, unless the extractor was brought to another type."""
        return torch.float32

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor: ...

    @abstractmethod
    def parameter_count(self) -> ParameterCount: ...

    def features(self, images: Tensor) -> Tensor:
        """Features of any number of images, [N, size], in cache-sized tiles."""
        return extract([self], images)[0]

    def parts(self) -> list[Tensor]:
        """The columns, int64 and ascending, of each part of the features that can be computed without the others.

        Most extractors are one part: everything in them feeds everything.
        """
        return [torch.arange(self.size)]

    def keep(self, parts: Sequence[int]) -> Extractor:
        """The extractor of these parts alone, numbers of :meth:`parts`, ascending; it does no work for the others.

        Its features are those columns of the whole extractor's, but for the last bits where it is not portable.
        """
        check_parts(parts, len(self.parts()), self.config.name)
        return self


def extract(extractors: Sequence[Extractor], images: Tensor) -> list[Tensor]:
    """Features [N, size] of the same images from several extractors, shared out over the cores tile by tile."""
    if images.dtype != torch.uint8:
        raise CircleError(f"images of type {images.dtype}: expected {torch.uint8}, values from 0 to 255")
    results = [
        torch.empty(len(images), extractor.size, dtype=extractor.dtype, device=images.device)
        for extractor in extractors
    ]
    share = math.ceil(len(images) * len(extractors) / torch.get_num_threads())

    def job(extractor: Extractor, result: Tensor, start: int, length: int) -> None:
        # Both belong to a thread, so every job enters them; a caller's mixed precision would not be exact.
        with torch.inference_mode(), torch.autocast(images.device.type, enabled=False):
            tile = images[start : start + length]
            count = len(tile)
            if count < extractor.minimum_batch:
                filler = tile[:1].expand(extractor.minimum_batch - count, -1, -1, -1)
                tile = torch.cat([tile, filler])
            result[start : start + count] = extractor(tile)[:count]

    jobs = [
        partial(job, extractor, result, start, length)
        for extractor, result in zip(extractors, results, strict=True)
        # A few images are shared out, too.
        for length in [max(1, min(extractor.tile, share))]
        for start in range(0, len(images), length)
    ]
    with machine.full_precision():
        machine.run_jobs(jobs)
    return results


def check_parts(parts: Sequence[int], count: int, name: str) -> None:
    """Refuse numbers that are not ascending, or not those of parts that an extractor has."""
    ascending = all(before < after for before, after in pairwise(parts))
    if not parts or not ascending or parts[0] < 0 or parts[-1] >= count:
        raise CircleError(
            f"parts {list(parts)} of extractor {name!r}: expected at least one, ascending, from 0 to {count - 1}"
        )


def build_extractor(config: Config, shape: ImageShape, seed: int) -> Extractor:
    """The registered extractor that a config describes, its weights drawn from the seed."""
    return entry("extractor", config.name).part(config, shape, seed)


def tile_for(values: int, most: int = 32, least: int = 2) -> int:
    """Images per tile where the widest maps hold that many values per image: 8 MiB of float32, near the cache.

    Memory is the other reason: calibration runs in float64, whose 3 x 3 convolutions unfold their input ninefold.
    """
    return max(least, min(most, 2**21 // max(1, values)))


def kaiming_uniform(shape: tuple[int, ...], fan_in: int, generator: torch.Generator, slope: float = 0.01) -> Tensor:
    """Uniform on +-sqrt(6 / ((1 + slope^2) fan_in)), which keeps the variance through a leaky ReLU."""
    bound = math.sqrt(6.0 / ((1.0 + slope * slope) * fan_in))
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)


def kaiming_normal(shape: tuple[int, ...], fan: int, generator: torch.Generator) -> Tensor:
    """Normal with variance 2 / fan: through ReLUs, fan-in keeps the variance of values, fan-out that of gradients."""
    return torch.empty(shape).normal_(0.0, math.sqrt(2.0 / fan), generator=generator)


def frozen(module: nn.Module, name: str, tensor: Tensor) -> None:
    """Keep a fixed weight in a module: it moves with ``.to(device)``, is not trained and not saved."""
    module.register_buffer(name, tensor, persistent=False)
