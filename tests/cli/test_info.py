"""circle info, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from calling import COLOURS

from circle.cli import run


def test_info_tells_both_sizes(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(["info", str(model), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert run(["pack", str(model), str(tmp_path / "small.circle")]) == 0
    header = 6000
    assert 0 < model.stat().st_size - facts["learning_bytes"] < header
    assert 0 < (tmp_path / "small.circle").stat().st_size - facts["prediction_bytes"] < header
    assert facts["classes"] == [{"label": name, "images": 12} for name in COLOURS]
    capsys.readouterr()
    assert run(["info", str(tmp_path / "small.circle")]) == 0
    assert "predicts only" in capsys.readouterr().out
    assert run(["info", str(model)]) == 0
    text = capsys.readouterr().out
    assert "as a learning model" in text
    assert "as a predicting model" in text
