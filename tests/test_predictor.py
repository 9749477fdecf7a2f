"""Predictor: the learner's predictions without the learner."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import circle
from circle import CircleClassifier, CircleError, Predictor

Stream = tuple[np.ndarray, np.ndarray]


@pytest.fixture
def learner(tiny: Any, stream: Stream) -> CircleClassifier:
    return tiny().fit(*stream)


def test_it_says_what_the_learner_says(learner: CircleClassifier, stream: Stream) -> None:
    images, labels = stream
    predictor = learner.for_prediction()
    assert np.array_equal(predictor.predict_proba(images), learner.predict_proba(images))
    assert np.array_equal(predictor.predict(images), learner.predict(images))
    assert predictor.score(images, labels) == learner.score(images, labels)
    weights = np.arange(len(labels))
    assert predictor.score(images, labels, weights) == pytest.approx(learner.score(images, labels, weights))
    for mine, theirs in zip(predictor.features(images), learner.features(images), strict=True):
        assert torch.equal(mine, theirs)
    features = learner.features(images)
    assert torch.equal(predictor.probabilities(features), learner.probabilities(features))
    assert torch.equal(predictor.head_probabilities(features), learner.head_probabilities(features))
    assert predictor.classes_.tolist() == learner.classes_.tolist()
    assert predictor.parameter_count() == learner.parameter_count()
    assert predictor.settings() == learner.settings()
    assert (predictor.samples_, predictor.image_, predictor.temperature) == (len(labels), learner.image_, 1.0)
    with pytest.raises(CircleError, match="3 labels for 120 images"):
        predictor.score(images, labels[:3])


def test_it_is_kept_until_something_is_learned(learner: CircleClassifier, stream: Stream) -> None:
    before = learner.for_prediction()
    assert learner.for_prediction() is before
    assert before.for_prediction() is before
    learner.partial_fit(stream[0][:1], stream[1][:1])
    assert learner.for_prediction() is not before
    assert (before.samples_, learner.for_prediction().samples_) == (120, 121)
    assert learner.with_head("ncm").for_prediction().head_config().name == "ncm"


def test_both_kinds_of_file(learner: CircleClassifier, stream: Stream, tmp_path: Path) -> None:
    learner.save(tmp_path / "learning")
    learner.save(tmp_path / "small", for_prediction=True)
    learner.for_prediction().save(tmp_path / "again")
    assert (tmp_path / "small").read_bytes() == (tmp_path / "again").read_bytes()
    assert type(circle.load(tmp_path / "learning")) is CircleClassifier
    expected = learner.predict_proba(stream[0])
    for name in ("learning", "small"):
        predictor = Predictor.load(tmp_path / name)
        assert type(predictor) is Predictor
        assert np.array_equal(predictor.predict_proba(stream[0]), expected)
        predictor.save(tmp_path / "third")
        assert (tmp_path / "third").read_bytes() == (tmp_path / "small").read_bytes()
    with pytest.raises(CircleError, match=r"small: this model only predicts; .*circle.load and Predictor.load"):
        CircleClassifier.load(tmp_path / "small")
    with pytest.raises(CircleError, match="no such model file"):
        circle.load(tmp_path / "missing")


def test_a_class_of_its_own_is_loaded_as_such(learner: CircleClassifier, tmp_path: Path) -> None:
    class Own(CircleClassifier):
        pass

    learner.save(tmp_path / "model")
    assert type(Own.load(tmp_path / "model")) is Own


def test_what_only_a_learner_can_do(learner: CircleClassifier, stream: Stream) -> None:
    predictor: Any = learner.for_prediction()
    for call in (
        lambda: predictor.partial_fit(*stream),
        lambda: predictor.fit(*stream),
        lambda: predictor.forget(1),
        lambda: predictor.statistics_,
        lambda: predictor + learner,
        lambda: learner + predictor,
        lambda: learner - predictor,
        lambda: learner.merge(predictor),
    ):
        with pytest.raises(CircleError, match="only predicts; expected the learning model it was made from"):
            call()
    assert not hasattr(predictor, "partial_fit"), "so that tools can ask"
    with pytest.raises(AttributeError, match="'Predictor' object has no attribute 'parital_fit'"):
        predictor.parital_fit(*stream)


def test_copies(learner: CircleClassifier, stream: Stream) -> None:
    predictor = learner.for_prediction()
    for other in (copy.copy(predictor), copy.deepcopy(predictor)):
        assert np.array_equal(other.predict_proba(stream[0]), predictor.predict_proba(stream[0]))
    assert repr(predictor) == "Predictor(4 classes, 120 images learned, 2 groups)"


def test_images_in_every_form(learner: CircleClassifier, stream: Stream, tmp_path: Path) -> None:
    images = stream[0][:3]
    paths = [tmp_path / f"{index}.png" for index in range(3)]
    for path, image in zip(paths, images, strict=True):
        Image.fromarray(image).save(path)
    expected = learner.predict_proba(images)
    for model in (learner, learner.for_prediction()):
        for form in (paths, [str(paths[0]), *paths[1:]], [Image.open(path) for path in paths], list(images)):
            assert np.array_equal(model.predict_proba(form), expected)
            assert np.array_equal(model.predict(form), expected.argmax(1))
        channels_first = torch.from_numpy(images[0]).movedim(2, 0)
        for form in (paths[0], str(paths[0]), Image.open(paths[0]), images[0], channels_first):
            assert np.array_equal(model.predict_proba(form), expected[:1])
        with pytest.raises(CircleError, match="no.png: No such file or directory; expected an image file"):
            model.predict([paths[0], "no.png"])
        with pytest.raises(CircleError, match=r"a single image is written image\[None\]"):
            model.predict(images[0][..., 0].repeat(2, 0)[None])
