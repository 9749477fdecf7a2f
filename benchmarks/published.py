"""Heads that learn one sample at a time as the literature writes them down: a matrix is changed for every sample."""

from __future__ import annotations

import torch
from torch import Tensor


class PublishedSLDA:
    """Streaming LDA as it is published: for every sample a running mean and a rank-one update of the covariance.

    Sigma <- (n Sigma + Delta) / (n + 1),    Delta = n (z - mu_y) (z - mu_y)^T / (n + 1)
    """

    def __init__(self, size: int, classes: int) -> None:
        self.means, self.counts = torch.zeros(classes, size), torch.zeros(classes)
        self.covariance, self.samples = torch.ones(size, size), 0

    def fit(self, sample: Tensor, label: int) -> None:
        centred = sample - self.means[label]
        delta = torch.outer(centred, centred) * (self.samples / (self.samples + 1))
        self.covariance = (self.samples * self.covariance + delta) / (self.samples + 1)
        self.means[label] += centred / (self.counts[label] + 1)
        self.counts[label] += 1
        self.samples += 1


class RecursiveLeastSquares:
    """Ridge regression, one sample at a time: P <- P - P z z^T P / (1 + z^T P z), W <- W + P z (y - z^T W).

    With the new P, P z is the old P z / (1 + z^T P z), so one product serves both lines.
    """

    def __init__(self, size: int, classes: int, ridge: float = 1.0) -> None:
        self.inverse = torch.eye(size) / ridge
        self.weight = torch.zeros(size, classes)

    def fit(self, sample: Tensor, label: int) -> None:
        product = self.inverse @ sample
        gain = product / (1 + sample @ product)
        self.inverse -= torch.outer(product, gain)
        error = -(sample @ self.weight)
        error[label] += 1
        self.weight += torch.outer(gain, error)
