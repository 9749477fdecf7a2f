"""Strips of a symmetric matrix against the matrix itself."""

from __future__ import annotations

import pytest
import torch

from circle.errors import CircleError
from circle.statistics import second_moment
from circle.statistics.second_moment import STRIP_ROWS, SecondMoment

SIZES = [1, 5, STRIP_ROWS, STRIP_ROWS + 1, 2 * STRIP_ROWS + 37]


def moment(size: int, seed: int = 0) -> tuple[SecondMoment, torch.Tensor]:
    values = torch.randint(-127, 128, (40, size), generator=torch.Generator().manual_seed(seed)).float()
    result = SecondMoment(size)
    result.add_products(values)
    return result, (values.double().T @ values.double())


@pytest.mark.parametrize("size", SIZES)
def test_all_ways_to_read_it(size: int) -> None:
    result, expected = moment(size)
    assert torch.equal(result.full(), expected)
    assert torch.equal(result.diagonal(), expected.diagonal())
    rows, columns = torch.triu_indices(size, size)
    assert torch.equal(result.triangle(), expected[rows, columns])
    assert SecondMoment.from_triangle(result.triangle(), size) == result
    assert sum(strip.numel() for strip in result.strips) * 8 == SecondMoment.bytes_of(size)


@pytest.mark.parametrize("size", [*SIZES, 4 * STRIP_ROWS, 9 * STRIP_ROWS + 37])
def test_strips_that_share_products(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    apart, expected = moment(size)
    monkeypatch.setattr(second_moment, "MIN_FEATURES_FOR_BLOCKS", 0)
    together, _ = moment(size)
    assert together == apart
    assert torch.equal(together.full(), expected)


@pytest.mark.parametrize("size", SIZES)
def test_arithmetic(size: int) -> None:
    first, one = moment(size, 1)
    second, two = moment(size, 2)
    total = first.copy()
    total.add(second)
    assert torch.equal(total.full(), one + two)
    total.add(second, -1)
    assert total == first
    vector = torch.arange(1.0, size + 1).double()
    total.subtract_outer(vector, 7, whole=True)
    assert torch.equal(total.full(), one - (torch.outer(vector, vector) / 7).round())


def test_a_triangle_of_another_size_is_refused() -> None:
    with pytest.raises(CircleError, match="damaged"):
        SecondMoment.from_triangle(torch.zeros(5), 3)
