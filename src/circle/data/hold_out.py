"""Holding images out: the one rule by which some images of every class are kept from learning, to judge by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from circle.errors import CircleError, printable


def hold_out(
    labels: np.ndarray,
    share: float,
    *,
    seed: int | Sequence[int] = 0,
    limit: int | None = None,
    need_both: bool = False,
    draw: Literal["choose", "rank"] = "choose",
    classes: Sequence[Any] | None = None,
    where: str | Path = "images",
) -> tuple[np.ndarray, np.ndarray]:
    """Positions to learn from and positions held out, both ascending: of every class about ``share`` is held out.

    A class of two images or more has at least one on either side. Depends on the arguments alone, so that every run
    and every machine holds out the same images.

    Parameters
    ----------
    labels
        int64 [N], the class of each image.
    share
        How much of every class is held out, above 0 and below 1.
    seed
        Of the draw, which takes the classes in ascending order.
    limit
        Use at most so many images in all: the proportions of the classes stay, with at least two images in each.
    need_both
        Refuse a class of one image, instead of learning it.
    draw
        What a permutation of a class's images means: the order in which they are held out ("choose"), or the rank of
        each ("rank"). Either is as good; recorded results of `bench` rest on the one and of `advise` on the other.
    classes, where
        Names of the classes and of the data, for messages.

    Examples
    --------
    >>> learned, held = hold_out(np.array([0, 0, 0, 0, 0, 1, 1]), 0.2)
    >>> len(learned), held.tolist()
    (5, [2, 5])
    """
    if not 0 < share < 1:
        raise CircleError(f"validation share {share}: expected more than 0 and less than 1")
    numbers, counts = np.unique(labels, return_counts=True)
    if need_both and (counts < 2).any():
        lonely = numbers[counts < 2][0]
        name = lonely if classes is None else classes[lonely]
        raise CircleError(
            f"{printable(where)}: class {printable(str(name))} has one image; expected two or a test part"
        )
    portion = _portion(counts, limit)
    random = np.random.Generator(np.random.PCG64(seed))  # pyright: ignore[reportArgumentType]
    learned: list[np.ndarray] = []
    held: list[np.ndarray] = []
    for number, count in zip(numbers, counts.tolist(), strict=True):
        positions = np.flatnonzero(labels == number)
        used = count if portion is None else 2 + int(portion * (count - 2))
        order = random.permutation(count)
        if draw == "rank":
            order = np.argsort(order)
        out = min(max(1, round(share * used)), used - 1)
        held.append(positions[order[:out]])
        learned.append(positions[order[out:used]])
    if not sum(map(len, held)):
        raise CircleError("nothing can be held back to choose settings on: no class has two images")
    return np.sort(np.concatenate(learned)), np.sort(np.concatenate(held))


def _portion(counts: np.ndarray, limit: int | None) -> float | None:
    """The portion of each class's images beyond two that a limit on all leaves."""
    if limit is None:
        return None
    least = 2 * len(counts)
    if limit < least:
        raise CircleError(f"limit = {limit}: expected at least {least}, two images of each class")
    spare = int(counts.sum()) - least
    return min(1.0, (limit - least) / spare) if spare else 1.0
