"""The search keeps to what was wished, and says in one line what cannot be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from circle import CircleClassifier, Predictor
from circle.compression import CompressionConfig, Validation, compress, explore
from circle.errors import CircleError

Images = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="session")
def validation(learned: CircleClassifier, held_back: Images) -> Validation:
    return Validation.of_arrays(learned, *held_back)


def quickly(**config: object) -> CompressionConfig:
    return CompressionConfig(**{"timing_seconds": 0.0, "shares": (0.8, 0.5, 0.2), "rank_shares": (0.75, 0.5), **config})  # pyright: ignore[reportArgumentType]


def test_every_step_is_measured(learned: CircleClassifier, validation: Validation) -> None:
    result = explore(learned, validation, quickly(max_loss=3.0))
    first = result.steps[0]
    assert (first.way, first.weights, first.rank, first.groups, first.parts, first.loss) == (
        None,
        "float32",
        None,
        2,
        36,
        0,
    )
    assert {step.way for step in result.steps} == {None, "weights", "groups", "parts", "rank"}
    for step in result.steps:
        assert step.loss == pytest.approx(100 * (first.accuracy - step.accuracy))
        assert step.accepted == (step.loss <= 3.0 + 1e-9)
        assert step.one_image is not None
        assert step.one_image.seconds > 0
        assert step.batch is not None
    assert first.one_image is not None
    assert first.one_image.work_ratio == 1.0


def test_the_choice_is_the_smallest_accepted(learned: CircleClassifier, validation: Validation) -> None:
    for max_loss in (0.0, 2.0, 10.0):
        result = explore(learned, validation, quickly(max_loss=max_loss), timed=False)
        chosen = result.chosen
        assert chosen.accepted
        assert chosen.loss <= max_loss + 1e-9
        assert chosen.file_bytes < result.steps[0].file_bytes
        assert sum(step.chosen for step in result.steps) == 1
        assert sum(group.size for group in result.model.groups_) == chosen.features


def test_a_target_is_reached_and_not_passed(learned: CircleClassifier, validation: Validation) -> None:
    free = explore(learned, validation, quickly(max_loss=100), timed=False)
    sizes = [step.file_bytes for step in free.steps]
    target = sorted(sizes)[len(sizes) // 2]
    result = explore(learned, validation, quickly(max_loss=100, target_bytes=target), timed=False)
    assert result.chosen.file_bytes <= target
    assert all(step.file_bytes > target for step in result.steps[:1])
    with pytest.raises(CircleError, match="target of 10 bytes: the smallest model that loses at most 100 points has"):
        explore(learned, validation, quickly(max_loss=100, target_bytes=10), timed=False)


def test_ways_and_weights_as_wished(learned: CircleClassifier, validation: Validation) -> None:
    result = explore(learned, validation, quickly(ways=("parts",), max_loss=100), timed=False)
    assert {step.way for step in result.steps} == {None, "parts"}
    assert {step.weights for step in result.steps} == {"float32"}
    assert [step.parts for step in result.steps] == [36, 29, 18, 7]
    result = explore(learned, validation, quickly(ways=("weights",), weights="float16", max_loss=100), timed=False)
    assert [step.weights for step in result.steps] == ["float32", "float16"]


def test_arrays_in_a_model_out(learned: CircleClassifier, held_back: Images) -> None:
    small = compress(learned, *held_back, max_loss=3.0, shares=(0.5,), rank_shares=())
    assert 100 * (learned.score(*held_back) - small.score(*held_back)) <= 3.0 + 1.0  # a step of the grid here and there
    assert small.parameter_count().learnable < learned.parameter_count().learnable


def test_what_is_refused(
    learned: CircleClassifier, validation: Validation, held_back: Images, tmp_path: Path, tiny: object
) -> None:
    learned.save(tmp_path / "packed.circle", for_prediction=True)
    packed = Predictor.load(tmp_path / "packed.circle")
    with pytest.raises(CircleError, match="way 'parts': this model only predicts: expected the learning model"):
        explore(packed, validation, quickly(ways=("parts",)))
    assert "parts" not in {step.way for step in explore(packed, validation, quickly(max_loss=100), timed=False).steps}
    with pytest.raises(CircleError, match="weights int8: the ways given leave them as they are"):
        explore(learned, validation, quickly(ways=("groups",), weights="int8"))
    small = compress(learned, *held_back, max_loss=100, ways=("weights",))
    with pytest.raises(CircleError, match="compressed already"):
        compress(small, *held_back)


@pytest.mark.parametrize(
    ("head", "ways", "message"),
    [
        ("qda", ("weights",), "way 'weights': the head 'qda' is not linear"),
        ("cosine_ncm", ("parts",), "way 'parts': statistics of the head 'cosine_ncm' cannot be cut"),
        ("slda", ("groups",), "way 'groups': the model has one group"),
    ],
)
def test_heads_and_ways_that_do_not_go_together(
    head: str, ways: tuple[str, ...], message: str, learned: CircleClassifier, held_back: Images
) -> None:
    model = CircleClassifier(extractor=learned.extractor, head=head).partial_fit(*held_back)
    validation = Validation.of_arrays(model, *held_back)
    with pytest.raises(CircleError, match=message):
        explore(model, validation, quickly(ways=ways))
    if head == "qda":  # its parts can go all the same
        assert {step.way for step in explore(model, validation, quickly(), timed=False).steps} == {None, "parts"}


def test_members_of_one_piece_are_the_parts(tiny: object, stream: Images) -> None:
    model = tiny(head="slda").partial_fit(*stream)  # pyright: ignore[reportCallIssue]
    result = explore(model, Validation.of_arrays(model, *stream), quickly(ways=("parts",), max_loss=100), timed=False)
    assert [step.parts for step in result.steps] == [4, 3, 2]  # one member of each of the two groups is left
    assert [len(group.members) for group in result.model.groups_] == [1, 1]
    assert result.model.score(*stream) == pytest.approx(result.chosen.accuracy)
