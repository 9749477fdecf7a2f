"""A file is written whole and right, or not at all."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from circle import CircleClassifier
from circle.errors import CircleError
from circle.export import checking, export_onnx
from circle.export import model as onnx_form


@pytest.fixture
def model(
    tiny: Any, stream: tuple[np.ndarray, np.ndarray], soften: Any, monkeypatch: pytest.MonkeyPatch
) -> CircleClassifier:
    monkeypatch.setattr(checking, "speeds", lambda *_: [])
    images, labels = stream
    return soften(tiny(groups=1, members=1).partial_fit(images[:80], labels[:80]), images[80:])


def test_synthetic_images(model: CircleClassifier, tmp_path: Path) -> None:
    done: list[int] = []
    result = export_onnx(model, tmp_path / "model.onnx", report=done.append)
    assert result.agreement.images == done[-1] == checking.RANDOM_IMAGES
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    assert (tmp_path / "model.onnx").stat().st_size == result.size


def test_check_on_files(model: CircleClassifier, stream: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for index in range(3):
        Image.fromarray(stream[0][index]).resize((20, 30)).save(folder / f"{index}.png")
    (folder / "broken.png").write_bytes(b"no image")
    result = export_onnx(model, tmp_path / "model.onnx", check=folder, layout="NCHW")
    assert result.agreement.images == 3
    assert len(result.unreadable) == 1
    np.savez(tmp_path / "images.npz", x=stream[0][:5], y=stream[1][:5])
    assert export_onnx(model, tmp_path / "other.onnx", check=tmp_path / "images.npz").agreement.images == 5


def test_a_wrong_file_is_not_left(model: CircleClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = checking.onnx_model

    def wrong(model: CircleClassifier, layout: Any) -> Any:
        proto = right(model, layout)
        (bias,) = [each for each in proto.graph.initializer if each.name == "group0/bias"]
        bias.raw_data = np.zeros(4).tobytes()
        return proto

    monkeypatch.setattr(checking, "onnx_model", wrong)
    target = tmp_path / "model.onnx"
    with pytest.raises(CircleError, match="model.onnx: not written: image .* off in onnxruntime"):
        export_onnx(model, target)
    assert not list(tmp_path.iterdir())
    target.write_text("what was there before")
    with pytest.raises(CircleError, match="not written"):
        export_onnx(model, target)
    assert target.read_text() == "what was there before"


def test_missing_folder(model: CircleClassifier, tmp_path: Path) -> None:
    with pytest.raises(CircleError, match="cannot be written"):
        export_onnx(model, tmp_path / "nowhere" / "model.onnx")


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_missing_extra(package: str, model: CircleClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(CircleError, match=f"needs {package}: pip install 'circle-cil.export.'"):
        export_onnx(model, tmp_path / "model.onnx")


def test_images_of_which_none_is_readable(model: CircleClassifier, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no image at all")
    with pytest.raises(CircleError, match="model.onnx: not written: no readable image.*broken.png: not a readable"):
        export_onnx(model, tmp_path / "model.onnx", check=tmp_path / "broken.png")
    assert [path.name for path in tmp_path.iterdir()] == ["broken.png"]


def test_a_graph_that_onnx_refuses(model: CircleClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator that no version of ONNX has, as a plug-in's form could ask for."""
    monkeypatch.setattr(
        onnx_form, "add_scores", lambda graph, scores, values, name: graph.add("NoSuchOperator", values)
    )
    with pytest.raises(
        CircleError, match="model.onnx: not written: onnx does not accept this graph .*NoSuchOp"
    ) as caught:
        export_onnx(model, tmp_path / "model.onnx")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
