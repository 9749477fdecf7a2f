"""Changes of training images for whole batches, from an explicit generator: those that leave the class alone, and
those that make classes of their own (rotated copies, mixed pairs).

Images are [B, C, H, W] in [0, 1]; every function returns a new tensor. Draws are made on the CPU, whose generator is
given, and moved to where the images are, so that a seed means the same on every device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from circle.baselines.auto_augment import auto_augment, trivial_augment
from circle.config import check_names
from circle.errors import CircleError

Augmentation = Callable[[Tensor, torch.Generator], Tensor]
Relabel = Callable[[Tensor, int], Tensor]  # targets [B] and the number of quarter turns -> targets of the copies [B]

KNOWN = (
    "crop",
    "flip",
    "brightness",
    "resized_crop",
    "padded_resized_crop",
    "auto_augment",
    "trivial_augment",
    "cutout",
)
BRIGHTNESS = 63 / 255  # the usual amount for images of 32 x 32
MAX_CROP_TRIES = 10  # crops drawn before the central one is taken
ROTATIONS = 4
MIXING_BETA, MIXING_RANGE = 20.0, (0.4, 0.6)  # of the share of one image in a mixture
MIXING_ROUNDS = 4


def random_crop(images: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    """A window of the size of the image, anywhere in the image with ``padding`` zeros on all sides.

    output[y, x] = padded[top + y, left + x] with top and left uniform over 0 .. 2 padding, for each image.
    """
    count, channels, height, width = images.shape
    padded = functional.pad(images, (padding, padding, padding, padding))
    corners = torch.randint(2 * padding + 1, (2, count, 1), generator=generator)
    rows, columns = corners[0] + torch.arange(height), corners[1] + torch.arange(width)
    pixels = rows[:, :, None] * padded.shape[3] + columns[:, None, :]  # [B, H, W], positions in the flattened image
    index = pixels.view(count, 1, height * width).to(images.device).expand(-1, channels, -1)
    return padded.flatten(2).gather(2, index).view(images.shape)


def random_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Left and right exchanged with probability 1/2, for each image."""
    flipped = torch.randint(2, (len(images), 1, 1, 1), generator=generator).bool().to(images.device)
    return torch.where(flipped, images.flip(3), images)


