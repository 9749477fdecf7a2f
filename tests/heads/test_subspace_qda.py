"""SLDA with class covariances in a subspace: the discriminants written out, and what few samples leave of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from circle.errors import CircleError
from circle.heads import SLDA, SLDAConfig, SubspaceQDA, SubspaceQDAConfig
from circle.heads.scores import PackedSubspaceScores, SubspaceScores, pack
from circle.runtime.predictor import SCORES
from circle.runtime.subspace import SHIFTS, coordinates, subspace_matrix
from circle.statistics import Statistics

SIZE, DIMENSION = 40, 32
CONFIG = SubspaceQDAConfig(dimension=DIMENSION, rank=16)


def samples(count: int = 120, classes: int = 3, seed: int = 0) -> tuple[torch.Tensor, list[int]]:
    """Features int16 of classes that differ in their covariances more than in their means."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    mixing = random.normal(size=(classes, SIZE, SIZE))
    values = np.einsum("nij,nj->ni", mixing[labels], random.normal(size=(count, SIZE))) * 300
    values += 150 * random.normal(size=(classes, SIZE))[labels]
    return torch.from_numpy(values.round().clip(-32767, 32767).astype(np.int16)), labels.tolist()


def learned(config: SubspaceQDAConfig, *data: tuple[torch.Tensor, list[int]]) -> Statistics:
    statistics = Statistics(SIZE, parts=config.parts)
    for values, labels in data or [samples()]:
        statistics.update(values, labels)
    return statistics


