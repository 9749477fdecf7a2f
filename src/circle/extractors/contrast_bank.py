"""One bank of filters: contrast-normalised responses and functions of colour, pooled before they leave the cache."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from circle.extractors.base import frozen
from circle.extractors.pooling import pool_signs
from circle.extractors.workspace import workspace

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
