"""What a compressed model should be like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from circle.errors import CircleError
from circle.heads.packed import CODES, Weights

Way = Literal["weights", "groups", "parts", "rank"]
WAYS: tuple[Way, ...] = get_args(Way)


@dataclass(frozen=True)
class Wishes:
    """Settings of a search for a smaller model.

    ``ways`` are tried in the order of ``WAYS`` whatever their order here; None: all that the model allows.
    """

    ways: tuple[Way, ...] | None = None
    weights: Weights | None = None  # None: the smallest format whose loss is accepted
    max_loss: float = 0.5  # points of accuracy on the validation images
    target_bytes: int | None = None  # no further than this
    shares: tuple[float, ...] = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)  # of the parts kept
    rank_shares: tuple[float, ...] = (0.95, 0.9, 0.8, 0.65, 0.5, 0.25)  # of the number of classes
    timing_seconds: float = 20.0

    def __post_init__(self) -> None:
        for way in self.ways or ():
            if way not in WAYS:
                raise CircleError(f"way {way!r}: expected {', '.join(WAYS)}")
        if self.weights is not None and self.weights not in CODES:
            raise CircleError(f"weights {self.weights!r}: expected {', '.join(CODES)}")
        if not 0 <= self.max_loss <= 100:
            raise CircleError(f"max loss {self.max_loss:g}: expected points of accuracy, from 0 to 100")
        if self.target_bytes is not None and self.target_bytes <= 0:
            raise CircleError(f"target size {self.target_bytes}: expected a positive number of bytes")
        if self.timing_seconds < 0:
            raise CircleError(f"timing seconds {self.timing_seconds:g}: expected 0 or more")
