"""The whole graph: layouts, metadata, both kinds of model, no rounding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import circle
from circle import CircleClassifier, Predictor
from circle.export.checking import open_session
from circle.export.model import onnx_model
from circle.labels import decode_labels
from circle.learner import NotLearnedError


def session_of(model: CircleClassifier, **settings: Any) -> Any:
    return open_session(onnx_model(model, **settings).SerializeToString())


@pytest.fixture
def model(tiny: Any, stream: tuple[np.ndarray, np.ndarray], soften: Any) -> CircleClassifier:
    images, labels = stream
    names = np.array(["sea", "tree", "sun", "brick"])
    return soften(tiny(members=1).partial_fit(images[:80], names[labels[:80]]), images[80:])


def test_inputs_and_outputs(model: CircleClassifier) -> None:
    session = session_of(model)
    (images,), outputs = session.get_inputs(), session.get_outputs()
    assert (images.name, images.type, images.shape) == ("images", "tensor(uint8)", ["batch", 16, 16, 3])
    described = [(output.name, output.type, output.shape) for output in outputs]
    assert described == [
        ("probabilities", "tensor(float)", ["batch", 4]),
        ("best", "tensor(int64)", ["batch"]),
    ]


def test_both_layouts_say_the_same(model: CircleClassifier, stream: tuple[np.ndarray, np.ndarray]) -> None:
    images = stream[0][80:]
    last = session_of(model).run(None, {"images": images})
    first = session_of(model, layout="NCHW").run(None, {"images": images.transpose(0, 3, 1, 2)})
    assert np.array_equal(last[0], first[0])
    assert last[0].sum(1) == pytest.approx(1.0)
    assert np.array_equal(model.classes_[last[1]], model.predict(images))
    assert last[0] == pytest.approx(model.predict_proba(images), abs=1e-6)


def test_metadata(model: CircleClassifier) -> None:
    about = session_of(model, layout="NCHW").get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == ["brick", "sea", "sun", "tree"] == model.classes_.tolist()
    assert (about["height"], about["width"], about["channels"], about["layout"]) == ("16", "16", "3", "NCHW")
    assert about["version"] == circle.__version__
    assert float(about["temperature"]) == model.head_config().temperature != 1.0
    assert json.loads(about["settings"]) == json.loads(json.dumps(model.settings()))
    assert (about["aspect"], about["background"], about["samples"]) == ("crop", "255", "80")


def test_labels_keep_their_type(tiny: Any, stream: tuple[np.ndarray, np.ndarray]) -> None:
    images, labels = stream
    numbers = tiny(groups=1, members=1).partial_fit(images[:40], labels[:40])
    assert json.loads(session_of(numbers).get_modelmeta().custom_metadata_map["classes"]) == [0, 1, 2, 3]
    pairs = tiny(groups=1, members=1).partial_fit(images[:40], [(int(label), "x") for label in labels[:40]])
    about = session_of(pairs).get_modelmeta().custom_metadata_map
    assert decode_labels(about["classes"])[0] == (0, "x")


def test_predicting_model_gives_the_same_graph(model: CircleClassifier, tmp_path: Path) -> None:
    model.save(tmp_path / "small.circle", for_prediction=True)
    again = onnx_model(Predictor.load(tmp_path / "small.circle"))
    assert again.SerializeToString(deterministic=True) == onnx_model(model).SerializeToString(deterministic=True)


def test_without_rounding(tiny: Any, stream: tuple[np.ndarray, np.ndarray], soften: Any) -> None:
    images, labels = stream
    plain = soften(tiny(quantise=False).partial_fit(images[:80], labels[:80]), images[80:])
    found = session_of(plain).run(["probabilities"], {"images": images[80:]})[0]
    assert found == pytest.approx(plain.predict_proba(images[80:]), abs=1e-6)


def test_one_file_with_nothing_outside(model: CircleClassifier) -> None:
    proto = onnx_model(model)
    assert not any(tensor.external_data for tensor in proto.graph.initializer)
    assert {each.domain for each in proto.opset_import} == {""}, "no operator of a single vendor"


def test_nothing_learned(tiny: Any) -> None:
    with pytest.raises(NotLearnedError, match="has not learned anything"):
        onnx_model(tiny())
