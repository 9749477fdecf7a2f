"""The one rule by which images are held out."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from circle.data.hold_out import hold_out

LABELS = np.random.default_rng(7).integers(0, 5, 400)


@pytest.mark.parametrize(
    ("share", "options", "expected"),
    [
        (0.2, {}, "ca21afff218e3385"),
        (0.3, {"seed": 5}, "a65361f435a61099"),
        (0.25, {"seed": (3, 0), "draw": "rank"}, "51b812f70b8d1541"),
        (0.25, {"seed": (3, 0), "draw": "rank", "limit": 120}, "4f295278e964a496"),
    ],
)
def test_the_splits_never_move(share: float, options: dict[str, Any], expected: str) -> None:
    """Recorded results of the data sets, of tuning and of advice rest on which images are held out."""
    content = b"".join(part.astype(np.int64).tobytes() for part in hold_out(LABELS, share, **options))
    assert hashlib.sha256(content).hexdigest()[:16] == expected


def test_an_only_image_is_learned_unless_both_sides_need_one() -> None:
    learned, held = hold_out(np.array([0, 0, 0, 1]), 0.5)
    assert 3 in learned and len(held) == 2
    with pytest.raises(ValueError, match="images: class 1 has one image; expected two or a test part"):
        hold_out(np.array([0, 0, 0, 1]), 0.5, need_both=True)
