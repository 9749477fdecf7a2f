"""circle rename, as a user calls it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from calling import COLOURS, FAST, fails, make_folder

from circle import CircleClassifier
from circle.cli import run
from circle.runtime import container


def test_rename(model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The model becomes the one that learned the class under its new name from the start, but for the ledger."""
    classes = {{"red": "amber"}.get(name, name): colour for name, colour in COLOURS.items()}
    other = tmp_path / "other"
    (data / "red").rename(data / "amber")
    assert run(["learn", str(other), str(data), *FAST]) == 0
    capsys.readouterr()
    assert run(["rename", str(model), "red", "amber"]) == 0
    assert f"{model}: red is called amber now" in capsys.readouterr().out
    renamed = CircleClassifier.load(model)
    assert renamed.classes_.tolist() == sorted(classes)
    assert renamed.statistics_ == CircleClassifier.load(other).statistics_
    test = make_folder(tmp_path / "test", 3, seed=9, classes=classes)
    assert run(["evaluate", str(model), str(test)]) == 0


def test_classes_that_are_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers, model = tmp_path / "numbers.npz", tmp_path / "model"
    np.savez(numbers, x=np.arange(2 * 16 * 16, dtype=np.uint8).reshape(2, 16, 16), y=[1, 2])
    assert run(["learn", str(model), str(numbers), *FAST, "--channels", "1"]) == 0
    assert "whole numbers; expected one" in fails(["rename", model, "2", "two"], capsys)
    assert run(["rename", str(model), "2", "7"]) == 0
    assert CircleClassifier.load(model).classes_.tolist() == [1, 7]


def test_what_cannot_be_renamed(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = model.read_bytes()
    for words, message in [
        (["rde", "x"], "class 'rde' is not in the model; it has blue, green, red"),
        (["red", "blue"], "class 'blue' is in the model already: expected a name that is free"),
        (["red", "red"], "class 'red' is in the model already"),
        (["red", " "], "expected a name of printable characters"),
    ]:
        assert message in fails(["rename", model, *words], capsys)
    with container.exclusive(model):
        assert "another process is changing this model" in fails(["rename", model, "red", "x"], capsys)
    assert model.read_bytes() == before
    assert not list(model.parent.glob(".*")), "no lock, no leftovers"
