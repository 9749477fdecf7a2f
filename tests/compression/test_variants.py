"""Variants are the models that would have been learned with these parts alone; the source stays as it is."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

import circle
from circle import CircleClassifier, Predictor
from circle.compression import Validation, compress_weights
from circle.compression.variants import PartId, Variant, VariantBuilder
from circle.errors import CircleError
from circle.heads import SLDA, SLDAConfig
from circle.runtime import container

Images = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def builder(learned: CircleClassifier, held_back: Images) -> VariantBuilder:
    return VariantBuilder(learned, Validation.of_arrays(learned, *held_back))


def some(builder: VariantBuilder) -> tuple[PartId, ...]:
    """Parts of one group only, none of one bank in one of the members."""
    return tuple(
        part for part in builder.columns if part.group == 1 and part.part in ((0, 2, 5, 7), (5, 8))[part.member]
    )


def test_whole_model_predicts_the_same(builder: VariantBuilder, learned: CircleClassifier, held_back: Images) -> None:
    built = builder.build(builder.whole)
    assert np.array_equal(built.predict_proba(held_back[0]), learned.predict_proba(held_back[0]))


def test_accuracy_is_that_of_the_built_model(builder: VariantBuilder, held_back: Images) -> None:
    for variant in (builder.whole, Variant(some(builder)), Variant(some(builder), "int8", 3)):
        assert builder.accuracy(variant) == builder.build(variant).score(*held_back)


def test_a_cut_head_is_the_head_of_the_cut_statistics(builder: VariantBuilder, learned: CircleClassifier) -> None:
    parts = some(builder)
    built = builder.build(Variant(parts))
    columns = torch.cat([builder.columns[part] for part in parts]).sort().values
    expected = SLDA(SLDAConfig()).materialise(learned.statistics_[1].select(columns)).rounded()
    assert torch.equal(built.scores_[0].tensors()["weight"], expected.weight)
    assert len(built.groups_) == 1
    assert built.groups_[0].size == len(columns) == 16 * len(parts)


def test_cut_features_are_columns_of_the_whole(builder: VariantBuilder, learned: CircleClassifier) -> None:
    parts, images = some(builder), torch.randint(0, 256, (9, 3, 16, 16), dtype=torch.uint8)
    built = builder.build(Variant(parts))
    columns = torch.cat([builder.columns[part] for part in parts]).sort().values
    assert torch.equal(built.groups_[0].features(images), learned.groups_[1].features(images)[:, columns])


def test_the_source_is_left_alone(builder: VariantBuilder, learned: CircleClassifier, tmp_path: Path) -> None:
    before = [statistics.copy() for statistics in learned.statistics_]
    for variant in (Variant(some(builder), "int8", 2), builder.whole._replace(weights="float16")):
        builder.accuracy(variant)
        builder.build(variant).save(tmp_path / "small.circle")
    assert learned.statistics_ == before
    assert len(learned.groups_) == 2


@pytest.mark.parametrize(("weights", "rank"), [("float32", None), ("float16", None), ("int8", None), ("int8", 2)])
def test_the_same_after_loading(
    builder: VariantBuilder, held_back: Images, tmp_path: Path, weights: str, rank: int
) -> None:
    built = builder.build(Variant(some(builder), weights, rank))  # pyright: ignore[reportArgumentType]
    built.save(tmp_path / "small.circle")
    loaded = circle.load(tmp_path / "small.circle")
    assert isinstance(loaded, Predictor)
    assert np.array_equal(loaded.predict_proba(held_back[0]), built.predict_proba(held_back[0]))
    assert loaded.classes_.tolist() == [0, 1, 2, 3]
    assert loaded.samples_ == 300
    assert loaded.parameter_count().learnable == built.parameter_count().learnable > 0
    assert container.read_header(tmp_path / "small.circle")["format"] == container.FORMAT_VERSION
    with pytest.raises(CircleError, match="only predicts"):
        loaded.partial_fit(*held_back)
    again = tmp_path / "again.circle"
    loaded.save(again)
    assert again.read_bytes() == (tmp_path / "small.circle").read_bytes()
    copied = copy.copy(loaded)
    assert np.array_equal(copied.predict(held_back[0]), loaded.predict(held_back[0]))


def test_older_readers_refuse_what_they_do_not_know(
    builder: VariantBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder.build(Variant(some(builder))).save(tmp_path / "small.circle")
    builder.build(builder.whole).save(tmp_path / "plain.circle")
    monkeypatch.setattr(container, "FORMAT_VERSION", 2)
    for name in ("small.circle", "plain.circle"):
        with pytest.raises(CircleError, match=r"written by a newer CIRCLE \(format \d, this one reads up to 2\)"):
            Predictor.load(tmp_path / name)


def test_a_predicting_model_cannot_leave_parts_out(
    builder: VariantBuilder, learned: CircleClassifier, held_back: Images, tmp_path: Path
) -> None:
    learned.save(tmp_path / "packed.circle", for_prediction=True)
    packed = Predictor.load(tmp_path / "packed.circle")
    poor = VariantBuilder(packed, Validation.of_arrays(packed, *held_back))
    with pytest.raises(CircleError, match="has no statistics to leave parts out of"):
        poor.build(Variant(some(builder)))
    one_group = Variant(tuple(part for part in poor.columns if part.group == 0), "int8")
    assert poor.accuracy(one_group) == pytest.approx(builder.accuracy(one_group), abs=0.03)


def test_without_images(learned: CircleClassifier, held_back: Images) -> None:
    half = compress_weights(learned)
    assert half.scores_[0].describe() == "float16"
    np.testing.assert_allclose(half.predict_proba(held_back[0]), learned.predict_proba(held_back[0]), atol=0.02)
    with pytest.raises(CircleError, match="compressed already"):
        compress_weights(half)
    with pytest.raises(CircleError, match="weights 'int4'"):
        compress_weights(learned, "int4")  # pyright: ignore[reportArgumentType]
