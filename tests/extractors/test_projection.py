"""Random projections, dense and sparse."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from circle.errors import CircleError
from circle.extractors.integers import IntegerProjection
from circle.extractors.projection import RandomProjection
from circle.runtime.weights import dense_projection, sparse_projection


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


# -- of the portable extractors, in integers ---------------------------------------------------------------------


def values_up_to(limit: int, rows: int, inputs: int) -> torch.Tensor:
    random = np.random.default_rng(1)
    return torch.from_numpy(random.integers(-limit, limit + 1, (rows, inputs))).float()


@pytest.mark.parametrize("fan_in", [0, 7, 1000])
@pytest.mark.parametrize("relu", [False, True])
def test_whole_projections_equal_their_matrix(fan_in: int, relu: bool) -> None:
    layer = IntegerProjection(30, 12, 5, fan_in=fan_in, relu=relu)
    if fan_in:
        matrix = np.zeros((12, 30), np.int64)
        index, signs = sparse_projection(5, 30, 12, min(fan_in, 30))
        for output in range(12):
            np.add.at(matrix[output], index[output], signs[output])
        assert layer.generated == 12 * min(fan_in, 30)
    else:
        matrix = dense_projection(5, 30, 12)
        assert layer.generated == 12 * 30
    assert (layer.shift > 0) == (fan_in != 7)
    for limit in (100, 2**19 - 1, 2**23 - 1):
        values = values_up_to(limit, 50, 30)
        expected = np.clip((values.numpy().astype(np.int64) @ matrix.T) >> layer.shift, 1 - 2**23, 2**23 - 1)
        found = layer(values)
        assert found.dtype == torch.float32
        assert np.array_equal(found.numpy(), np.maximum(expected, 0) if relu else expected)


def test_values_of_nineteen_bits_are_never_cut_off() -> None:
    for fan_in, inputs in ((0, 40), (16, 40), (40, 40)):
        layer = IntegerProjection(inputs, 20, 0, fan_in=fan_in)
        rows = torch.cat([layer.dense.T if not fan_in else signs_by_input(layer), -values_up_to(1, 1, inputs)])
        found = layer(rows.sign().float() * (2**19 - 1))
        assert 0.99 * 2**22 < float(found.max()) < 2**23 - 1, "all of the range is used, and no more"


def signs_by_input(layer: IntegerProjection) -> torch.Tensor:
    return torch.zeros(layer.outputs, layer.inputs, dtype=torch.float64).scatter_add_(1, layer.index, layer.signs)


def test_whole_sparse_projections_use_all_inputs_equally() -> None:
    index, signs = sparse_projection(0, 100, 40, 10)
    assert np.bincount(index.reshape(-1), minlength=100).tolist() == [4] * 100
    assert set(signs.reshape(-1).tolist()) == {-1, 1}
    assert abs(int(signs.sum())) < 60


def test_whole_dense_weights_are_uniform() -> None:
    weights = dense_projection(0, 300, 200)
    assert (weights.min(), weights.max()) == (-127, 127)
    assert abs(float(weights.mean())) < 1.5
    assert float(weights.std()) == pytest.approx(73.6, rel=0.01)  # zero twice among 256


@pytest.mark.parametrize("fan_in", [0, 64])
def test_a_row_alone_is_projected_alike(fan_in: int) -> None:
    layer, values = IntegerProjection(700, 300, 0, fan_in=fan_in, relu=True), values_up_to(2**19 - 1, 33, 700)
    together = layer(values)
    for rows in (1, 2, 3, 7):
        assert torch.equal(layer(values[:rows]), together[:rows])


def test_a_dense_projection_can_be_too_large() -> None:
    with pytest.raises(CircleError, match="200,000 to 1,100 values is too large: set projection_fan_in"):
        IntegerProjection(200_000, 1100, 0)
