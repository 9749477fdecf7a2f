"""Contrast-normalised random filters, pooled: what BiRC2D's stem knows without any reservoir behind it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from circle.config import option
from circle.extractors.base import ImageShape, check_parts, frozen
from circle.extractors.pooling import PooledConfig, pool_signs
from circle.extractors.projection import ProjectedExtractor
from circle.machine import workspace
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

    >>> from circle.extractors import ImageShape
    >>> extractor = LocalContrast(LocalContrastConfig(), ImageShape(3, 32, 32), seed=0)
    >>> extractor.features(torch.rand(2, 3, 32, 32)).shape == (2, extractor.size)
    True
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


CACHED = 2**19  # values of the maps that are made and pooled at once, 2 MiB of float32
COLUMNS = 128  # maps of an image at once, unless it is large
PATCHES = 2**21  # values of the patches that are made at once


class ContrastBank(nn.Module):
    """Moments over windows of max(r, 0) and max(-r, 0), for responses r = s (f * x) and colours r = a.x + b.

    With the patch u_p [C k k] around pixel p and its scale s_p = 1 / sqrt(v_p + epsilon), all maps of an image are
    one product of matrices,

        [s_p u_p, x_p, 1] [P, C k k + C + 1]  times  [[f, mirrored f, 0], [0, 0, a], [0, 0, b]].

    Scaling the patches costs less than scaling the maps, of which there are more.

    The responses of a mirror image are the mirrored responses of mirrored filters, because r(x(-p)) with f(q) is
    r(x(p)) with f(-q); so the mirror image needs no patches of its own, and its colours no maps. It takes filters of
    odd side and a width that the reduction divides; else the mirror image is computed like any other image.
    """

    weights: Tensor  # [C k k + C + 1, N], of which only the rows and columns that are needed
    windows: Tensor  # [G, P]

    def __init__(
        self,
        filters: Tensor,
        colours: Tensor,
        windows: Tensor,
        *,
        reduction: int,
        width: int,
        mirror: bool,
        moments: tuple[str, ...],
        epsilon: float,
    ) -> None:
        """Of filters [J, C, k, k] and colours [Q, C + 1], the constant last; ``width`` is that of whole images."""
        super().__init__()
        self.count, self.colours, self.kernel = len(filters), len(colours), filters.shape[-1]
        self.reduction, self.mirror, self.moments, self.epsilon = reduction, mirror, moments, epsilon
        self.folded = mirror and self.kernel % 2 == 1 and width % reduction == 0
        if self.folded:
            filters = torch.cat([filters, filters.flip(3)])
        blocks = [block.T for block in (filters.flatten(1), colours) if len(block)]
        frozen(self, "weights", torch.block_diag(*blocks))
        frozen(self, "windows", windows)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images [B, C, H, W] -> moments of responses [V, B, 2 m G J] and of colours [V, B, 2 m G Q].

        V is 2 with mirror images, else 1. Values are in the order sign, moment, window, filter.
        """
        if self.mirror and not self.folded:
            images = torch.cat([images, images.flip(3)])
        pooled = self._pooled(reduced(images, self.reduction)).transpose(0, 1)  # [B, 2 m, G, N], none negative
        colours = pooled[..., pooled.shape[-1] - self.colours :]
        straight = pooled[..., : self.count]
        if not self.folded:
            views = (2 if self.mirror else 1, -1)
            return straight.flatten(1).unflatten(0, views), colours.flatten(1).unflatten(0, views)
        mirrored = in_mirror(pooled[..., self.count : 2 * self.count])
        return (
            torch.stack([straight.flatten(1), mirrored.flatten(1)]),
            torch.stack([colours.flatten(1), in_mirror(colours).flatten(1)]),
        )

    def _pooled(self, images: Tensor) -> Tensor:
        """Images -> [2 m, B, G, N]: as many maps at once as stay in cache, which are gone once they are pooled."""
        patches, count, pixels = self._patches(images), len(images), self.windows.shape[1]
        result = images.new_empty(2 * len(self.moments), count, len(self.windows), self.weights.shape[1])
        columns, some = columns_at_once(pixels), images_at_once(pixels)
        for part, into in zip(self.weights.split(columns, 1), result.split(columns, 3), strict=True):
            for rows, found in zip(patches.split(some * pixels, 1), into.split(some, 1), strict=True):
                maps = workspace.take("maps", (rows.shape[1], part.shape[1]), images)
                torch.mm(rows.T, part, out=maps)
                pool_signs(maps.unflatten(0, (-1, pixels)), self.windows, self.moments, found)
        return result

    def _patches(self, images: Tensor) -> Tensor:
        """Images -> columns of the product [C k k + C + 1, B P]; no patches without filters, no pixels without colours.

        One value of all patches is a shifted copy of the images, whose rows are copied whole; the other way round,
        patch by patch, this took seven times as long.
        """
        count, channels, height, width = images.shape
        patches = workspace.take("patches", (len(self.weights), count, height, width), images)
        size = self.kernel**2 * channels if self.count else 0
        if self.count:
            before, after = (self.kernel - 1) // 2, self.kernel // 2
            # Edge pixels are repeated: with zeros around the image every border would be an edge.
            padded = functional.pad(images, (before, after, before, after), mode="replicate")
            image, channel, row, pixel = padded.stride()
            shifted = padded.as_strided(
                (channels, self.kernel, self.kernel, count, height, width), (channel, row, pixel, image, row, pixel)
            )
            torch.mul(shifted, self._scales(padded), out=patches[:size].view(shifted.shape))
        if self.colours:
            patches[size:-1] = images.transpose(0, 1)
            patches[-1] = 1.0
        return patches.flatten(1)

    def _scales(self, padded: Tensor) -> Tensor:
        """1 / sqrt(v + epsilon) [B, H, W], v the mean over channels of each patch's variance."""
        both = torch.cat([padded, padded.square().mean(1, keepdim=True)], 1)
        sums = box_sums(box_sums(both, self.kernel, 2), self.kernel, 3).div_(self.kernel**2)
        variance = sums[:, -1] - sums[:, :-1].square().mean(1)
        return variance.clamp_min_(0.0).add_(self.epsilon).rsqrt_()


