"""Weights from bytes: what their distributions, norms and sums are asked to be, and that they never change."""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction

import numpy as np
import pytest

from circle.runtime import weights
from circle.runtime.birc2d import fraction, plain_layer, reservoir


def test_bytes_are_shake_128_of_seed_part_and_shape() -> None:
    """So that anyone can draw them in any language."""
    expected = hashlib.shake_128(b"circle 2 7 bank 0 patterns 4x9x12").digest(4 * 9 * 12)
    assert weights.random_bytes(7, "bank 0 patterns", (4, 9, 12)).tobytes() == expected
    assert weights.FEATURE_VERSION == 2


def test_seeds_parts_and_shapes_differ() -> None:
    drawn = [
        weights.random_bytes(seed, part, shape).tobytes()[:16]
        for seed in (0, 1)
        for part in ("a", "b")
        for shape in ((4, 4), (16,), (2, 8))
    ]
    assert len(set(drawn)) == 12


def test_normal_integers() -> None:
    values = weights.normal_integers(0, "test", (200, 200))
    assert abs(values.mean()) < 4
    assert values.std() == pytest.approx(256, rel=0.01)
    assert (np.abs(values) < 2 * 256).mean() == pytest.approx(0.9545, abs=0.01)


@pytest.mark.parametrize("limit", [0, 1, 31, 4096])
def test_uniform_integers(limit: int) -> None:
    values = weights.uniform_integers(0, "test", (300, 300), limit)
    assert (values.min(), values.max()) == (-limit, limit)
    assert abs(values.mean()) <= 0.02 * limit
    assert values.std() == pytest.approx(math.sqrt(((2 * limit + 1) ** 2 - 1) / 12), rel=0.02)


def test_permutations() -> None:
    order = weights.permutation(0, "test", 1000)
    assert sorted(order.tolist()) == list(range(1000))
    assert abs(np.corrcoef(order, np.arange(1000))[0, 1]) < 0.1


@pytest.mark.parametrize("fan_in", [1, 2, 27, 250, 4096])
@pytest.mark.parametrize("slope", [0.0, 0.01, 1.0])
@pytest.mark.parametrize("bits", [5, 12])
def test_kaiming_s_bound(fan_in: int, slope: float, bits: int) -> None:
    limit, shift = weights.uniform_bound(fan_in, Fraction(slope), bits)
    assert 2 ** (bits - 1) <= limit < 2**bits
    expected = math.sqrt(6 / ((1 + slope**2) * fan_in))
    assert limit / 2**shift <= expected < (limit + 1) / 2**shift


def test_norms() -> None:
    values = np.random.default_rng(0).integers(-500, 500, (20, 27))
    found = weights.with_norm(values, 96)
    expected = 96 * values / np.sqrt(np.square(values).sum(1, keepdims=True))
    assert np.abs(found - expected).max() <= 0.5
    assert not weights.with_norm(np.zeros((1, 5), np.int64), 96).any()


def test_what_a_row_has_too_much_is_taken_from_its_values() -> None:
    rows = np.array([[5, 5, 5], [1, 0, 0], [-7, 0, 0], [1, -1, 0]])
    found = weights.without_sum(rows)
    assert found.tolist() == [[0, 0, 0], [0, 0, 0], [-4, 2, 2], [1, -1, 0]]


@pytest.mark.parametrize(("channels", "kernel"), [(1, 2), (3, 3), (3, 5), (4, 4), (3, 11)])
def test_contrast_filters(channels: int, kernel: int) -> None:
    """A colour times a pattern, of norm 96, with sum zero in every channel; the first ones grey."""
    filters = weights.contrast_filters(0, "bank 0", 10, channels, kernel, grey=3)
    assert filters.shape == (10, channels, kernel, kernel)
    assert not filters.sum((2, 3)).any()
    np.testing.assert_allclose(np.sqrt(np.square(filters).sum((1, 2, 3))), 96, rtol=0.03)
    assert np.abs(filters).max() <= 127
    alike = [bool((each == each[:1]).all()) for each in filters]
    assert alike == [True] * 3 + [channels == 1] * 7
    for each in filters.reshape(10, channels, -1):
        left, sizes, right = np.linalg.svd(each.astype(np.float64), full_matrices=False)
        assert np.abs(each - sizes[0] * np.outer(left[:, 0], right[0])).max() < 3, "rank one, but for rounding"


def test_functions_of_colour() -> None:
    directions, constants = weights.colour_functions(0, 500, 3, 0.5)
    np.testing.assert_allclose(np.sqrt(np.square(directions).sum(1)), 16, atol=0.9)
    assert 950 < np.abs(constants).max() <= 1020
    assert not weights.colour_functions(0, 5, 3, 0.0)[1].any()
    assert [part.shape for part in weights.colour_functions(0, 0, 3, 1.0)] == [(0, 3), (0,)]


def test_plain_layers_are_kaiming_uniform() -> None:
    """Pixels have 128 levels to a deviation, maps 64."""
    layer = plain_layer(0, 0, (200, 3, 3, 3), 0.01, bias=True)
    scale = layer.shift + 6 - 7
    assert np.abs(layer.filters).max() / 2**scale == pytest.approx(math.sqrt(6 / (1.0001 * 27)), rel=0.04)
    assert np.abs(layer.biases).max() / 2 ** (scale + 7) == pytest.approx(27**-0.5, rel=0.05)
    assert not plain_layer(0, 0, (200, 3, 3, 3), 0.01, bias=False).biases.any()


@pytest.mark.parametrize("centred", [False, True])
def test_reservoirs(centred: bool) -> None:
    drawn = reservoir(0, "part", 48, 20, level_bits=5, slope=0.0, sparsity=0.9, radius=0.9, zero_mean_inputs=centred)
    assert drawn.inputs.shape == (80, 48)
    assert drawn.recurrent.shape == (4, 20, 20)
    bound = np.abs(drawn.inputs).max() * 2.0 ** -(drawn.input_shift + 8 - 5)
    assert bound == pytest.approx(math.sqrt(6 / 48), rel=0.15)
    assert bool(drawn.inputs.sum(1).any()) != centred
    assert len({matrix.tobytes() for matrix in drawn.recurrent}) == 4
    for matrix in drawn.recurrent:
        assert (matrix != 0).sum() <= 40
        assert np.abs(np.linalg.eigvals(matrix / 128)).max() == pytest.approx(0.9, rel=0.03)


def test_a_nilpotent_reservoir_keeps_the_size_of_its_draw() -> None:
    drawn = reservoir(
        0, "part", 4, 2, level_bits=5, slope=0.0, sparsity=0.75, radius=0.9, zero_mean_inputs=False
    ).recurrent
    nilpotent = [matrix for matrix in drawn if not np.diag(matrix).any()]
    assert nilpotent, "one entry off the diagonal is left in some of four"
    assert all(0 < np.abs(matrix).max() <= 128 for matrix in nilpotent)


def test_fractions() -> None:
    assert [fraction(value, 8) for value in (0.0, 0.8, 1.0, 0.001)] == [0, 205, 256, 0]
