"""Contrast-normalised random filters, pooled: what BiRC2D's stem knows without any reservoir behind it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from circle.config import option
from circle.extractors.base import ImageShape, check_parts, frozen
from circle.extractors.contrast_bank import ContrastBank, tile_of
from circle.extractors.pooling import PooledConfig
from circle.extractors.projection import ProjectedExtractor
from circle.registry import register


@dataclass(frozen=True)
class LocalContrastConfig(PooledConfig):
    """Settings of the banks of filters; entry i of the first three describes bank i."""

    name: ClassVar[str] = "local_contrast"

    windows: Literal["box", "gaussian"] = option("gaussian", "windows that tile the map, or smooth ones that overlap")
    bits: Literal[8, 16] = option(16, "of the grid that features are rounded to: these ones are much alike")
    mirror: bool = option(True, "whether the vectors of an image and of its mirror image are averaged")
    filters: tuple[int, ...] = option((48,), "random filters of each bank; both signs of a response are kept")
    kernels: tuple[int, ...] = option((3,), "side of each bank's filters")
    reductions: tuple[int, ...] = option((1,), "how many times smaller the image is made for each bank")
    grey_share: float = option(0.5, "share of a bank's filters that weigh all colours alike")
    colours: int = option(8, "random functions of a pixel's colour alone, on the image of the finest bank")
    colour_offset: float = option(1.0, "largest constant in a function of colour")
    contrast_epsilon: float = option(0.05, "added to a patch's variance")

    @property
    def finest(self) -> int:
        """The smallest reduction: that of the image whose colours are taken."""
        return min(self.reductions, default=1)

    def check(self) -> None:
        super().check()
        banks = f"a positive number for each of the {len(self.filters)} banks in filters"
        self.require(all(count > 0 for count in self.filters), "filters", "positive numbers")
        self.require(len(self.filters) > 0 or self.colours > 0, "filters", "at least one bank where colours is 0")
        for field in ("kernels", "reductions"):
            values = getattr(self, field)
            self.require(len(values) == len(self.filters) and all(value > 0 for value in values), field, banks)
        self.require(all(side > 1 for side in self.kernels), "kernels", "2 or more: one pixel has no contrast")
        self.require(0 <= self.grey_share <= 1, "grey_share", "from 0 to 1")
        self.require(self.colours >= 0, "colours", "0 or more")
        self.require(self.colour_offset >= 0, "colour_offset", "zero or a positive number")
        self.require(self.contrast_epsilon > 0, "contrast_epsilon", "a positive number")


@register("extractor", LocalContrastConfig)
class LocalContrast(ProjectedExtractor[LocalContrastConfig]):
    """z = power(pool(max(r, 0)), pool(max(-r, 0))) of contrast-normalised responses r, and of functions of colour.

    For a bank of filters f_j on the image made ``reduction`` times smaller:

        r_j = (f_j * x) / sqrt(v + epsilon),      v = mean over channels of the patch's variance in each channel
        f_j = c_j s_j / |c_j s_j|,                s_j [k, k] normal with mean zero, c_j [channels] normal, or equal

    No filter sees brightness or colour of a patch, only their changes, and v takes the contrast out. What is lost
    comes back in a few functions of the pixels' colour, r = a.x + b with |a| = 1. Pooled are means and mean squares
    over windows. Maps and windows never exist at once for more than a tile of images.
    """

    colour_directions: Tensor  # [channels, colours]
    colour_offsets: Tensor  # [colours]

    def __init__(self, config: LocalContrastConfig, shape: ImageShape, seed: int) -> None:
        super().__init__(config, shape, seed)
        generator = torch.Generator().manual_seed(seed)
        fixed, tile = 0, 32
        #: Maps of each bank, then of colours; a bank that :meth:`keep` leaves none is not computed at all.
        self.counts = [*config.filters, config.colours]
        banks = zip(config.filters, config.kernels, config.reductions, strict=True)
        for bank, (count, kernel, reduction) in enumerate(banks):
            filters = separable_filters(count, shape.channels, kernel, config.grey_share, generator)
            # The last channels of the same convolution are the means that the variance needs.
            boxes = torch.eye(shape.channels)[:, :, None, None].expand(-1, -1, kernel, kernel) / kernel**2
            weight = torch.cat([filters, boxes]).contiguous(memory_format=torch.channels_last)
            frozen(self, f"weight_{bank}", weight)
            height, width = -(-shape.height // reduction), -(-shape.width // reduction)
            frozen(self, f"windows_{bank}", config.window_matrix(height, width))
            fixed += filters.numel()
            tile = min(tile, tile_of(height * width, (kernel**2 + 1) * shape.channels + 1))
        if config.colours:
            directions = torch.randn(config.colours, shape.channels, generator=generator)
            directions /= directions.norm(dim=1, keepdim=True)
            offsets = torch.empty(config.colours).uniform_(-1.0, 1.0, generator=generator) * config.colour_offset
            frozen(self, "colour_directions", directions.T.contiguous())
            frozen(self, "colour_offsets", offsets)
            finest = config.finest
            height, width = -(-shape.height // finest), -(-shape.width // finest)
            frozen(self, "colour_windows", config.window_matrix(height, width))
            fixed += directions.numel() + offsets.numel()
        self.finish(self._values_per_map * sum(self.counts), fixed, generator)
        self.tile, self.minimum_batch = tile, 1
        self._build_banks()

    @property
    def _values_per_map(self) -> int:
        """Both signs of a response, all moments, all windows."""
        return 2 * self.config.grid**2 * len(self.config.moments)

    def parts(self) -> list[Tensor]:
        """One part a filter, bank by bank, then one a function of colour; a projection mixes them all into one."""
        if self.projection is not None:
            return super().parts()
        sizes = [self._values_per_map * count for count in self.counts]
        columns = [
            block.view(self._values_per_map, count)
            for block, count in zip(torch.arange(self.size).split(sizes), self.counts, strict=True)
        ]
        return [column for block in columns for column in block.T]

    def keep(self, parts: Sequence[int]) -> LocalContrast:
        if self.projection is not None:
            super().keep(parts)
            return self
        check_parts(parts, sum(self.counts), self.config.name)
        result, first = copy.deepcopy(self), 0
        kept = torch.tensor(parts)
        result.counts = []
        for bank, count in enumerate(self.counts):
            rows = kept[(kept >= first) & (kept < first + count)] - first
            first += count
            result.counts.append(len(rows))
            if bank < len(self.config.filters):
                weight = self.get_buffer(f"weight_{bank}")
                # The means that the variance needs stay.
                cut = torch.cat([weight[rows], weight[count:]]).contiguous(memory_format=torch.channels_last)
                frozen(result, f"weight_{bank}", cut)
                result.fixed -= (count - len(rows)) * weight[0].numel()
            elif count:
                frozen(result, "colour_directions", self.colour_directions[:, rows].contiguous())
                frozen(result, "colour_offsets", self.colour_offsets[rows])
                result.fixed -= (count - len(rows)) * (len(self.colour_directions) + 1)
        result.size = self._values_per_map * len(parts)
        result._build_banks()
        return result

    def _build_banks(self) -> None:
        """The banks that have filters left; colours come with the first of their scale, or alone."""
        config = self.config
        owners = [bank for bank, reduction in enumerate(config.reductions) if reduction == config.finest]
        owner = next((bank for bank in owners if self.counts[bank]), None)
        self.banks = nn.ModuleList()
        for bank, (count, reduction) in enumerate(zip(self.counts[:-1], config.reductions, strict=True)):
            if count:
                filters = self.get_buffer(f"weight_{bank}")[:count]
                self._add_bank(filters, self.get_buffer(f"windows_{bank}"), reduction, colours=bank == owner)
        if owner is None and self.counts[-1]:
            none = self.colour_directions.new_zeros(0, self.shape.channels, 1, 1)
            self._add_bank(none, self.get_buffer("colour_windows"), config.finest, colours=True)

    def _add_bank(self, filters: Tensor, windows: Tensor, reduction: int, *, colours: bool) -> None:
        config = self.config
        if colours and self.counts[-1]:
            functions = torch.cat([self.colour_directions.T, self.colour_offsets[:, None]], 1)
        else:
            functions = filters.new_zeros(0, self.shape.channels + 1)
        self.banks.append(
            ContrastBank(
                filters,
                functions,
                windows,
                reduction=reduction,
                width=self.shape.width,
                mirror=config.mirror,
                moments=config.moments,
                epsilon=config.contrast_epsilon,
            )
        )

    def vector(self, images: Tensor) -> Tensor:
        return self._vectors(images)[0]

    def mirrored_vector(self, images: Tensor) -> Tensor:
        straight, mirrored = self._vectors(images)
        return straight.add_(mirrored).div_(2.0)

    @torch.no_grad()
    def _vectors(self, images: Tensor) -> Tensor:
        """Images -> their vectors and, if the config says so, those of the mirror images: [1 or 2, B, length]."""
        responses, colours = zip(*(bank(images) for bank in self.banks), strict=True)
        vectors = torch.cat([*responses, *colours], 2)
        # Means of parts of one sign, so there is no sign to keep.
        return vectors.sqrt_() if self.config.power == 0.5 else vectors.pow_(self.config.power)


def separable_filters(count: int, channels: int, kernel: int, grey_share: float, generator: torch.Generator) -> Tensor:
    """Filters [count, channels, k, k] of norm one: colour vector times spatial pattern of mean zero.

    The colour vector of the first ``grey_share`` of them is (1, ..., 1), that of the others normal.
    """
    colours = torch.randn(count, channels, generator=generator)
    colours[: round(count * grey_share)] = 1.0
    patterns = torch.randn(count, kernel * kernel, generator=generator)
    patterns -= patterns.mean(1, keepdim=True)
    filters = colours[:, :, None] * patterns[:, None, :]
    filters /= filters.flatten(1).norm(dim=1)[:, None, None]
    return filters.view(count, channels, kernel, kernel)
