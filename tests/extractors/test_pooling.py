"""Grids of regions at any map size, windows of whole weights, roots."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from circle.extractors import LocalContrastConfig
from circle.extractors.integers import integer_root, signed_root
from circle.extractors.pooling import grid_matrix, pool, signed_power
from circle.runtime.arithmetic import moments_over_windows, root
from circle.runtime.weights import box_windows, gaussian_windows


@pytest.mark.parametrize(("height", "width", "grid"), [(8, 8, 2), (16, 16, 3), (7, 12, 4), (2, 3, 4), (1, 1, 3)])
def test_equals_adaptive_average_pooling(height: int, width: int, grid: int) -> None:
    maps = torch.rand(2, height, width, 5, generator=torch.Generator().manual_seed(0))
    found = pool(maps, grid_matrix(height, width, grid), ("mean",)).view(2, grid, grid, 5)
    expected = functional.adaptive_avg_pool2d(maps.permute(0, 3, 1, 2), grid).permute(0, 2, 3, 1)
    assert torch.allclose(found, expected, atol=1e-6)


def test_signed_power() -> None:
    values = torch.tensor([-4.0, 0.0, 9.0])
    assert signed_power(values, 0.5).tolist() == [-2.0, 0.0, 3.0]
    assert signed_power(values, 2.0).tolist() == [-16.0, 0.0, 81.0]
    assert signed_power(values, 1.0) is values


def largest_share_of_error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(np.cumsum(found, 1) - np.cumsum(expected, 1) * 254).max())


@pytest.mark.parametrize("length", [1, 2, 7, 8, 32, 224, 700])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_gaussian_windows(length: int, count: int) -> None:
    """Running sums are those of the formula, rounded: within one of 254, and two in the middle window."""
    found = gaussian_windows(length, count, 0.2, 0.25)
    assert found.shape == (count, length)
    places, centres = (np.arange(length) + 0.5) / length, np.linspace(0.25, 0.75, count) if count > 1 else [0.5]
    bells = np.exp(-((places - np.reshape(centres, (-1, 1))) ** 2) / 0.08)
    assert largest_share_of_error(found, bells / bells.sum(1, keepdims=True)) <= 1.0 + 1e-9
    check_windows(found)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 12, 32, 300])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_box_windows(length: int, count: int) -> None:
    found = box_windows(length, count)
    expected = functional.adaptive_avg_pool1d(torch.eye(length, dtype=torch.float64), count).T.numpy()
    assert largest_share_of_error(found, expected) <= 1.0 + 1e-9
    assert not found[expected == 0].any()
    check_windows(found)


def check_windows(windows: np.ndarray) -> None:
    """Whole weights that add up to 254 and treat left and right alike."""
    assert windows.dtype == np.int64
    assert windows.min() >= 0
    assert windows.sum(1).tolist() == [254] * len(windows)
    assert np.array_equal(windows, windows[::-1, ::-1]), "the last windows are the mirror images of the first"


def test_a_single_window_is_in_the_middle() -> None:
    window = LocalContrastConfig(grid=1).windows_along(5)[0]
    assert int(window.argmax()) == 2


def test_long_windows_alternate_in_the_right_proportion() -> None:
    """Where all weights are below one, ones and zeros."""
    window = box_windows(2000, 2)[0, :1000]
    assert set(window.tolist()) == {0, 1}
    assert int(np.diff(np.flatnonzero(window)).max()) <= 5


@pytest.mark.parametrize("moments", [("mean", "square"), ("square",), ("square", "mean")])
@pytest.mark.parametrize("limit", [255, 1023])
def test_no_sum_leaves_float32(limit: int, moments: tuple[str, ...]) -> None:
    """The largest sums there can be, of maps of bytes and of ten bits."""
    settings = SimpleNamespace(windows="gaussian", grid=3, window_spread=0.2, window_margin=0.25, moments=moments)
    maps = np.full((1, 8, 8, 1), limit)
    pooled = moments_over_windows(maps, settings, limit)
    assert 0.95 * 2**24 < pooled.max() < 2**24
    windows = gaussian_windows(8, 3, 0.2, 0.25)
    assert 254 * (np.square(maps).max() // (16 if limit > 255 else 1) + 1) < 2**24, "sums along columns"
    assert windows.sum(1).max() == 254


@given(values=st.lists(st.integers(-(2**24) + 1, 2**24 - 1), min_size=1), near=st.integers(1, 2**18 - 1))
def test_signed_roots_are_whole(values: list[int], near: int) -> None:
    """floor(sqrt(2^12 |v|)) by Python's whole numbers, around perfect squares, too."""
    square = near * near >> 12
    values = [*values, 0, square, square + 1, -square, 2**24 - 1, 1 - 2**24]
    expected = [(1 if value > 0 else -1) * math.isqrt(abs(value) << 12) for value in values]
    assert signed_root(torch.tensor(values, dtype=torch.float32)).to(torch.int64).tolist() == expected
    assert root(np.array(values), 0.5).tolist() == expected
    assert max(map(abs, expected)) < 2**18


@given(st.lists(st.integers(0, 2**44 - 1), min_size=1), st.integers(0, 2**22 - 1))
def test_integer_roots(values: list[int], near: int) -> None:
    values = [*values, near**2, max(0, near**2 - 1), near**2 + 1, 2**44 - 1]
    found = integer_root(torch.tensor(values, dtype=torch.float64))
    assert found.to(torch.int64).tolist() == [math.isqrt(value) for value in values]
