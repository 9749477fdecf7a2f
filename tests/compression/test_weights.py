"""Weights in fewer bits and of lower rank: what they keep, and why the covariance is asked."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from circle.compression.weights import Moments, low_rank, pack_scores, round_with_feedback
from circle.errors import CircleError
from circle.heads.scores import LinearScores, PackedScores, QuadraticScores, pack


def example(seed: int, classes: int = 6, size: int = 30) -> tuple[LinearScores, Moments, torch.Tensor]:
    """A head on features that are much alike and far from zero, as those of overlapping windows are."""
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(400, 1, generator=generator) * 300 + 500
    features = (shared + torch.randn(400, size, generator=generator) * 20).round().to(torch.int16)
    weight = torch.randn(classes, size, generator=generator, dtype=torch.float64) / 20
    weight = weight - weight.mean(1, keepdim=True)  # large weights that nearly cancel
    bias = torch.randn(classes, generator=generator, dtype=torch.float64)
    return LinearScores(weight, bias).rounded(), Moments.of_features(features), features


def centred(scores: torch.Tensor) -> torch.Tensor:
    return scores - scores.mean(1, keepdim=True)


@given(st.integers(0, 10**6))
def test_feedback_beats_the_nearest_codes(seed: int) -> None:
    scores, moments, features = example(seed)
    matrix = scores.weight.double()

    def error(approximation: torch.Tensor) -> float:
        return float((centred((features.double() - moments.mean) @ (matrix - approximation).T)).square().mean())

    assert error(round_with_feedback(matrix, moments).unpacked()) < 0.5 * error(pack(matrix, "int8").unpacked())


@given(st.integers(0, 10**6))
def test_codes_with_feedback_lie_on_the_same_grid(seed: int) -> None:
    scores, moments, _ = example(seed)
    packed = round_with_feedback(scores.weight.double(), moments)
    assert packed.codes.dtype == torch.int8
    assert int(packed.codes.min()) >= -127
    assert torch.equal(packed.rows, pack(scores.weight.double(), "int8").rows)


@given(st.integers(0, 10**6))
def test_int8_leaves_the_mean_score_alone(seed: int) -> None:
    scores, moments, features = example(seed)
    packed = pack_scores(scores, "int8", None, moments)
    torch.testing.assert_close(packed(features).mean(0), scores(features).mean(0), rtol=1e-6, atol=1e-6)


@given(st.integers(0, 10**6))
def test_full_rank_is_the_original(seed: int) -> None:
    scores, moments, features = example(seed)
    full = low_rank(scores, len(scores.bias), "float32", moments)
    expected = centred(scores(features))
    torch.testing.assert_close(centred(full(features)), expected, rtol=1e-4, atol=1e-4)
    # The mean over the classes is no loss, so one number less carries everything, too.
    fewer = low_rank(scores, len(scores.bias) - 1, "float32", moments)
    torch.testing.assert_close(centred(fewer(features)), expected, rtol=1e-4, atol=1e-4)


def test_lower_rank_is_the_best_there_is() -> None:
    scores, moments, features = example(0)
    expected = centred(scores(features))
    errors = [
        float((centred(low_rank(scores, r, "float32", moments)(features)) - expected).square().sum())
        for r in (1, 2, 3, 4)
    ]
    spectrum = torch.linalg.svdvals(expected - expected.mean(0)).square()
    for rank, error in enumerate(errors, 1):
        assert error == pytest.approx(float(spectrum[rank:].sum()), rel=1e-3)  # Eckart and Young


def test_float32_of_full_rank_is_the_head_itself() -> None:
    scores, moments, _ = example(0)
    assert pack_scores(scores, "float32", None, moments) is scores


def test_float16_needs_no_moments() -> None:
    scores, _, features = example(0)
    packed = pack_scores(scores, "float16", None, None)
    assert isinstance(packed, PackedScores)
    assert packed.codes.dtype == torch.float16
    bound = features.double().abs() @ scores.weight.double().abs().T * 2.0**-11
    assert bool(((packed(features) - scores(features)).abs() <= bound * 1.01 + 1e-3).all())


def test_what_is_refused() -> None:
    scores, moments, _ = example(0)
    with pytest.raises(CircleError, match="int8 weights need the features' covariance"):
        pack_scores(scores, "int8", None, None)
    with pytest.raises(CircleError, match="lower rank needs the features' covariance"):
        pack_scores(scores, "float32", 2, None)
    with pytest.raises(CircleError, match="rank = 7: expected 1 to 6"):
        pack_scores(scores, "float32", 7, moments)
    quadratic = QuadraticScores(torch.zeros(2, 2), torch.ones(2, 3), torch.zeros(2))
    with pytest.raises(CircleError, match="a quadratic head has no such weights"):
        pack_scores(quadratic, "int8", None, moments)
