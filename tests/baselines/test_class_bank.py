"""What is kept of classes: distances against explicit inverses, factors that are renewed, mending that is counted."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from circle.baselines.class_bank import ClassBank, covariance_of
from circle.benchmark.results import load_state, same_state, save_state


def sample(count: int, size: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.normal(size=(count, size)) @ random.normal(size=(size, size)) + random.normal(size=size)


def definite(size: int, seed: int) -> np.ndarray:
    root = np.random.default_rng(seed).normal(size=(size, size + 2))
    return root @ root.T / size + 0.1 * np.eye(size)


def filled(classes: int, size: int) -> ClassBank:
    bank = ClassBank(size, covariances=True)
    for column in range(classes):
        bank.put(column, 9, tensor(sample(1, size, column)[0]), tensor(definite(size, column)))
    return bank


def tensor(values: np.ndarray) -> Tensor:
    return torch.from_numpy(values)


def explicit(bank: ClassBank, values: np.ndarray) -> np.ndarray:
    """Distances by inverses and loops."""
    assert bank.covariances is not None
    result = np.zeros((len(values), len(bank)))
    for column in range(len(bank)):
        inverse = np.linalg.inv(bank.covariances[column].numpy())
        for row, value in enumerate(values):
            away = value - bank.means[column].numpy()
            result[row, column] = away @ inverse @ away
    return result


@given(classes=st.integers(1, 4), size=st.integers(1, 6), count=st.integers(1, 5))
def test_distances(classes: int, size: int, count: int) -> None:
    bank, values = filled(classes, size), sample(count, size, 9)
    distances = bank.distances(tensor(values))
    assert distances.dtype == torch.float64 and distances.shape == (count, classes)
    assert np.allclose(distances.numpy(), explicit(bank, values), rtol=1e-8)
    assert np.allclose(bank.distances(tensor(values).float()).numpy(), explicit(bank, values), rtol=1e-4, atol=1e-4)
    assert bank.jittered == 0


def test_a_class_that_comes_again_is_described_anew() -> None:
    bank, values = filled(3, 4), sample(6, 4, 9)
    before = bank.distances(tensor(values))  # factors are there now
    mean, covariance = tensor(sample(1, 4, 7)[0]), tensor(definite(4, 7))
    bank.put(1, 9, mean, covariance)
    assert len(bank) == 3 and bank.covariances is not None
    assert torch.equal(bank.means[1], mean) and torch.equal(bank.covariances[1], covariance)
    after = bank.distances(tensor(values))
    assert np.allclose(after.numpy(), explicit(bank, values), rtol=1e-8)
    assert torch.equal(after[:, [0, 2]], before[:, [0, 2]])
    assert not torch.allclose(after[:, 1], before[:, 1])


def test_factors_are_lower_triangular_and_kept() -> None:
    bank = filled(2, 5)
    for column in range(2):
        factor = bank.factor(column)
        assert torch.equal(factor, factor.tril())
        assert np.allclose((factor @ factor.T).numpy(), definite(5, column))
        assert bank.factor(column) is factor


def test_a_singular_covariance_is_mended_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    bank = filled(1, 3)
    singular = np.diag([1.0, 2.0, -1e-9])  # not positive definite by rounding
    bank.put(1, 9, torch.zeros(3, dtype=torch.float64), tensor(singular))
    values = sample(4, 3, 9)
    with caplog.at_level(logging.WARNING, logger="circle"):
        distances = bank.distances(tensor(values))
    assert bank.jittered == 1
    assert len(caplog.records) == 1 and "jitter" in caplog.records[0].getMessage()
    assert bank.covariances is not None
    assert np.array_equal(bank.covariances[1].numpy(), singular), "what is kept is what was given"
    mended = singular + np.eye(3) * 1e-6 * np.trace(singular) / 3
    assert np.allclose(distances[:, 1].numpy(), [value @ np.linalg.inv(mended) @ value for value in values], rtol=1e-6)
    bank.distances(tensor(values))
    assert bank.jittered == 1, "once for each covariance, not for each use"
    bank.put(0, 9, torch.zeros(3, dtype=torch.float64), tensor(singular))
    bank.distances(tensor(values))
    assert bank.jittered == 2


@pytest.mark.parametrize("covariances", [True, False])
def test_a_state_goes_on(covariances: bool, tmp_path: Path) -> None:
    bank = ClassBank(4, covariances=covariances)
    for column in range(3):
        bank.put(column, 9, tensor(sample(1, 4, column)[0]), tensor(definite(4, column)) if covariances else None)
    save_state(tmp_path / "state", bank.state_dict(), {})
    again = ClassBank(4, covariances=covariances)
    again.load_state_dict(load_state(tmp_path / "state")[0])
    assert same_state(again.state_dict(), bank.state_dict()) and len(again) == 3
    for each in (bank, again):
        each.put(3, 9, tensor(sample(1, 4, 3)[0]), tensor(definite(4, 3)) if covariances else None)
        each.put(0, 9, tensor(sample(1, 4, 5)[0]), tensor(definite(4, 5)) if covariances else None)
    assert same_state(again.state_dict(), bank.state_dict())
    if covariances:
        values = tensor(sample(5, 4, 9))
        assert torch.equal(again.distances(values), bank.distances(values))


def test_a_loaded_state_takes_the_place_of_what_was_there() -> None:
    bank, other, values = filled(2, 3), filled(3, 3), tensor(sample(4, 3, 9))
    other.put(0, 9, torch.zeros(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64))
    other.distances(values)
    other.load_state_dict(bank.state_dict())
    assert torch.equal(other.distances(values), bank.distances(values))


def test_a_state_is_a_copy() -> None:
    bank = filled(2, 3)
    state = bank.state_dict()
    state["means"].zero_()
    state["covariances"].zero_()
    assert np.array_equal(bank.means[0].numpy(), sample(1, 3, 0)[0])
    assert bank.covariances is not None and np.array_equal(bank.covariances[1].numpy(), definite(3, 1))


def test_mending_is_counted_alike_whether_or_not_a_state_was_loaded_in_between() -> None:
    """A run that was left and taken up again ends in the same state as one that was not."""
    bank, values = ClassBank(2, covariances=True), torch.zeros(1, 2, dtype=torch.float64)
    bank.put(0, 9, torch.zeros(2, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64))
    bank.distances(values)
    resumed = ClassBank(2, covariances=True)
    resumed.load_state_dict(bank.state_dict())
    bank.distances(values)
    resumed.distances(values)
    assert same_state(resumed.state_dict(), bank.state_dict())


def test_a_bank_of_means_has_no_factors() -> None:
    bank = ClassBank(2, covariances=False)
    bank.put(0, 9, torch.zeros(2))
    with pytest.raises(ValueError, match="means only"):
        bank.factor(0)
    assert bank.means.dtype == torch.float64 and "covariances" not in bank.state_dict()


@given(count=st.integers(2, 30), size=st.integers(1, 6))
def test_sample_covariance(count: int, size: int) -> None:
    values = sample(count, size, count)
    expected = np.cov(values, rowvar=False).reshape(size, size)
    assert np.allclose(covariance_of(tensor(values)).numpy(), expected, rtol=1e-9, atol=1e-12)
    single = covariance_of(tensor(values).float())
    assert single.dtype == torch.float64 and np.allclose(single.numpy(), expected, rtol=1e-3, atol=1e-4)


def test_a_single_sample_has_no_covariance() -> None:
    assert torch.equal(covariance_of(torch.tensor([[3.0, -2.0]])), torch.zeros(2, 2, dtype=torch.float64))


def test_draws_have_the_mean_and_covariance_of_their_class() -> None:
    covariance = definite(3, 0)
    bank = ClassBank(3, covariances=True)
    bank.put(0, 9, torch.tensor([1.0, -2.0, 5.0], dtype=torch.float64), tensor(covariance))
    drawn = bank.sample(0, 200_000, torch.Generator().manual_seed(0)).numpy()
    scale = np.abs(covariance).max()
    assert np.allclose(drawn.mean(0), [1.0, -2.0, 5.0], atol=0.02 * np.sqrt(scale))
    assert np.allclose(np.cov(drawn.T), covariance, atol=0.03 * scale)
    again = bank.sample(0, 200_000, torch.Generator().manual_seed(0)).numpy()
    assert np.array_equal(drawn, again)


def test_radius_and_counts() -> None:
    bank = ClassBank(3, covariances=True)
    traces = []
    for column in range(4):
        covariance = definite(3, column)
        traces.append(np.trace(covariance))
        bank.put(column, 10 + column, torch.zeros(3), tensor(covariance))
    bank.put(1, 99, torch.zeros(3), tensor(definite(3, 1)))
    assert bank.counts == [10, 99, 12, 13]
    assert np.allclose(bank.spreads.numpy(), np.array(traces) / 3)
    assert np.isclose(bank.radius(), np.sqrt(np.mean(traces) / 3))
    other = ClassBank(3, covariances=True)
    other.load_state_dict(bank.state_dict())
    assert other.counts == bank.counts and torch.equal(other.spreads, bank.spreads)
    assert other.radius() == bank.radius()


@pytest.mark.parametrize("covariances", [True, False])
def test_classes_described_by_features(covariances: bool) -> None:
    """Counts, means, spreads and covariances, loop by loop; whatever the order of the samples."""
    bank = ClassBank(3, covariances=covariances)
    columns = np.array([1, 0, 1, 2, 0, 1, 1, 0])
    features = sample(8, 3, 4)
    bank.describe(torch.from_numpy(columns), tensor(features))
    assert bank.counts == [3, 4, 1] and len(bank) == 3
    expected = []
    for column in range(3):
        own = [features[row] for row in range(8) if columns[row] == column]
        mean = sum(own) / len(own)
        scatter = sum(np.outer(value - mean, value - mean) for value in own) / max(1, len(own) - 1)
        expected.append(np.trace(scatter) / 3)
        assert np.allclose(bank.means[column].numpy(), mean)
        if bank.covariances is not None:
            assert np.allclose(bank.covariances[column].numpy(), scatter, atol=1e-12)
    assert np.allclose(bank.spreads.numpy(), expected, atol=1e-12) and expected[2] == 0.0
    assert np.isclose(bank.radius(), np.sqrt(sum(expected) / 3))
    assert (bank.covariances is not None) == covariances and bank.spreads.dtype == torch.float64


@pytest.mark.parametrize("covariances", [True, False])
def test_only_classes_that_are_there_are_described_anew(covariances: bool) -> None:
    bank = ClassBank(2, covariances=covariances)
    first, second = sample(12, 2, 1), sample(9, 2, 2)
    bank.describe(torch.arange(12) % 3, tensor(first))
    before = bank.state_dict()
    if covariances:
        bank.factor(1)
    bank.describe(torch.tensor([1, 3, 3, 1, 1, 3, 1, 3, 3]), tensor(second).float())
    assert bank.counts == [4, 4, 4, 5]
    own = second[[0, 3, 4, 6]]
    assert np.allclose(bank.means[1].numpy(), own.mean(0), rtol=1e-5)
    assert np.isclose(float(bank.spreads[1]), np.trace(np.cov(own.T)) / 2, rtol=1e-5)
    for column in (0, 2):
        for name in ("means", "spreads"):
            assert torch.equal(bank.state_dict()[name][column], before[name][column])
    if covariances:
        assert np.allclose((bank.factor(1) @ bank.factor(1).T).numpy(), np.cov(own.T), rtol=1e-4, atol=1e-5)


def test_a_spread_may_be_given_where_no_covariance_is() -> None:
    bank = ClassBank(2, covariances=False)
    bank.put(0, 5, torch.zeros(2), spread=4.0)
    bank.put(1, 5, torch.zeros(2), spread=2.0)
    assert bank.spreads.tolist() == [4.0, 2.0]
    assert bank.radius() == pytest.approx(np.sqrt(3.0))
    with pytest.raises(ValueError, match="for no other"):
        bank.put(2, 5, torch.zeros(2), tensor(np.diag([1.0, 3.0])))


def test_a_covariance_gives_the_spread() -> None:
    bank = ClassBank(2, covariances=True)
    bank.put(0, 5, torch.zeros(2), tensor(np.diag([1.0, 3.0])), spread=9.0)
    assert bank.spreads.tolist() == [2.0], "whatever is said"
    with pytest.raises(ValueError, match="a covariance for a bank that keeps them"):
        bank.put(1, 5, torch.zeros(2))
    assert len(bank.counts) == len(bank) == 1, "nothing is half done"
