"""circle forget, as a user calls it."""

from __future__ import annotations

from pathlib import Path

import pytest
from calling import COLOURS, FAST, fails, make_folder

from circle import CircleClassifier
from circle.cli import run


def test_forget_with_and_without_the_images(
    model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    never = tmp_path / "never"
    make_folder(tmp_path / "rest", classes=COLOURS)
    for path in (tmp_path / "rest" / "red").iterdir():
        path.unlink()
    (tmp_path / "rest" / "red").rmdir()
    assert run(["learn", str(never), str(tmp_path / "rest"), *FAST]) == 0
    for images in (data, data / "red"):
        copy = tmp_path / f"copy-{images.name}"
        copy.write_bytes(model.read_bytes())
        assert run(["forget", str(copy), "red", "--images", str(images)]) == 0
        assert CircleClassifier.load(copy).statistics_ == CircleClassifier.load(never).statistics_
    assert run(["forget", str(model), "red"]) == 0
    assert CircleClassifier.load(model).classes_.tolist() == ["blue", "green"]
    capsys.readouterr()
    assert run(["learn", str(model), str(data)]) == 0
    assert "learned 12 images, 24 were known" in capsys.readouterr().out, "a forgotten class can be learned again"


def test_forget_errors(model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = model.read_bytes()
    assert "class 'rde' is not in the model; it has blue, green, red" in fails(["forget", model, "rde"], capsys)
    (data / "red" / "000.png").unlink()
    assert "11 images given, 12 learned" in fails(["forget", model, "red", "--images", data], capsys)
    broken = tmp_path / "broken"
    (broken / "red").mkdir(parents=True)
    (broken / "red" / "a.png").write_bytes(b"no image at all")
    for images in (broken, broken / "red", broken / "red" / "a.png"):
        line = fails(["forget", model, "red", "--images", images], capsys)
        assert f"{images}: none of 1 image is readable" in line and "a.png: not a readable image" in line
    assert model.read_bytes() == before


def test_what_to_expect_of_models_that_are_not_portable(
    model: Path, unportable_model: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(["forget", str(unportable_model), "red", "--images", str(data)]) == 0
    assert "exact on one kind of machine: use the kind that learned" in " ".join(capsys.readouterr().err.split())
    assert run(["forget", str(unportable_model), "blue"]) == 0, "without images nothing is computed anew"
    assert run(["forget", str(model), "red", "--images", str(data)]) == 0
    assert "one kind of machine" not in capsys.readouterr().err
