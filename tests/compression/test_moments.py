"""Moments from statistics against moments from features."""

from __future__ import annotations

import torch

from circle.compression.weights import DAMPING, Moments
from circle.statistics import Statistics


def test_statistics_and_features_agree() -> None:
    features = torch.randint(-99, 99, (50, 7), dtype=torch.int16)
    statistics = Statistics(7)
    statistics.update(features, [number % 3 for number in range(50)])
    exact, direct = Moments.of_statistics(statistics), Moments.of_features(features)
    torch.testing.assert_close(exact.mean, direct.mean)
    torch.testing.assert_close(exact.covariance, direct.covariance)
    torch.testing.assert_close(direct.covariance, torch.cov(features.T.double(), correction=0))


def test_feedback_is_a_root_of_the_inverse() -> None:
    moments = Moments.of_features(torch.randn(40, 6))
    damped = moments.covariance + DAMPING * moments.covariance.diagonal().mean() * torch.eye(6, dtype=torch.float64)
    upper = moments.feedback
    assert torch.equal(upper, upper.triu())
    torch.testing.assert_close(upper.T @ upper @ damped, torch.eye(6, dtype=torch.float64))
