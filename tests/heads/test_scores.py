"""Packed weights: bounds on the error, and what a file holds of them."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from circle.heads import LinearScores
from circle.heads.scores import SCORES, LowRankScores, PackedScores, pack

MATRICES = st.builds(
    lambda seed, rows, columns, spread: (
        torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        * 10.0 ** torch.linspace(-spread, spread, rows, dtype=torch.float64)[:, None]
    ),
    st.integers(0, 10**6),
    st.integers(1, 6),
    st.integers(1, 40),
    st.floats(0, 12),
)


@given(MATRICES)
def test_int8_moves_no_entry_by_more_than_half_a_step(matrix: torch.Tensor) -> None:
    packed = pack(matrix, "int8")
    step = packed.rows.to(torch.float64)[:, None]
    assert packed.codes.dtype == torch.int8
    assert bool(((packed.unpacked() - matrix).abs() <= 0.5 * step * (1 + 1e-5)).all())
    assert bool((step[:, 0] <= matrix.abs().amax(1) / 127 * (1 + 1e-6)).all())


@given(MATRICES)
def test_float16_keeps_eleven_bits_whatever_the_size_of_the_row(matrix: torch.Tensor) -> None:
    largest = matrix.abs().amax(1, keepdim=True)
    error = (pack(matrix, "float16").unpacked() - matrix).abs()
    assert bool((error <= matrix.abs() * 2.0**-11 * 1.01 + largest * 2.0**-24).all())


def test_a_row_of_zeros_stays_zero() -> None:
    for weights in ("int8", "float16", "float32"):
        assert not pack(torch.zeros(2, 3, dtype=torch.float64), weights).unpacked().any()


def test_scores_are_those_of_the_unpacked_weights() -> None:
    matrix, bias = torch.randn(4, 9, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    features = torch.randint(-100, 100, (5, 9), dtype=torch.int16)
    packed = pack(matrix, "int8")
    expected = LinearScores(packed.unpacked(), bias)(features)
    torch.testing.assert_close(PackedScores(packed.codes, packed.rows, bias)(features), expected)
    outer = torch.randn(6, 4)
    low = LowRankScores(packed.codes, packed.rows, outer, bias=torch.zeros(6, dtype=torch.float64))
    product = LinearScores(outer.double() @ packed.unpacked(), torch.zeros(6, dtype=torch.float64))
    torch.testing.assert_close(low(features), product(features))


def test_registered_by_the_kind_that_a_file_names() -> None:
    assert (SCORES["packed"], SCORES["low_rank"], SCORES["linear"]) == (PackedScores, LowRankScores, LinearScores)


def test_numbers_and_words() -> None:
    packed = pack(torch.randn(4, 9), "int8")
    scores = PackedScores(packed.codes, packed.rows, torch.zeros(4))
    low = LowRankScores(packed.codes, packed.rows, torch.zeros(6, 4), torch.zeros(6))
    assert (scores.numbers, scores.describe()) == (36, "int8")
    assert (low.numbers, low.describe()) == (36 + 24, "int8, rank 4")
