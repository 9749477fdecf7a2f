"""From scores to probabilities, as :mod:`circle.runtime.probabilities` specifies it, in PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from circle.runtime.probabilities import MARGINS_PER_SQUARE, USUAL_CLASSES, USUAL_MARGIN


def softmax(scores: Tensor, temperature: float = 1.0, *, calibrated: bool = False) -> Tensor:
    """Probabilities [..., C] of scores [..., C]; equation and parameters are those of the specification.

    >>> softmax(torch.tensor([[3.0, 1.0, 1.0]], dtype=torch.float64)).round(decimals=2)
    tensor([[0.7900, 0.1100, 0.1100]], dtype=torch.float64)
    """
    if not calibrated:
        return torch.softmax(scores / temperature, -1)
    margins = scores.amax(-1, keepdim=True) - scores
    total = margins.sum(-1, keepdim=True) + USUAL_CLASSES * USUAL_MARGIN
    own = (total / (MARGINS_PER_SQUARE * (USUAL_CLASSES + scores.shape[-1] - 1))).sqrt()
    return torch.softmax(-margins / (temperature * own), -1)
