"""AutoAugment and TrivialAugment: photographic and geometric changes of whole batches, drawn for each image.

Every operation takes images [B, C, H, W] in [0, 1] and one magnitude per image [B], and returns a new tensor of the
same shape, in [0, 1] again. Grey levels are k / 255; an operation that needs levels rounds to them first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

Operation = Callable[[Tensor, Tensor], Tensor]

OUTSIDE = 0.5  # grey that moves in from beyond the border
TRIVIAL_LEVELS = 31
TRIVIAL_PIXELS = 32  # longest shift of TrivialAugment


def identity(images: Tensor, magnitudes: Tensor) -> Tensor:
    """A copy."""
    return images.clone()


def affine(images: Tensor, matrices: Tensor) -> Tensor:
    """output(p) = image(M (p, 1)), nearest neighbour, grey where M (p, 1) lies outside; matrices M [B, 2, 3].

    Points p = (x, y) are in pixels, with the corner of the image at (0, 0) and the first pixel's centre at
    (0.5, 0.5): the convention of PIL's ``Image.transform``.
    """
    height, width = images.shape[2:]
    x = torch.arange(width, device=images.device, dtype=images.dtype) + 0.5
    y = torch.arange(height, device=images.device, dtype=images.dtype) + 0.5
    # M (p, 1) for all pixels, as a sum of what depends on the column, on the row, and on neither: [B, 2, H, W].
    source = matrices[:, :, 0, None, None] * x + matrices[:, :, 1, None, None] * y[:, None]
    source += matrices[:, :, 2, None, None]
    # The centre of the pixel that a point falls into: grid_sample itself would round ties to even positions.
    source = source.floor().add_(0.5).permute(0, 2, 3, 1)
    size = torch.tensor([width, height], device=images.device, dtype=images.dtype)
    inside = ((source > 0) & (source < size)).all(-1)
    # "border" keeps zeros out; "inside" then decides alone what is grey, and no value is changed on its way.
    sampled = functional.grid_sample(
        images, 2 * source / size - 1, mode="nearest", padding_mode="border", align_corners=False
    )
    return sampled.masked_fill_(~inside[:, None], OUTSIDE)


def _affine_of(images: Tensor, **entries: Tensor) -> Tensor:
    """``affine`` by the identity with some entries replaced, each by one value per image [B]."""
    places = {"xx": (0, 0), "xy": (0, 1), "x": (0, 2), "yx": (1, 0), "yy": (1, 1), "y": (1, 2)}
    matrices = torch.eye(2, 3, device=images.device, dtype=images.dtype).repeat(len(images), 1, 1)
    for name, values in entries.items():
        row, column = places[name]
        matrices[:, row, column] = values
    return affine(images, matrices)


def shear_x(images: Tensor, magnitudes: Tensor) -> Tensor:
    """output(x, y) = image(x + m y, y): the upper edge stays in place."""
    return _affine_of(images, xy=magnitudes)


def shear_y(images: Tensor, magnitudes: Tensor) -> Tensor:
    """output(x, y) = image(x, y + m x): the left edge stays in place."""
    return _affine_of(images, yx=magnitudes)


def translate_x(images: Tensor, magnitudes: Tensor) -> Tensor:
    """output(x, y) = image(x + m W, y): magnitudes are shares of the width."""
    return _affine_of(images, x=magnitudes * images.shape[3])


def translate_y(images: Tensor, magnitudes: Tensor) -> Tensor:
    """output(x, y) = image(x, y + m H): magnitudes are shares of the height."""
    return _affine_of(images, y=magnitudes * images.shape[2])


def rotate(images: Tensor, magnitudes: Tensor) -> Tensor:
    """Turned about the centre c by m degrees, counter-clockwise as seen: output(c + d) = image(c + R d)."""
    cosine, sine = torch.deg2rad(magnitudes).cos(), torch.deg2rad(magnitudes).sin()
    centre_x, centre_y = images.shape[3] / 2, images.shape[2] / 2
    x = centre_x - cosine * centre_x + sine * centre_y
    y = centre_y - sine * centre_x - cosine * centre_y
    # Rows run downwards, so the source of a counter-clockwise turn is at R = [[cos, -sin], [sin, cos]].
    return _affine_of(images, xx=cosine, xy=-sine, x=x, yx=sine, yy=cosine, y=y)


def grey(images: Tensor) -> Tensor:
    """Grey level [B, 1, H, W]: 0.299 R + 0.587 G + 0.114 B of three channels, the mean of any other number."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    red, green, blue = images.split(1, dim=1)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def blend(images: Tensor, others: Tensor | float, magnitudes: Tensor) -> Tensor:
    """other + (1 + m) (image - other), clipped to [0, 1]: m < 0 goes towards the other image, m > 0 away from it."""
    return (others + (1 + magnitudes)[:, None, None, None] * (images - others)).clamp_(0.0, 1.0)


def brightness(images: Tensor, magnitudes: Tensor) -> Tensor:
    """Blend with black."""
    return blend(images, 0.0, magnitudes)


