"""Features scaled to length one, in fixed point, so that their sums are exact."""

from __future__ import annotations

import torch
from torch import Tensor

UNIT = 2.0**36  # steps of a unit vector's entries; int64 then holds the sums of 10^8 samples


def unit_vectors(features: Tensor) -> Tensor:
    """z / |z| in float64, [B, D]; zero stays zero. Integers below 2^26 have an exact |z|^2, whatever the order."""
    values = features.to(torch.float64)
    return values / values.square().sum(1, keepdim=True).sqrt().clamp_min(1e-12)


def fixed_point_units(features: Tensor) -> Tensor:
    """round(2^36 z / |z|), int64 [B, D]."""
    return (unit_vectors(features) * UNIT).round_().to(torch.int64)
