"""Random projections, dense and sparse."""

from __future__ import annotations

import pytest
import torch

from circle.extractors.projection import RandomProjection


def projection(inputs: int, outputs: int, **options: object) -> RandomProjection:
    return RandomProjection(inputs, outputs, torch.Generator().manual_seed(0), **options)  # pyright: ignore


def test_sparse_equals_its_matrix() -> None:
    layer = projection(30, 12, fan_in=7)
    matrix = torch.zeros(12, 30)
    for output in range(12):
        for index, sign in zip(layer.index[output], layer.signs[output], strict=True):
            matrix[output, index] += sign
    values = torch.randn(5, 30, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(layer(values), values @ matrix.T, atol=1e-6)


def test_sparse_uses_all_inputs_equally() -> None:
    used = projection(100, 40, fan_in=10).index.flatten().bincount(minlength=100)
    assert used.tolist() == [4] * 100


@pytest.mark.parametrize("fan_in", [0, 64, 1000])
def test_variance_is_kept(fan_in: int) -> None:
    values = torch.randn(200, 500, generator=torch.Generator().manual_seed(1))
    projected = projection(500, 300, fan_in=fan_in)(values)
    # Kaiming scaling for a ReLU: twice the variance before it, so that half of it is left after.
    assert float(projected.var()) == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("fan_in", [0, 64])
def test_the_number_of_rows_does_not_matter(fan_in: int) -> None:
    """Small products take kernels of their own; a batch of one must not get other bits than a batch of many."""
    layer = projection(700, 300, fan_in=fan_in, relu=True)
    values = torch.randn(33, 700, generator=torch.Generator().manual_seed(1))
    torch.set_num_threads(1)  # as when features are extracted
    together = layer(values)
    for rows in (1, 2, 3, 7, 8, 9):
        assert torch.equal(layer(values[:rows]), together[:rows])