def colour(images: Tensor, magnitudes: Tensor) -> Tensor:
    """Saturation: blend with the grey image. One channel has no colour and stays as it is."""
    return images.clone() if images.shape[1] == 1 else blend(images, grey(images), magnitudes)


def contrast(images: Tensor, magnitudes: Tensor) -> Tensor:
    """Blend with the mean grey level of the image."""
    return blend(images, grey(images).mean((2, 3), keepdim=True), magnitudes)


def sharpness(images: Tensor, magnitudes: Tensor) -> Tensor:
    """Blend with the image smoothed by [1 1 1; 1 5 1; 1 1 1] / 13, whose border pixels are those of the image."""
    smooth = images.clone()
    # Three by three, and the middle four times more. Sums of slices are several times faster than a convolution,
    # and empty where an image is all border.
    sums = images[..., :-2] + images[..., 1:-1] + images[..., 2:]
    sums = sums[..., :-2, :] + sums[..., 1:-1, :] + sums[..., 2:, :]
    smooth[..., 1:-1, 1:-1] = sums.add_(images[..., 1:-1, 1:-1], alpha=4).div_(13)
    return blend(images, smooth, magnitudes)


def posterise(images: Tensor, magnitudes: Tensor) -> Tensor:
    """The upper m bits of each level: floor(level / 2^(8 - m)) 2^(8 - m)."""
    step = torch.exp2(8 - magnitudes)[:, None, None, None]
    return (images * 255).round_().div_(step).floor_().mul_(step).div_(255)


def solarise(images: Tensor, magnitudes: Tensor) -> Tensor:
    """1 - x where x >= m."""
    # A level that equals the threshold is inverted whichever way the two were rounded to floats.
    bright = images >= magnitudes[:, None, None, None] - 1e-5
    return (images - bright.to(images.dtype)).abs_()  # |x - 1| is 1 - x, and faster than a choice between two images


def autocontrast(images: Tensor, magnitudes: Tensor) -> Tensor:
    """(x - min) / (max - min) in each channel."""
    lowest, highest = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    # Less than half a grey level is rounding noise of a flat image, and must not be made visible.
    flat = highest - lowest < 0.5 / 255
    return torch.where(flat, images, (images - lowest) / (highest - lowest).masked_fill_(flat, 1.0))


