"""Class moments in a subspace: whole numbers, in the smallest type that holds them, in any order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from circle.errors import CircleError
from circle.runtime.subspace import SHIFTS, coordinates
from circle.statistics import Statistics
from circle.statistics.parts import SubspaceMoments

PART, DIMENSION, SIZE = "subspace_32", 32, 40


def statistics(*samples: tuple[torch.Tensor, list[str]]) -> Statistics:
    result = Statistics(SIZE, parts=[PART])
    for values, labels in samples:
        result.update(values, labels)
    return result


def values_of(count: int, bits: int = 16, seed: int = 0) -> torch.Tensor:
    limit = 2 ** (bits - 1) - 1
    drawn = np.random.default_rng(seed).integers(-limit, limit + 1, (count, SIZE))
    return torch.from_numpy(drawn.astype({8: np.int8, 16: np.int16}[bits]))


def moments(found: Statistics) -> SubspaceMoments:
    part = found._parts[PART]
    assert isinstance(part, SubspaceMoments)
    return part


def expected(values: torch.Tensor, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Upper triangle of sum u u^T, and sum of u, in int64."""
    u = coordinates(values.numpy(), DIMENSION, SHIFTS[bits]).astype(np.int64)
    return (u.T @ u)[np.triu_indices(DIMENSION)], u.sum(0)


@pytest.mark.parametrize("bits", [8, 16])
def test_sums_are_those_of_the_specification(bits: int) -> None:
    values = values_of(30, bits)
    triangles, sums, shift = statistics((values, ["a", "b", "b"] * 10)).subspace_moments(PART)
    assert shift == SHIFTS[bits]
    for row, chosen in enumerate([values[0::3], torch.cat([values[1::3], values[2::3]])]):
        triangle, total = expected(chosen, bits)
        assert np.array_equal(triangles[row].numpy(), triangle)
        assert np.array_equal(sums[row].numpy(), total)


def loud(count: int) -> torch.Tensor:
    """Samples that make the first coordinate as large as it can be."""
    from circle.runtime.subspace import subspace_matrix

    signs = np.sign(subspace_matrix(SIZE, DIMENSION)[:, 0]).astype(np.int16)
    return torch.from_numpy(np.tile(signs * 32767, (count, 1)))


def test_the_type_grows_before_a_sum_could_overflow() -> None:
    found = statistics((values_of(4, seed=1) // 64, ["a"] * 4))
    found.flush()
    assert moments(found).rows.dtype == torch.int32
    found.update(loud(60), ["a"] * 60)
    found.flush()
    assert moments(found).rows.dtype == torch.int64
    everything = torch.cat([values_of(4, seed=1) // 64, loud(60)])
    triangle, total = expected(everything, 16)
    assert triangle.max() > 2**31
    triangles, sums, _ = found.subspace_moments(PART)
    assert np.array_equal(triangles[0].numpy(), triangle)
    assert np.array_equal(sums[0].numpy(), total)


def test_wide_and_narrow_sums_compare_add_and_subtract() -> None:
    quiet, noisy = (values_of(4, seed=1) // 64, ["a"] * 4), (loud(60), ["b"] * 60)
    narrow, wide = statistics(quiet), statistics(noisy)
    for both in (narrow + wide, wide + narrow):
        assert both - wide == narrow
        assert both - narrow == wide
        again = Statistics.from_parts(both.classes, both.counts, **both.parts())
        assert again == both
    assert moments((narrow + wide) - wide).rows.dtype == torch.int64
    assert (
        moments(Statistics.from_parts(narrow.classes, narrow.counts, **((narrow + wide) - wide).parts())).rows.dtype
        == torch.int32
    ), "what a file brings takes the smallest type again"


def test_many_small_batches_do_not_widen_for_nothing() -> None:
    """The bound is looked at again where it is reached, so a long quiet stream stays narrow."""
    found = statistics()
    values = values_of(64, seed=2) // 256
    for _ in range(200):
        found.update(values, ["a", "b", "c", "d"] * 16)
        found.flush()
    moments(found)._largest = 2**31 - 1
    found.update(values, ["a", "b", "c", "d"] * 16)
    found.flush()
    assert moments(found).rows.dtype == torch.int32
    assert moments(found)._largest >= int(moments(found).rows.abs().max())


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_order_batches_and_merging_make_no_difference(labels: list[str], random: object) -> None:
    values = values_of(len(labels), seed=len(labels))
    order = list(range(len(labels)))
    random.shuffle(order)  # pyright: ignore[reportAttributeAccessIssue]
    once = statistics((values, labels))
    single = statistics(*((values[index : index + 1], [labels[index]]) for index in order))
    cut = len(labels) // 2
    first, second = (values[:cut], labels[:cut]), (values[cut:], labels[cut:])
    assert single == once
    assert statistics(first) + statistics(second) == once
    assert once - statistics(second) == statistics(first)


def test_features_of_8_and_16_bits_do_not_mix() -> None:
    mixed = statistics((values_of(3, 8), ["a"] * 3), (values_of(3, 16), ["a"] * 3))
    with pytest.raises(CircleError, match="features of 8 and of 16 bits"):
        mixed.subspace_moments(PART)


def test_columns_cannot_be_selected() -> None:
    found = statistics((values_of(3), ["a"] * 3))
    assert not found.selectable
    with pytest.raises(CircleError, match="cannot be cut"):
        found.select(torch.arange(5))


def test_fewer_features_than_coordinates() -> None:
    found = Statistics(5, parts=[PART])
    found.update(values_of(6)[:, :5], ["a"] * 6)
    triangles, sums, _ = found.subspace_moments(PART)
    assert (triangles.shape, sums.shape) == ((1, 15), (1, 5))