def distance(values: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """(u - mean)^T covariance^{-1} (u - mean), [N]."""
    away = values - mean
    return (away * np.linalg.solve(covariance, away.T).T).sum(1)


def correction(config: SubspaceQDAConfig, values: torch.Tensor, labels: list[int]) -> np.ndarray:
    """What the subspace adds to the scores of the samples themselves, by the docstring's formula and plain NumPy."""
    u, y = coordinates(values.numpy(), DIMENSION, SHIFTS[16]), np.array(labels)
    classes = range(max(labels) + 1)
    means = np.stack([u[y == label].mean(0) for label in classes])
    away = u - means[y]
    freedom = len(u) - len(means)
    bare = away.T @ away / freedom
    added = config.ridge_for_covariance(torch.from_numpy(bare.copy()), freedom, len(u) / len(means))
    pooled = bare + np.diag(np.broadcast_to(np.asarray(added), DIMENSION))
    shown = np.trace(bare @ np.linalg.inv(pooled))
    factor = np.minimum(1.2 * shown / distance(u, u.mean(0), pooled), 4.0)
    result = np.zeros((len(u), len(means)))
    for label in classes:
        own = away[y == label]
        rho = max(config.shrinkage, 200 / (200 + len(own)))
        covariance = (1 - rho) * own.T @ own / (len(own) - 1) + rho * pooled
        squares = distance(u, means[label], pooled) - distance(u, means[label], covariance)
        result[:, label] = factor * squares / 2 - np.linalg.slogdet(np.linalg.solve(pooled, covariance))[1] / 2
    return result


@pytest.mark.parametrize("shrinkage", [0.1, 0.87])
def test_scores_are_the_discriminants_written_out(shrinkage: float) -> None:
    values, labels = samples()
    config = SubspaceQDAConfig(dimension=DIMENSION, rank=DIMENSION, shrinkage=shrinkage, calibrated=False)
    statistics = learned(config)
    plain = SLDA(SLDAConfig(calibrated=False)).materialise(statistics)(values)
    found = (SubspaceQDA(config).materialise(statistics)(values) - plain).numpy()
    expected = correction(config, values, labels)
    assert np.abs(expected).max() > 1, "there is something to be right about"
    # Directions have eight bits, which is all that is lost.
    assert np.abs(found - expected).max() < 0.03 * np.abs(expected).max()
    assert (found.argmax(1) == expected.argmax(1)).mean() > 0.97


def test_an_image_far_out_says_no_more_about_its_class() -> None:
    """Ten times as far from the mean, squares are a hundred times larger; what they add is not."""
    values, labels = samples()
    config = SubspaceQDAConfig(dimension=DIMENSION, shrinkage=0.3)
    scores = SubspaceQDA(config).materialise(learned(config, (values // 16, labels)))
    near, far = scores.correction(values // 16), scores.correction(values // 4)
    assert float(far.abs().mean()) < 2 * float(near.abs().mean())


def test_class_covariances_tell_apart_what_means_cannot() -> None:
    values, labels = samples(600, seed=1)
    config = SubspaceQDAConfig(dimension=DIMENSION)
    statistics = learned(config, (values[300:], labels[300:]))
    truth = torch.tensor(labels[:300])
    own = SubspaceQDA(config).materialise(statistics)(values[:300]).argmax(1)
    common = SLDA(SLDAConfig()).materialise(statistics)(values[:300]).argmax(1)
    assert (own == truth).float().mean() > (common == truth).float().mean() + 0.1


def test_fewer_directions_come_near() -> None:
    values, _ = samples()
    exact, fewer = (
        SubspaceQDA(config).materialise(learned(config))(values)
        for config in (SubspaceQDAConfig(dimension=DIMENSION, rank=rank) for rank in (DIMENSION, 16))
    )
    assert not torch.equal(exact, fewer)
    assert float((exact.argmax(1) == fewer.argmax(1)).float().mean()) > 0.9


def test_a_single_sample_has_no_covariance_of_its_own() -> None:
    """Classes of one image take the common covariance: their scores are those of SLDA."""
    config = SubspaceQDAConfig(dimension=DIMENSION, calibrated=False)
    values, labels = samples()
    lonely, _ = samples(2, seed=5)
    statistics = learned(config, (values, labels), (lonely, [7, 8]))
    found = SubspaceQDA(config).materialise(statistics)
    assert found.curvature[-2:].tolist() == [0.0, 0.0]
    assert not found.codes[-2:].any()
    plain = SLDA(SLDAConfig(calibrated=False)).materialise(statistics).rounded()
    assert torch.allclose(found(values)[:, -2:], plain(values)[:, -2:], rtol=1e-6, atol=1e-6)


def test_one_image_of_each_class_is_plain_slda() -> None:
    config = SubspaceQDAConfig(dimension=DIMENSION)
    values, _ = samples(5)
    statistics = learned(config, (values, list(range(5))))
    plain = SLDA(SLDAConfig()).materialise(statistics).rounded()
    assert torch.equal(SubspaceQDA(config).materialise(statistics)(values), plain(values))


def test_the_light_runtime_has_the_same_bits() -> None:
    values, _ = samples()
    config = SubspaceQDAConfig(dimension=DIMENSION)
    scores = SubspaceQDA(config).materialise(learned(config))
    arrays = {name: tensor.numpy() for name, tensor in scores.tensors().items()}
    assert np.array_equal(SCORES["subspace"].function(values.numpy(), **arrays), scores(values).numpy())


def test_scores_do_not_depend_on_the_batch() -> None:
    values, _ = samples()
    config = SubspaceQDAConfig(dimension=DIMENSION)
    scores = SubspaceQDA(config).materialise(learned(config))
    whole = scores(values)
    assert torch.equal(whole, torch.cat([scores(values[start : start + 7]) for start in range(0, len(values), 7)]))


def test_sums_of_steps_stay_exact_whatever_comes() -> None:
    """Features at the ends of their range: all partial sums are whole numbers that float32 holds."""
    config = SubspaceQDAConfig(dimension=DIMENSION, shrinkage=0.1)
    scores = SubspaceQDA(config).materialise(learned(config))
    assert isinstance(scores, SubspaceScores)
    assert int(scores.codes.to(torch.int64).abs().sum(2).max()) * 511 < 2**24
    extreme = torch.full((2, SIZE), 32767, dtype=torch.int16)
    extreme[1] = -32767
    arrays = {name: tensor.numpy() for name, tensor in scores.tensors().items()}
    assert np.array_equal(SCORES["subspace"].function(extreme.numpy(), **arrays), scores(extreme).numpy())


def test_packing_the_whitening_loses_nothing() -> None:
    """Half of it is zero, and the rest keeps its bits."""
    values, _ = samples()
    scores = SubspaceQDA(CONFIG).materialise(learned(CONFIG))
    packed = PackedSubspaceScores.of(scores, pack(scores.weight.double(), "float32"), scores.bias)
    assert packed.triangle.dtype == scores.whitening.dtype == torch.float32
    assert packed.triangle.numel() == DIMENSION * (DIMENSION + 1) // 2
    assert torch.equal(packed.correction.whitening, scores.whitening)
    assert torch.equal(packed(values), scores(values))
    assert packed.rank == scores.rank == 16
    assert packed.numbers == scores.numbers - DIMENSION * (DIMENSION - 1) // 2


def test_a_whitening_that_is_no_triangle_is_refused() -> None:
    scores = SubspaceQDA(CONFIG).materialise(learned(CONFIG))
    full = SubspaceScores(**{**scores.tensors(), "whitening": torch.ones(DIMENSION, DIMENSION)})
    with pytest.raises(CircleError, match="numbers above its diagonal; expected a lower triangle"):
        PackedSubspaceScores.of(full, pack(full.weight.double(), "int8"), full.bias)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dimension": 100}, "dimension.*one of 32, 64"),
        ({"shrinkage": 0.0}, "shrinkage.*a number from 0.1 to 1"),
        ({"rank": -1}, "rank.*zero or a positive"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, float], message: str) -> None:
    with pytest.raises(CircleError, match=message):
        SubspaceQDAConfig(**settings)  # pyright: ignore[reportArgumentType]


def test_statistics_without_the_part_are_refused() -> None:
    with pytest.raises(CircleError, match="needs moments in 32 dimensions of each class"):
        SubspaceQDA(SubspaceQDAConfig(dimension=32)).materialise(learned(SubspaceQDAConfig(dimension=64)))


def test_the_matrix_is_fixed_and_keeps_its_bound() -> None:
    matrix = subspace_matrix(2016, 64)
    assert np.abs(matrix.astype(np.int64)).sum(0).max() <= 512
    assert math.isclose(float((matrix.astype(np.float64) ** 2).sum(0).mean()), 512, rel_tol=0.3)