def equalise(images: Tensor, magnitudes: Tensor) -> Tensor:
    """Histogram equalisation of each channel on 256 levels: level l becomes

        min(255, (sum_{k < l} h_k + step // 2) // step),      step = (N - h_last) // 255

    with h the histogram of the channel's N pixels and h_last its last entry that is not zero; a channel whose
    step is zero stays as it is.
    """
    levels = (images * 255).round_().long().flatten(2)
    histogram = levels.new_zeros(*levels.shape[:2], 256).scatter_add_(2, levels, torch.ones_like(levels))
    last = histogram.gather(2, levels.amax(2, keepdim=True))
    step = (levels.shape[2] - last) // 255
    table = (histogram.cumsum(2) - histogram + step // 2) // step.clamp_min(1)
    equalised = table.clamp_max_(255).gather(2, levels).to(images.dtype).div_(255)
    return torch.where((step > 0)[..., None], equalised.view(images.shape), images)


def invert(images: Tensor, magnitudes: Tensor) -> Tensor:
    """1 - x."""
    return 1 - images


# Operations are drawn as positions in this table, so that their order is part of what a seed means.
OPERATIONS: dict[str, Operation] = {
    "identity": identity,
    "shear_x": shear_x,
    "shear_y": shear_y,
    "translate_x": translate_x,
    "translate_y": translate_y,
    "rotate": rotate,
    "brightness": brightness,
    "colour": colour,
    "contrast": contrast,
    "sharpness": sharpness,
    "posterise": posterise,
    "solarise": solarise,
    "autocontrast": autocontrast,
    "equalise": equalise,
    "invert": invert,
}
NAMES = tuple(OPERATIONS)
GEOMETRIC = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
PHOTOGRAPHIC = ("brightness", "colour", "contrast", "sharpness")
SIGNED = torch.tensor([name in GEOMETRIC + PHOTOGRAPHIC for name in NAMES])
TRIVIAL = tuple(name for name in NAMES if name != "invert")

# Cubuk et al. 2019, "AutoAugment", the policy found on CIFAR-10: two of (operation, probability, level of 0 to 9).
# Where an operation has no magnitude, the level is 0.
POLICY = (
    (("invert", 0.1, 0), ("contrast", 0.2, 6)),
    (("rotate", 0.7, 2), ("translate_x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
    (("shear_y", 0.5, 8), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.5, 0), ("equalise", 0.9, 0)),
    (("shear_y", 0.2, 7), ("posterise", 0.3, 7)),
    (("colour", 0.4, 3), ("brightness", 0.6, 7)),
    (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalise", 0.6, 0), ("equalise", 0.5, 0)),
    (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("colour", 0.7, 7), ("translate_x", 0.5, 8)),
    (("equalise", 0.3, 0), ("autocontrast", 0.4, 0)),
    (("translate_y", 0.4, 3), ("sharpness", 0.2, 6)),
    (("brightness", 0.9, 6), ("colour", 0.2, 8)),
    (("solarise", 0.5, 2), ("invert", 0.0, 0)),
    (("equalise", 0.2, 0), ("autocontrast", 0.6, 0)),
    (("equalise", 0.2, 0), ("equalise", 0.6, 0)),
    (("colour", 0.9, 9), ("equalise", 0.6, 0)),
    (("autocontrast", 0.8, 0), ("solarise", 0.2, 8)),
    (("brightness", 0.1, 3), ("colour", 0.7, 0)),
    (("solarise", 0.4, 5), ("autocontrast", 0.9, 0)),
    (("translate_y", 0.9, 9), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.9, 0), ("solarise", 0.8, 3)),
    (("equalise", 0.8, 0), ("invert", 0.1, 0)),
    (("translate_y", 0.7, 9), ("autocontrast", 0.9, 0)),
)


def magnitude_table(levels: int, largest: Mapping[str, float]) -> Tensor:
    """Magnitudes [operations, levels]: m = largest * t with t = level / (levels - 1), zero for names not given.

    Two go down instead: posterise keeps 8 - round(largest * t) bits, and the threshold of solarise is 1 - t.
    """
    shares = torch.arange(levels) / (levels - 1)
    table = torch.stack([largest.get(name, 0.0) * shares for name in NAMES])
    table[NAMES.index("posterise")] = 8 - table[NAMES.index("posterise")].round()
    table[NAMES.index("solarise")] = 1 - shares
    return table


def auto_table() -> Tensor:
    """Magnitudes [operations, 10] of AutoAugment."""
    shears = dict.fromkeys(("shear_x", "shear_y"), 0.3)
    shifts = dict.fromkeys(("translate_x", "translate_y"), 150 / 331)
    return magnitude_table(10, {**shears, **shifts, "rotate": 30.0, **dict.fromkeys(PHOTOGRAPHIC, 0.9), "posterise": 4})


@functools.cache
def trivial_table(height: int, width: int) -> Tensor:
    """Magnitudes [operations, 31] of TrivialAugment (wide) for images of this size."""
    shears = dict.fromkeys(("shear_x", "shear_y"), 0.99)
    # Shifts are given in pixels, and operations take shares of the side.
    shifts = {"translate_x": min(1.0, TRIVIAL_PIXELS / width), "translate_y": min(1.0, TRIVIAL_PIXELS / height)}
    rest = {"rotate": 135.0, **dict.fromkeys(PHOTOGRAPHIC, 0.99), "posterise": 6}
    return magnitude_table(TRIVIAL_LEVELS, {**shears, **shifts, **rest})


_CODES = torch.tensor([[NAMES.index(name) for name, _, _ in pair] for pair in POLICY])
_CHANCES = torch.tensor([[chance for _, chance, _ in pair] for pair in POLICY])
_LEVELS = torch.tensor([[level for _, _, level in pair] for pair in POLICY])
_MAGNITUDES = auto_table()[_CODES, _LEVELS]


def auto_augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """One of the 25 sub-policies for each image: two operations, one after the other, each with its probability.

    The sign of a geometric or photographic magnitude is drawn too. All draws are made on the CPU.
    """
    count = len(images)
    chosen = torch.randint(len(POLICY), (count,), generator=generator)
    happens = torch.rand(count, 2, generator=generator) < _CHANCES[chosen]
    codes = torch.where(happens, _CODES[chosen], NAMES.index("identity"))
    magnitudes = with_signs(codes, _MAGNITUDES[chosen], generator)
    return apply(apply(images, codes[:, 0], magnitudes[:, 0]), codes[:, 1], magnitudes[:, 1])


def trivial_augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """One operation of ``TRIVIAL`` for each image, at one of 31 levels, all equally likely; signs are drawn too."""
    codes = torch.randint(len(TRIVIAL), (len(images),), generator=generator)
    levels = torch.randint(TRIVIAL_LEVELS, (len(images),), generator=generator)
    height, width = images.shape[2:]
    return apply(images, codes, with_signs(codes, trivial_table(height, width)[codes, levels], generator))


def with_signs(codes: Tensor, magnitudes: Tensor, generator: torch.Generator) -> Tensor:
    """Magnitudes with a random sign where the operation of that code goes both ways."""
    negative = torch.randint(2, codes.shape, generator=generator).bool() & SIGNED[codes]
    return torch.where(negative, -magnitudes, magnitudes)


def apply(images: Tensor, codes: Tensor, magnitudes: Tensor) -> Tensor:
    """To each image its operation ``NAMES[code]``, codes [B] on the CPU: one call for all images that share it."""
    result = images.clone()
    for code in codes.unique().tolist():
        if NAMES[code] != "identity":
            members = (codes == code).nonzero().flatten()
            own = magnitudes[members].to(images)
            members = members.to(images.device)
            result[members] = OPERATIONS[NAMES[code]](images[members], own)
    return result
