"""circle info, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from calling import COLOURS

from circle import CircleClassifier
from circle.cli import run
from circle.heads import SubspaceQDAConfig
from circle.runtime.facts import model_facts
from circle.serve.limits import Limits
from circle.serve.model_store import ModelStore
from circle.serve.recovery import journal_path


def told(model: Path, capsys: pytest.CaptureFixture[str]) -> str | None:
    """What info says of the journal beside a model."""
    capsys.readouterr()
    assert run(["info", str(model), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["journal"]


def test_lessons_that_wait_in_a_journal_are_mentioned(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(model, capsys) is None
    store = ModelStore(model, CircleClassifier, Limits())
    assert told(model, capsys) is None
    store.create_class("new")
    store.create_class("newer")
    waiting = "2 steps wait in model.circle.journal and are not in this file yet; `circle serve` adds them"
    assert told(model, capsys) == waiting
    assert run(["info", str(model)]) == 0
    assert waiting in " ".join(capsys.readouterr().out.split())
    other = tmp_path / "other.circle"
    other.write_bytes(model.read_bytes())
    journal_path(other).write_bytes(b"no journal")
    assert "damaged journal" in (told(other, capsys) or "")
    store.close()
    assert told(model, capsys) is None


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


def test_info_tells_whether_the_bits_are_those_of_every_machine(
    model: Path, unportable_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, portable, words in (
        (model, True, "yes: the same bits on every machine"),
        (unportable_model, False, "no: exact on one kind of machine"),
    ):
        capsys.readouterr()
        assert run(["info", str(path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["portable"] is portable
        assert run(["info", str(path)]) == 0
        assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    "head", ["slda", "qda", SubspaceQDAConfig(dimension=32, rank=5)], ids=["slda", "qda", "subspace"]
)
def test_the_size_to_predict_is_told_before_it_is_made(
    head: str | SubspaceQDAConfig, tiny: Any, stream: Any, tmp_path: Path
) -> None:
    learner = tiny(head=head).partial_fit(*stream)
    learner.save(tmp_path / "model.circle")
    learner.save(tmp_path / "packed.circle", for_prediction=True)
    before, after = (model_facts(tmp_path / f"{name}.circle") for name in ("model", "packed"))
    assert before["prediction_bytes"] == after["prediction_bytes"]
    assert before["parameters"] == after["parameters"]