def brightness(images: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """min(1, f x) with f uniform in [max(0, 1 - amount), 1 + amount], for each image."""
    lowest = max(0.0, 1 - amount)
    factors = lowest + (1 + amount - lowest) * torch.rand(len(images), 1, 1, 1, generator=generator)
    return (images * factors.to(images)).clamp_(0.0, 1.0)


def cutout(images: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Zero in a square of size x size pixels about a centre that is uniform over the pixels, for each image.

    Rows and columns run from centre - size // 2 on; what lies beyond the border is lost, so that a square at the
    border hides less.
    """
    count, _, height, width = images.shape
    hidden = []
    for side in (height, width):
        first = torch.randint(side, (count, 1), generator=generator) - size // 2
        places = torch.arange(side)
        hidden.append((places >= first) & (places < first + size))  # [B, side]
    square = hidden[0][:, None, :, None] & hidden[1][:, None, None, :]
    return images.masked_fill(square.to(images.device), 0.0)


def random_resized_crop(
    images: Tensor,
    generator: torch.Generator,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    padding: int = 0,
) -> Tensor:
    """A part of each image (see ``crop_boxes``), brought to H x W with bilinear interpolation.

    With ``padding`` it is a part of the image with so many zeros on all sides.
    Column j of the output is read at left + (j + 1/2) width / W, where pixel i is centred on i + 1/2; rows alike.
    """
    outputs = images.shape[2:]
    images = functional.pad(images, (padding, padding, padding, padding))
    boxes = crop_boxes(len(images), images.shape[2], images.shape[3], generator, scale, ratio).to(images)
    axes = []
    for output, side, start, length in (
        (outputs[1], images.shape[3], boxes[:, 1], boxes[:, 3]),
        (outputs[0], images.shape[2], boxes[:, 0], boxes[:, 2]),
    ):
        steps = (torch.arange(output, device=images.device, dtype=images.dtype) + 0.5) / output
        points = start[:, None] + length[:, None] * steps
        # Kept between the centres of the part's first and last pixel: nothing from outside the part is mixed in.
        points = torch.minimum(torch.maximum(points, start[:, None] + 0.5), (start + length)[:, None] - 0.5)
        axes.append(2 * points / side - 1)
    columns, rows = axes
    grid = torch.stack(torch.broadcast_tensors(columns[:, None, :], rows[:, :, None]), -1)  # [B, H, W, 2]
    # The weights of a pixel's neighbours need not sum to one exactly, hence the clipping.
    return functional.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False).clamp_(
        0, 1
    )


def crop_boxes(
    count: int,
    height: int,
    width: int,
    generator: torch.Generator,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> Tensor:
    """Parts (top, left, height, width) of images, int64 [count, 4].

    With a uniform in ``scale`` and log r uniform between the logarithms of ``ratio``,

        width = round(sqrt(a r H W)),      height = round(sqrt(a H W / r)),

    anywhere in the image. The first of ten draws that fits is taken; where none does, the largest central part of
    an allowed ratio.
    """
    uniform = torch.rand(count, MAX_CROP_TRIES, 4, generator=generator, dtype=torch.float64)
    areas = (scale[0] + (scale[1] - scale[0]) * uniform[..., 0]) * height * width
    logarithms = math.log(ratio[0]) + (math.log(ratio[1]) - math.log(ratio[0])) * uniform[..., 1]
    widths, heights = (areas * logarithms.exp()).sqrt().round(), (areas / logarithms.exp()).sqrt().round()
    fits = (widths >= 1) & (widths <= width) & (heights >= 1) & (heights <= height)
    tops, lefts = (uniform[..., 2] * (height - heights + 1)).floor(), (uniform[..., 3] * (width - widths + 1)).floor()
    first = fits.int().argmax(1)  # of equals the first: the first draw that fits
    boxes = torch.stack([tops, lefts, heights, widths], -1)[torch.arange(count), first].long()
    own = min(max(width / height, ratio[0]), ratio[1])
    central_height = min(height, max(1, round(width / own)))
    central_width = min(width, max(1, round(height * own)))
    central = [(height - central_height) // 2, (width - central_width) // 2, central_height, central_width]
    return torch.where(fits.any(1, keepdim=True), boxes, torch.tensor(central))


def rotations(images: Tensor) -> Tensor:
    """Each image turned by 0, 90, 180 and 270 degrees, [4 B, C, H, W]: at k B + i, image i turned k times."""
    height, width = images.shape[2:]
    if height != width:
        raise CircleError(f"rotations need square images, got {height} x {width}")
    return torch.cat([torch.rot90(images, turns, (2, 3)) for turns in range(4)])


def augmenter(names: Sequence[str], image_side: int) -> Augmentation:
    """The augmentations of these names, one after the other, with the usual settings for images of this side."""
    check_names(names, KNOWN, "augmentation")
    known: dict[str, Augmentation] = {
        "crop": partial(_crop, crop_padding(image_side)),
        "flip": random_flip,
        "brightness": _brightness,
        "resized_crop": random_resized_crop,
        "padded_resized_crop": partial(random_resized_crop, padding=crop_padding(image_side)),
        "auto_augment": auto_augment,
        "trivial_augment": trivial_augment,
        "cutout": partial(_cutout, image_side // 2),
    }
    steps = [known[name] for name in names]

    def augment(images: Tensor, generator: torch.Generator) -> Tensor:
        result = images.clone() if not steps else images
        for step in steps:
            result = step(result, generator)
        return result

    return augment


def crop_padding(image_side: int) -> int:
    """4 for sides up to 32, 8 up to 64, an eighth of the side above."""
    if image_side <= 32:
        return 4
    return 8 if image_side <= 64 else image_side // 8


def _crop(padding: int, images: Tensor, generator: torch.Generator) -> Tensor:
    return random_crop(images, padding, generator)


def _brightness(images: Tensor, generator: torch.Generator) -> Tensor:
    return brightness(images, BRIGHTNESS, generator)


def _cutout(size: int, images: Tensor, generator: torch.Generator) -> Tensor:
    return cutout(images, size, generator)


def rotated(images: Tensor, targets: Tensor, relabel: Relabel) -> tuple[Tensor, Tensor]:
    """The images turned by 0 to 3 quarters, [4 B, C, H, W], each turn with targets of its own, [4 B].

    >>> images, targets = rotated(torch.zeros(2, 3, 8, 8), torch.tensor([5, 1]), lambda targets, k: 4 * targets + k)
    >>> targets.tolist()
    [20, 4, 21, 5, 22, 6, 23, 7]
    """
    return rotations(images), torch.cat([relabel(targets, turns) for turns in range(ROTATIONS)])


def mixed_pairs(
    images: Tensor, local: Tensor, generator: torch.Generator, first_pair: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mixtures of images of different classes, and their targets; which images and shares, for whoever wants to know.

    Four times the batch is paired with itself in a random order; pairs of different local classes a < b give
    l x_i + (1 - l) x_j, l from Beta(20, 20), or 1/2 where that falls outside [0.4, 0.6]. Their target is
    ``first_pair`` + b (b - 1) / 2 + a: one class for each pair of classes. Returns images [M, C, H, W], targets [M],
    the pairs (i, j) [M, 2] and the shares l [M]; M may be 0.
    """
    pairs = []
    for _ in range(MIXING_ROUNDS):
        order = torch.randperm(len(images), generator=generator)
        pairs.append(torch.stack([torch.arange(len(images)), order], 1))
    chosen = torch.cat(pairs)
    chosen = chosen[local[chosen[:, 0]] != local[chosen[:, 1]]]
    share = _beta(len(chosen), generator)
    share = share.where((share >= MIXING_RANGE[0]) & (share <= MIXING_RANGE[1]), 0.5)
    weight = share.to(images)[:, None, None, None]
    mixed = weight * images[chosen[:, 0]] + (1.0 - weight) * images[chosen[:, 1]]
    low, high = local[chosen].min(1).values, local[chosen].max(1).values
    return mixed, first_pair + high * (high - 1) // 2 + low, chosen, share


def _beta(count: int, generator: torch.Generator) -> Tensor:
    """Draws from Beta(20, 20): X / (X + Y) with X, Y from Gamma(20), sums of 20 exponentials, [count]."""
    parts = (
        torch.rand(2, count, int(MIXING_BETA), generator=generator, dtype=torch.float64)
        .clamp_min_(1e-300)
        .log_()
        .sum(2)
    )
    return (parts[0] / parts.sum(0)).to(torch.float32)
