"""Ways to make more of a batch: rotated copies and mixed pairs, as classes of their own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from circle.baselines.augmentation import rotations

ROTATIONS = 4
BETA, NARROW = 20.0, (0.4, 0.6)  # of the share of one image in a mixture
MIXING_ROUNDS = 4

Relabel = Callable[[Tensor, int], Tensor]  # targets [B] and the number of quarter turns -> targets of the copies [B]


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
    share = share.where((share >= NARROW[0]) & (share <= NARROW[1]), 0.5)
    weight = share.to(images)[:, None, None, None]
    mixed = weight * images[chosen[:, 0]] + (1.0 - weight) * images[chosen[:, 1]]
    low, high = local[chosen].min(1).values, local[chosen].max(1).values
    return mixed, first_pair + high * (high - 1) // 2 + low, chosen, share


def _beta(count: int, generator: torch.Generator) -> Tensor:
    """Draws from Beta(20, 20): X / (X + Y) with X, Y from Gamma(20), sums of 20 exponentials, [count]."""
    parts = torch.rand(2, count, int(BETA), generator=generator, dtype=torch.float64).clamp_min_(1e-300).log_().sum(2)
    return (parts[0] / parts.sum(0)).to(torch.float32)
