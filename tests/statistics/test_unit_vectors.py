"""Unit vectors in fixed point."""

from __future__ import annotations

import numpy as np
import torch

from circle.statistics.unit_vectors import UNIT, fixed_point_units, unit_vectors


def test_lengths_and_rounding() -> None:
    values = torch.randint(-127, 128, (50, 700), generator=torch.Generator().manual_seed(0)).to(torch.int8)
    units = unit_vectors(values)
    assert np.allclose(np.linalg.norm(units.numpy(), axis=1), 1.0, atol=1e-12)
    fixed = fixed_point_units(values)
    assert fixed.dtype == torch.int64
    assert float((fixed.to(torch.float64) / UNIT - units).abs().max()) <= 0.5 / UNIT


def test_every_batch_gives_the_same_bits() -> None:
    """|z|^2 is a sum of integers, so it has no rounding that the order could change."""
    values = torch.randint(-127, 128, (33, 3312), generator=torch.Generator().manual_seed(1)).to(torch.int8)
    together = fixed_point_units(values)
    assert torch.equal(torch.cat([fixed_point_units(row[None]) for row in values]), together)
    backwards = fixed_point_units(values.flip(1)).flip(1)
    assert torch.equal(backwards, together)
