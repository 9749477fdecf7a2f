"""Contrast-normalised random filters, pooled, in exact integers; specified by :mod:`circle.runtime.local_contrast`."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from circle.config import option
from circle.extractors.base import ImageShape, check_parts, frozen
from circle.extractors.integers import (
    IntegerExtractor,
    exact_type,
    multiplies_bytes,
    patch_factor,
    pool_windows,
    signed_root,
    tensor,
)
from circle.extractors.pooling import PooledConfig
from circle.machine import workspace
from circle.registry import register
from circle.runtime import local_contrast as specification
from circle.runtime.weights import PLAIN_SHIFT, colour_functions, contrast_filters


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
        self.require(0 <= self.colour_offset <= 1e6, "colour_offset", "zero or a positive number, at most 1e6")
        self.require(0 < self.contrast_epsilon <= 1e6, "contrast_epsilon", "a positive number, at most 1e6")


@register("extractor", LocalContrastConfig)
class LocalContrast(IntegerExtractor[LocalContrastConfig]):
    """z = root(pool(max(r, 0)), pool(max(-r, 0))) of contrast-normalised responses r, and of functions of colour.

    For a bank of filters f_j on the image made ``reduction`` times smaller:

        r_j = (f_j * x) / sqrt(v + epsilon),      v = mean over channels of the patch's variance in each channel
        f_j = c_j s_j / |c_j s_j|,                s_j [k, k] normal with mean zero, c_j [channels] normal, or equal

    No filter sees brightness or colour of a patch, only their changes, and v takes the contrast out. What is lost
    comes back in a few functions of the pixels' colour, r = a.x + b with |a| = 1. Pooled are means and mean squares
    over windows. All of it in integers: normalised patches have 8 bits, responses 8 bits and a sign, 32 of their
    levels to a deviation. Maps and windows never exist at once for more than a tile of images.

    Parameters
    ----------
    config : LocalContrastConfig
    shape : ImageShape
        Of the images.
    seed : int
        Decides the filters and functions of colour.

    Examples
    --------
    >>> from circle.extractors import ImageShape
    >>> extractor = LocalContrast(LocalContrastConfig(), ImageShape(3, 32, 32), seed=0)
    >>> extractor.features(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape == (2, extractor.size)
    True
    """

    def __init__(self, config: LocalContrastConfig, shape: ImageShape, seed: int) -> None:
        super().__init__(config, shape, seed)
        #: Maps of each bank, then of colours; a bank that :meth:`keep` leaves none is not computed at all.
        self.counts = [*config.filters, config.colours]
        #: Filters int64 [J, C, k, k] of each bank.
        self.filters = [
            contrast_filters(seed, f"bank {bank}", count, shape.channels, kernel, round(count * config.grey_share))
            for bank, (count, kernel) in enumerate(zip(config.filters, config.kernels, strict=True))
        ]
        #: Directions int64 [Q, C] and constants int64 [Q] of the functions of colour.
        self.colours = colour_functions(seed, config.colours, shape.channels, config.colour_offset)
        fixed = sum(filters.size for filters in self.filters) + sum(part.size for part in self.colours)
        self.finish(self._values_per_map * sum(self.counts), fixed)
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
        result, first = copy.copy(self), 0
        result._modules = {}
        kept = np.array(parts)
        rows = []
        for count in self.counts:
            rows.append(kept[(kept >= first) & (kept < first + count)] - first)
            first += count
        result.counts = [len(each) for each in rows]
        result.filters = [filters[each] for filters, each in zip(self.filters, rows[:-1], strict=True)]
        directions, constants = self.colours
        result.colours = directions[rows[-1]], constants[rows[-1]]
        result.fixed = sum(filters.size for filters in result.filters) + sum(part.size for part in result.colours)
        result.size = self._values_per_map * len(parts)
        result._build_banks()
        return result

    def _build_banks(self) -> None:
        """The banks that have filters left; colours come with the first of their scale, or alone."""
        config, shape = self.config, self.shape
        owners = [bank for bank, reduction in enumerate(config.reductions) if reduction == config.finest]
        owner = next((bank for bank in owners if self.counts[bank]), None)
        none = np.zeros((0, shape.channels), np.int64), np.zeros(0, np.int64)
        chosen = [
            (filters, self.colours if bank == owner else none, reduction)
            for bank, (filters, reduction) in enumerate(zip(self.filters, config.reductions, strict=True))
            if len(filters)
        ]
        if owner is None and self.counts[-1]:
            chosen.append((np.zeros((0, shape.channels, 1, 1), np.int64), self.colours, config.finest))
        self.banks = nn.ModuleList(
            ContrastBank(filters, *colours, config, shape, reduction) for filters, colours, reduction in chosen
        )
        self.tile = min((bank.tile for bank in self.banks if isinstance(bank, ContrastBank)), default=1)

    def vector(self, images: Tensor) -> Tensor:
        return self._vectors(images)[0]

    def mirrored_vector(self, images: Tensor) -> Tensor:
        straight, mirrored = self._vectors(images)
        return straight + mirrored

    @torch.no_grad()
    def _vectors(self, images: Tensor) -> Tensor:
        """Images -> their vectors and, if the config says so, those of the mirror images: [1 or 2, B, length]."""
        responses, colours = zip(*(bank(images) for bank in self.banks), strict=True)
        vectors = torch.cat([*responses, *colours], 2)
        return signed_root(vectors) if self.config.power == 0.5 else vectors.mul_(2.0**-PLAIN_SHIFT).floor_()


MAP_VALUES = 2**19  # values of the maps that are made and pooled at once, 2 MiB of float32
MAP_COLUMNS = 128  # maps of an image at once, unless it is large
PATCH_VALUES = 2**21  # values of the patches that are made at once


class ContrastBank(nn.Module):
    """Moments over windows of max(r, 0) and max(-r, 0), for responses r = s (f * x) and colours r = a.x + b.

    With the patch u_p [C k k] around pixel p, normalised and rounded to 8 bits, all maps of an image are one product of
    integers,

        [u_p, x_p - 128, 127, 1] [P, C k k + C + 2]  times  [[f, mirrored f, 0], [0, 0, 2 a], [constants]],

    whose sums are below 2^24; processors with an instruction for it multiply int8. The constants hold what colours
    add and half a level, so that flooring the product rounds it.

    The responses of a mirror image are the mirrored responses of mirrored filters, because r(x(-p)) with f(q) is
    r(x(p)) with f(-q); so the mirror image needs no patches of its own, and its colours no maps. It takes filters of
    odd side and a width that the reduction divides; else the mirror image is computed like any other image.
    """

    weights: Tensor  # float32 [K, N], whole numbers times 2^-6
    byte_weights: Tensor  # int8 [K, N], the same whole numbers
    rows: Tensor  # [g, H]
    columns: Tensor  # [g, W]

    def __init__(
        self,
        filters: np.ndarray,
        directions: np.ndarray,
        constants: np.ndarray,
        config: LocalContrastConfig,
        shape: ImageShape,
        reduction: int,
    ) -> None:
        """Of filters [J, C, k, k] and functions of colour [Q, C], [Q], for images made ``reduction`` times smaller."""
        super().__init__()
        self.count, self.colours, self.kernel = len(filters), len(directions), filters.shape[-1]
        self.channels = shape.channels
        self.reduction, self.mirror, self.moments = reduction, config.mirror, config.moments
        self.folded = config.mirror and self.kernel % 2 == 1 and shape.width % reduction == 0
        if self.folded:
            filters = np.concatenate([filters, filters[..., ::-1]])
        self.scaling = specification.PatchScale.by_channels(shape.channels, self.kernel, config.contrast_epsilon)
        weights = specification.product_weights(filters, directions, constants)
        self.may_clip = self.scaling.largest_response(filters, directions, constants) > 255
        frozen(self, "weights", tensor(weights) * 2.0**-specification.RESPONSE_SHIFT)
        # Constants of colours are too large for a byte where colour_offset is above 8.
        self.fits_bytes = bool((np.abs(weights) <= 127).all())
        frozen(self, "byte_weights", torch.from_numpy(weights.astype(np.int8)))
        height, width = -(-shape.height // reduction), -(-shape.width // reduction)
        frozen(self, "rows", tensor(config.windows_along(height)))
        frozen(self, "columns", tensor(config.windows_along(width)))
        self.pixels = height * width
        self.tile = max(
            self._images_at_once(),
            min(32, PATCH_VALUES // (self.pixels * ((self.kernel**2 + 1) * shape.channels + 2))),
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Pixels [B, C, H, W] -> sums of responses [V, B, 2 m G J] and of colours [V, B, 2 m G Q].

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

    def _images_at_once(self) -> int:
        """Images whose maps stay in cache."""
        return max(1, min(32, MAP_VALUES // (MAP_COLUMNS * self.pixels)))

    def _pooled(self, images: Tensor) -> Tensor:
        """Images -> [2 m, B, G, N]: as many maps at once as stay in cache, which are gone once they are pooled."""
        patches, count = self._patches(images), len(images)
        windows = len(self.rows) * len(self.columns)
        result = images.new_empty(2 * len(self.moments), count, windows, self.weights.shape[1])
        some, most = self._images_at_once(), max(16, min(MAP_COLUMNS, MAP_VALUES // self.pixels))
        weights = self.byte_weights if patches.dtype == torch.int8 else self.weights
        for part, into in zip(weights.split(most, 1), result.split(most, 3), strict=True):
            for rows, found in zip(patches.split(some * self.pixels, 1), into.split(some, 1), strict=True):
                maps = self._responses(rows, part).view(-1, len(images[0, 0]), images.shape[3], part.shape[1])
                pool_signs(maps, self.rows, self.columns, self.moments, found)
        return result

    def _responses(self, patches: Tensor, weights: Tensor) -> Tensor:
        """Patches [K, M] times weights [K, N], in levels: float32 [M, N], integers from -255 to 255."""
        shape = (patches.shape[1], weights.shape[1])
        maps = workspace.take("maps", shape, self.weights)
        if weights.dtype == torch.int8:
            sums = workspace.take("sums", shape, torch.empty(0, dtype=torch.int32))
            torch.ops.aten._int_mm.out(patches.T, weights, out=sums)
            maps.copy_(sums.bitwise_right_shift_(specification.RESPONSE_SHIFT))
        else:
            torch.mm(patches.T, weights, out=maps).floor_()
        return maps.clamp_(-255.0, 255.0) if self.may_clip else maps

    def _patches(self, images: Tensor) -> Tensor:
        """Images -> [u, x - 128, 127, 1] of all pixels [K, B P], as int8 where such products are fast.

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
            sums = box_sums(box_sums(padded, self.kernel, 2), self.kernel, 3)  # [B, C, H, W]
            image, channel, row, pixel = padded.stride()
            shifted = (padded * self.kernel**2).as_strided(
                (channels, self.kernel, self.kernel, count, height, width), (channel, row, pixel, image, row, pixel)
            )
            into = patches[:size].view(shifted.shape)
            torch.sub(shifted, sums.transpose(0, 1)[:, None, None], out=into)
            into.mul_(self._scales(padded, sums)).round_()
            if self.scaling.may_exceed:
                into.clamp_(-127.0, 127.0)
        if self.colours:
            torch.sub(images.transpose(0, 1), 128.0, out=patches[size:-2])
        patches[-2], patches[-1] = 127.0, 1.0
        patches = patches.flatten(1)
        if images.device.type != "cpu" or not self.fits_bytes or not multiplies_bytes():
            return patches
        return workspace.take("byte patches", tuple(patches.shape), self.byte_weights).copy_(patches)

    def _scales(self, padded: Tensor, sums: Tensor) -> Tensor:
        """Levels of a patch's value by its deviation, float32 [B, H, W]: see the specification."""
        squares = channel_sums(padded.to(exact_type(255**2 * self.kernel**2 * padded.shape[1])).square())
        squares = box_sums(box_sums(squares, self.kernel, 1), self.kernel, 2).to(torch.float64)
        scatter = squares.mul_(self.kernel**2).sub_(channel_sums(sums.to(torch.float64).square_()))
        return patch_factor(self.scaling, scatter)


def pool_signs(maps: Tensor, rows: Tensor, columns: Tensor, moments: tuple[str, ...], into: Tensor) -> None:
    """Sums over windows of max(r, 0), max(-r, 0) and their squares, for maps [B, H, W, J], into [2 m, B, G, J].

    The maps are overwritten. What the negative part has is what the whole has more than the positive, to the bit; so
    only the positive part is made. Values are in the order of sign and moment.
    """
    count, height, width, channels = maps.shape
    positive = workspace.take("positive", tuple(maps.shape), maps)
    torch.clamp_min(maps, 0.0, out=positive)
    sums = workspace.take("window sums", (2, len(moments), count, len(rows), width * channels), maps)
    windows = rows.expand(count, -1, -1)
    for part, result in zip((positive, maps), sums, strict=True):
        flat = part.view(count, height, -1)
        if "mean" in moments:
            torch.bmm(windows, flat, out=result[moments.index("mean")])
        if "square" in moments:
            torch.bmm(windows, flat.square_(), out=result[moments.index("square")])
    if "mean" in moments:
        mean = moments.index("mean")
        torch.sub(sums[0, mean], sums[1, mean], out=sums[1, mean])
    if "square" in moments:
        square = moments.index("square")
        torch.sub(sums[1, square], sums[0, square], out=sums[1, square])
    quantities = sums.view(2, len(moments), count, len(rows), width, channels)
    into.copy_(pool_windows(quantities, columns, moments))


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


def channel_sums(values: Tensor) -> Tensor:
    """Sums over the channels of [B, C, H, W], which are overwritten: [B, H, W]."""
    result = values[:, 0]
    for channel in range(1, values.shape[1]):
        result += values[:, channel]
    return result


def reduced(images: Tensor, factor: int) -> Tensor:
    """Rounded means over factor x factor pixels, fewer at far edges: [B, C, H, W] -> [B, C, ceil(H/f), ceil(W/f)]."""
    if factor == 1:
        return images
    height, width = images.shape[2:]
    padded = functional.pad(images.to(exact_type(255 * factor**2)), (0, -width % factor, 0, -height % factor))
    sums = functional.avg_pool2d(padded, factor, divisor_override=1)
    rows, columns = (
        torch.full((-(-side // factor),), factor, dtype=sums.dtype, device=sums.device) for side in (height, width)
    )
    rows[-1], columns[-1] = (height - 1) % factor + 1, (width - 1) % factor + 1
    return sums.div_(rows[:, None] * columns).round_().to(images.dtype)
