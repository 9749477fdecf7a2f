"""Model files from strangers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from factories import learned, tiny_model
from safetensors import safe_open
from safetensors.torch import save_file

from circle import CircleClassifier
from circle.labels import encode_labels
from circle.serve.limits import Limits, RequestError
from circle.serve.model_upload import empty_model_like, read_upload


@pytest.fixture
def file(tmp_path: Path) -> Path:
    learned([("ant", 0), ("bee", 0)]).save(tmp_path / "other.circle")
    return tmp_path / "other.circle"


@pytest.fixture
def current() -> CircleClassifier:
    model = tiny_model()
    return model.prepare(model.input_config())


def forge(file: Path, header: dict[str, Any] | None = None, tensors: dict[str, torch.Tensor] | None = None) -> None:
    """Change parts of a model file, checksums and all, as someone who knows the format would."""
    from circle.runtime.container import checksum, header_text

    with safe_open(str(file), "pt") as opened:
        found = json.loads(opened.metadata()["circle"]) | (header or {})
        parts = {name: opened.get_tensor(name) for name in opened.keys()} | (tensors or {})  # noqa: SIM118
    found.pop("checksum")
    found["checksums"] = {name: checksum(part.numpy()) for name, part in parts.items()}
    save_file(parts, str(file), metadata={"circle": header_text(found)})


def test_an_honest_file(file: Path, current: CircleClassifier) -> None:
    model = CircleClassifier.load(file)
    model.metadata_["journal"] = {"identity": "x", "sequence": 3}
    model.save(file)
    found = read_upload(file, current, Limits())
    assert found.statistics_ == model.statistics_
    assert not found.metadata_, "whose journal that was does not matter here"


@pytest.mark.parametrize(
    ("header", "tensors", "message"),
    [
        ({"classes": encode_labels(["ant", "ant"])}, {}, "each of them once"),
        ({"classes": encode_labels(["ant", "b\x1b[0m"])}, {}, "label: expected"),
        ({"classes": encode_labels(["ant", 3])}, {}, "mixed types"),
        ({"classes": "[[1], [2]]"}, {}, "not a CIRCLE model"),
        ({"classes": "[" * 20_000}, {}, "not a CIRCLE model"),
        ({"settings": {}}, {}, "another kind of model"),
        ({"settings": []}, {}, "not a CIRCLE model"),
        ({"kind": "prediction"}, {}, "only predicts"),
        ({"format": 99}, {}, "newer CIRCLE"),
        ({}, {"counts": torch.tensor([1, -1])}, "counts below one"),
        ({}, {"group0.sums": torch.zeros(0, 10**6, dtype=torch.int32)}, "another shape or type"),
        ({}, {"group0.triangle": torch.zeros(3, dtype=torch.int32)}, "another shape or type|other numbers"),
        ({}, {"group0.triangle.ranks": torch.zeros(10**6, dtype=torch.int32)}, "another shape or type"),
        ({}, {"group0.triangle.rows": torch.zeros(10**5, 96, dtype=torch.int32)}, "other numbers"),
        ({}, {"group0.triangle.rows": torch.zeros(1, 10**6, dtype=torch.int32)}, "another shape or type"),
        ({}, {"group0.triangle.pivots": torch.full((2,), 96, dtype=torch.int32)}, "pivots that are none"),
        ({}, {"group0.triangle.pivots": torch.zeros(2, dtype=torch.int32)}, "pivots that are none"),
        ({}, {"group0.sums": torch.full((2, 96), float("nan"))}, "another shape or type"),
        ({}, {"ledger.counts": torch.tensor([10**15, 0])}, "not a CIRCLE model"),
        ({}, {"group0.scale": torch.zeros(96)}, "cannot be used|not a CIRCLE model"),
    ],
)
def test_forged_files(
    file: Path, current: CircleClassifier, header: dict[str, Any], tensors: dict[str, torch.Tensor], message: str
) -> None:
    forge(file, header, tensors)
    with pytest.raises(RequestError, match=message):
        read_upload(file, current, Limits())


def test_more_classes_than_the_server_takes(file: Path, current: CircleClassifier) -> None:
    with pytest.raises(RequestError, match="2 classes: expected at most 1"):
        read_upload(file, current, Limits(classes=1))


def test_a_file_older_than_a_setting_of_the_head(current: CircleClassifier) -> None:
    model = CircleClassifier.from_preset("small")
    settings = {**model.part_settings(), "image": model.input_config().to_dict()}
    head = {name: value for name, value in settings["head"].items() if name != "prior"}
    assert head != settings["head"]
    assert empty_model_like({**settings, "head": head}, current).settings() == settings
    with pytest.raises(RequestError, match="another kind of model"):
        empty_model_like({**settings, "head": {**head, "prior": "uniform"}}, current)


def test_settings_are_not_believed(current: CircleClassifier) -> None:
    preset = CircleClassifier.from_preset("small", seed=4)
    settings = {**preset.part_settings(), "image": preset.input_config().to_dict()}
    assert empty_model_like(settings, current).settings() == settings, "a preset may be loaded, with any seed"
    for change in ({"members": 5000}, {"seed": -1}, {"seed": "x"}, {"image": {**settings["image"], "height": 4096}}):
        with pytest.raises(RequestError, match="another kind of model"):
            empty_model_like({**settings, **change}, current)
