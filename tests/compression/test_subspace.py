"""Heads with a subspace: fewer groups, fewer bits, fewer directions; filters are not left out, and that is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import circle
from circle import CircleClassifier, Predictor
from circle.compression import CompressionConfig, Validation, compress, compress_weights, explore
from circle.compression.variants import Variant, VariantBuilder
from circle.compression.weights import Moments
from circle.errors import CircleError
from circle.heads import SubspaceQDA, SubspaceQDAConfig
from circle.heads.scores import PackedSubspaceScores, SubspaceScores
from circle.runtime.predictor import NumPyPredictor

Images = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def validation(with_subspace: CircleClassifier, held_back: Images) -> Validation:
    return Validation.of_arrays(with_subspace, *held_back)


@pytest.fixture(scope="module")
def builder(with_subspace: CircleClassifier, validation: Validation) -> VariantBuilder:
    return VariantBuilder(with_subspace, validation)


def quickly(**config: object) -> CompressionConfig:
    return CompressionConfig(**{"timing_seconds": 0.0, "direction_shares": (0.5, 0.2), **config})  # pyright: ignore[reportArgumentType]


def test_the_search_tries_what_there_is_and_says_what_not(
    with_subspace: CircleClassifier, validation: Validation
) -> None:
    result = explore(with_subspace, validation, quickly(max_loss=100), timed=False)
    found = [(step.way, step.weights, step.rank, step.groups) for step in result.steps]
    assert found == [
        (None, "float32", None, 2),
        ("weights", "float16", None, 2),
        ("weights", "int8", None, 2),
        ("groups", "int8", None, 1),
        ("rank", "int8", 10, 1),
        ("rank", "int8", 4, 1),
    ]
    sizes = [step.file_bytes for step in result.steps]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(sizes), "every step is smaller than the one before"
    assert list(result.refused) == ["parts"]
    assert "its subspace mixes all features; expected the head 'slda', as with --head slda" in result.refused["parts"]
    assert result.model.scores_[0].tensors()["codes"].shape == (4, 4, 32)


def test_accuracies_are_those_of_the_models(
    with_subspace: CircleClassifier, builder: VariantBuilder, held_back: Images
) -> None:
    one = tuple(part for part in builder.whole.parts if part.group == 1)
    assert builder.accuracy(builder.whole) == with_subspace.score(*held_back)
    for variant in (Variant(one), Variant(one, "int8", 3), builder.whole._replace(weights="float16", rank=7)):
        assert builder.accuracy(variant) == builder.build(variant).score(*held_back)


def test_fewer_directions_are_those_of_a_head_with_this_rank(
    with_subspace: CircleClassifier, builder: VariantBuilder, validation: Validation
) -> None:
    """Curvature and biases belong to the rank: it is not enough to leave directions away."""
    features, config = validation.features[0], SubspaceQDAConfig(dimension=32, rank=5)
    expected = SubspaceQDA(config).materialise(with_subspace.statistics_[0])
    found, whole = builder.build(builder.whole._replace(rank=5)).scores_[0], builder.predictor.scores_[0]
    assert isinstance(found, PackedSubspaceScores)
    assert isinstance(whole, SubspaceScores)
    assert torch.equal(found(features), expected(features))
    assert not torch.equal(found.curvature, whole.curvature)
    with pytest.raises(CircleError, match="rank = 21: expected 1 to 20, the directions of each class"):
        builder.build(builder.whole._replace(rank=21))


def test_int8_keeps_the_mean_scores_and_all_of_the_subspace(
    with_subspace: CircleClassifier, builder: VariantBuilder, validation: Validation
) -> None:
    whole, packed = (
        builder.build(builder.whole._replace(weights=weights)).scores_[0] for weights in ("float32", "int8")
    )
    assert isinstance(whole, SubspaceScores)
    assert isinstance(packed, PackedSubspaceScores)
    features = validation.features[0]
    assert torch.equal(packed.correction(features), whole.correction(features))
    mean = Moments.of_statistics(with_subspace.statistics_[0]).mean
    linear = whole.weight.double() @ mean + whole.bias
    torch.testing.assert_close(
        packed.linear.codes.double() @ mean * packed.rows + packed.bias, linear, rtol=1e-6, atol=1e-6
    )
    assert packed.describe() == "int8"


@pytest.mark.parametrize(("weights", "rank"), [("float32", 3), ("float16", None), ("int8", None), ("int8", 3)])
def test_files_say_the_same_in_both_runtimes(
    builder: VariantBuilder, held_back: Images, tmp_path: Path, weights: str, rank: int | None
) -> None:
    built = builder.build(builder.whole._replace(weights=weights, rank=rank))
    built.save(tmp_path / "small.circle")
    loaded = circle.load(tmp_path / "small.circle")
    assert isinstance(loaded, Predictor)
    expected = built.predict_proba(held_back[0])
    assert np.array_equal(loaded.predict_proba(held_back[0]), expected)
    assert loaded.parameter_count().learnable == built.parameter_count().learnable > 0
    light = NumPyPredictor.load(tmp_path / "small.circle")
    np.testing.assert_allclose(light.predict_proba(held_back[0]), expected, atol=1e-12)
    loaded.save(tmp_path / "again.circle")
    assert (tmp_path / "again.circle").read_bytes() == (tmp_path / "small.circle").read_bytes()
    with pytest.raises(CircleError, match="compressed already"):
        compress(loaded, *held_back)


def test_ways_weights_and_targets_as_wished(with_subspace: CircleClassifier, validation: Validation) -> None:
    result = explore(with_subspace, validation, quickly(ways=("rank",), max_loss=100), timed=False)
    assert [(step.weights, step.rank) for step in result.steps] == [("float32", None), ("float32", 10), ("float32", 4)]
    target = result.steps[1].file_bytes
    result = explore(with_subspace, validation, quickly(ways=("rank",), max_loss=100, target_bytes=target), timed=False)
    assert result.chosen.rank == 10, "the first that reaches the size"
    result = explore(with_subspace, validation, quickly(weights="float16", max_loss=100), timed=False)
    assert {step.weights for step in result.steps[1:]} == {"float16"}
    with pytest.raises(CircleError, match="target of 10 bytes: the smallest model that loses at most 100 points has"):
        explore(with_subspace, validation, quickly(max_loss=100, target_bytes=10), timed=False)
    with pytest.raises(CircleError, match="weights int8: the ways given leave them as they are"):
        explore(with_subspace, validation, quickly(ways=("rank",), weights="int8"), timed=False)


def test_filters_are_not_left_out(
    with_subspace: CircleClassifier, builder: VariantBuilder, validation: Validation
) -> None:
    with pytest.raises(
        CircleError, match="way 'parts': statistics of the head 'subspace_qda' cannot be cut, its subspace"
    ):
        explore(with_subspace, validation, quickly(ways=("parts",)), timed=False)
    with pytest.raises(CircleError, match="moments in 32 dimensions of each class cannot be cut"):
        builder.build(Variant(builder.whole.parts[:3]))


def test_filters_are_left_out_of_the_linear_head_of_the_same_statistics(
    with_subspace: CircleClassifier, learned: CircleClassifier, held_back: Images
) -> None:
    """Nothing is learned again: the parts of the statistics that this head does not need stay behind."""
    view = with_subspace.with_head("slda")
    validation = Validation.of_arrays(view, *held_back)
    result = explore(view, validation, quickly(shares=(0.5,), ways=("parts",), max_loss=100), timed=False)
    assert [step.parts for step in result.steps] == [36, 18]
    expected = explore(learned, validation, quickly(shares=(0.5,), ways=("parts",), max_loss=100), timed=False)
    for mine, theirs in zip(result.model.scores_, expected.model.scores_, strict=True):
        assert mine.kind == theirs.kind == "linear"
        assert all(torch.equal(mine.tensors()[name], theirs.tensors()[name]) for name in mine.names)


def test_a_predicting_model_has_groups_and_weights_alone(
    with_subspace: CircleClassifier, held_back: Images, tmp_path: Path
) -> None:
    with_subspace.save(tmp_path / "packed.circle", for_prediction=True)
    packed = Predictor.load(tmp_path / "packed.circle")
    validation = Validation.of_arrays(packed, *held_back)
    with pytest.raises(CircleError, match="way 'rank': this model only predicts: expected the learning model"):
        explore(packed, validation, quickly(ways=("rank",)))
    result = explore(packed, validation, quickly(max_loss=100), timed=False)
    assert [step.way for step in result.steps] == [None, "weights", "weights", "groups"]
    assert list(result.refused) == ["parts", "rank"]
    poor = VariantBuilder(packed, validation)
    with pytest.raises(CircleError, match="has no statistics to leave directions out of"):
        poor.build(poor.whole._replace(rank=3))


def test_without_images(with_subspace: CircleClassifier, held_back: Images) -> None:
    for weights in ("float16", "int8"):
        small = compress_weights(with_subspace, weights)
        assert small.scores_[0].describe() == weights
        assert abs(small.score(*held_back) - with_subspace.score(*held_back)) < 0.03
