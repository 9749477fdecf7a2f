"""circle evaluate, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from calling import COLOURS, make_folder

from circle.cli import run


def test_evaluate(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = make_folder(tmp_path / "test", 6, seed=3, classes=COLOURS | {"pink": (230, 120, 140)})
    capsys.readouterr()
    assert run(["evaluate", str(model), str(test), "--json"]) == 0
    said = capsys.readouterr()
    result = json.loads(said.out)
    assert "never learned pink" in said.err
    assert result["total"] == 24
    assert result["accuracy"] == result["correct"] / 24
    per_class = {row["label"]: row["correct"] for row in result["classes"]}
    assert per_class["pink"] == 0
    assert sum(per_class.values()) == result["correct"]
    assert sum(row["images"] for row in result["confused"]) == 24 - result["correct"]
    assert run(["evaluate", str(model), str(test)]) == 0
    text = capsys.readouterr().out
    assert "most often confused" in text
    assert f"accuracy {100 * result['accuracy']:.2f} %" in text
