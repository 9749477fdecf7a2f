"""The comparison finds what is wrong, and forgives only what rounding explains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from circle import CircleClassifier
from circle.errors import CircleError
from circle.export import checking
from circle.export.checking import agreement, arranged, in_batches, open_session, random_images, speeds
from circle.export.graph import import_onnx
from circle.export.model import onnx_model
from circle.extractors import ImageShape


@pytest.fixture
def model(tiny: Any, stream: tuple[np.ndarray, np.ndarray], soften: Any) -> CircleClassifier:
    images, labels = stream
    return soften(tiny(groups=1, members=1).partial_fit(images[:80], labels[:80]), images[80:])


@pytest.fixture
def pixels(stream: tuple[np.ndarray, np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(stream[0][80:]).permute(0, 3, 1, 2)


def changed(model: CircleClassifier, path: Path, word: str, factor: float, *, only: int | None = None) -> Path:
    """The model's file with one constant multiplied, or one entry of it."""
    onnx = import_onnx()
    proto = onnx_model(model)
    (tensor,) = [each for each in proto.graph.initializer if each.name == word]
    values = onnx.numpy_helper.to_array(tensor).copy()
    values[... if only is None else only] *= factor
    tensor.CopyFrom(onnx.numpy_helper.from_array(values, word))
    path.write_bytes(proto.SerializeToString())
    return path


def test_agreement(model: CircleClassifier, pixels: torch.Tensor, tmp_path: Path) -> None:
    path = changed(model, tmp_path / "same.onnx", "group0/bias", 1.0)
    found = agreement(model, path, [pixels[:1], pixels[1:]], "NHWC")
    assert (found.images, found.other_best) == (40, 0)
    assert found.within + found.rounded_otherwise == 40
    assert found.largest == max(found.differences)


@pytest.mark.parametrize("word", ["group0/bias", "group0/weight", "group0/offset", "full_scale", "temperature"])
def test_a_wrong_constant_is_found(word: str, model: CircleClassifier, pixels: torch.Tensor, tmp_path: Path) -> None:
    path = changed(model, tmp_path / "wrong.onnx", word, 1.02)
    with pytest.raises(
        CircleError, match="image 1?[0-9] has probabilities up to .* off in onnxruntime; expected 0.0001"
    ):
        agreement(model, path, [pixels], "NHWC")


def on_a_boundary(model: CircleClassifier, pixels: torch.Tensor) -> None:
    """Shift the model's grid so that a feature of the first image lies exactly between two steps."""
    grid, group = model.groups_[0].grid, model.groups_[0]
    place = int((model.for_prediction().scores_[0].tensors()["weight"].std(0)).argmax())
    position = grid.positions(group.members[0].features(pixels[:1].float() / 255))[0, place]
    grid.offset[place] += (position - position.floor() - 0.5) * grid.scale[place]


def test_rounding_is_forgiven(
    model: CircleClassifier, pixels: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "TOLERANCE", 1e-7)
    grid = model.groups_[0].grid
    kept = grid.offset.clone()
    try:
        on_a_boundary(model, pixels)
        # The file's scale is off in the seventh digit, as another order of additions might be.
        for factor in (1 + 3e-7, 1 - 3e-7):
            path = changed(model, tmp_path / "near.onnx", "group0/scale", factor)
            found = agreement(model, path, [pixels[:1]], "NHWC")
            if found.rounded_otherwise:
                break
        assert found.rounded_otherwise == 1
        assert found.largest > 1e-6
        path = changed(model, tmp_path / "far.onnx", "group0/scale", 1.01)
        with pytest.raises(CircleError, match="image 1 has probabilities"):
            agreement(model, path, [pixels[:1]], "NHWC")
    finally:
        grid.offset.copy_(kept)  # extractors and grids are shared by all models of a process


def test_no_images(model: CircleClassifier, tmp_path: Path) -> None:
    path = changed(model, tmp_path / "same.onnx", "group0/bias", 1.0)
    with pytest.raises(CircleError, match="no readable image to check with"):
        agreement(model, path, [], "NHWC")


def test_a_graph_that_the_runtime_refuses() -> None:
    with pytest.raises(CircleError, match="onnxruntime .* refuses the graph"):
        open_session(b"nonsense")


def test_speeds(model: CircleClassifier, pixels: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = changed(model, tmp_path / "same.onnx", "group0/bias", 1.0)
    once = checking.fastest_seconds
    monkeypatch.setattr(checking, "fastest_seconds", lambda work: once(work, budget=0.0))
    one, many = speeds(model, path, pixels[:3], "NHWC")
    assert (one.batch, many.batch) == (1, checking.BATCH)
    assert min(one.onnxruntime, one.circle, many.onnxruntime, many.circle) > 0


def test_small_parts() -> None:
    shape = ImageShape(1, 5, 7)
    images = random_images(shape)
    assert images.dtype == torch.uint8
    assert torch.equal(images, random_images(shape))
    assert arranged(images[:2], "NHWC").shape == (2, 5, 7, 1)
    assert [len(batch) for batch in in_batches(images[:65].numpy())] == [32, 32, 1]