def columns_at_once(pixels: int) -> int:
    """Maps that are made and pooled at once; not a matter of the batch, because bits of a product hang on its width."""
    return max(16, min(COLUMNS, CACHED // pixels // 16 * 16))


def images_at_once(pixels: int) -> int:
    """Images of so many pixels whose maps stay in cache."""
    return max(1, min(32, CACHED // (COLUMNS * pixels)))


def tile_of(pixels: int, values: int) -> int:
    """Images that share the many short operations before and after the products, by pixels and values of a patch."""
    return max(images_at_once(pixels), min(32, PATCHES // (pixels * values)))


def in_mirror(pooled: Tensor) -> Tensor:
    """Values [..., G, N] of windows in a square grid, with those of left and right exchanged."""
    side = round(pooled.shape[-2] ** 0.5)
    return pooled.unflatten(-2, (side, side)).flip(-2).flatten(-3, -2)


def box_sums(values: Tensor, length: int, dimension: int) -> Tensor:
    """Sums over ``length`` neighbours along a dimension, which gets shorter by ``length - 1``."""
    size = values.shape[dimension] - length + 1
    result = values.narrow(dimension, 0, size).clone()
    for shift in range(1, length):
        result += values.narrow(dimension, shift, size)
    return result


def reduced(images: Tensor, factor: int) -> Tensor:
    """Means over factor x factor pixels, fewer at the far edges: [B, C, H, W] -> [B, C, ceil(H/f), ceil(W/f)]."""
    if factor == 1:
        return images
    return functional.avg_pool2d(images, factor, ceil_mode=True, count_include_pad=False)
