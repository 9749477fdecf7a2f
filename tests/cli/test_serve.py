"""circle serve, from the command line to Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from calling import fails

from circle import CircleClassifier
from circle.cli import run

SOURCE = Path(__file__).parents[2] / "src"


def test_from_start_to_end(tmp_path: Path) -> None:
    model = tmp_path / "m.circle"
    command = [sys.executable, "-m", "circle", "serve", str(model), "--port", "0", "--preset", "small", "--seed", "3"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(SOURCE)}
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = next(word for word in line.split() if word.startswith("http://127.0.0.1:"))
        assert httpx.post(f"{address}api/classes", json={"label": "cat"}, timeout=60).status_code == 201
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert CircleClassifier.load(model).seed == 3
    assert sorted(each.name for each in tmp_path.iterdir()) == ["m.circle", "m.circle.journal"]


def test_errors_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CIRCLE_TOKEN", raising=False)
    damaged = tmp_path / "damaged.circle"
    damaged.write_bytes(b"not a model")
    for arguments, message in (
        ([str(damaged)], "not a CIRCLE model"),
        ([str(tmp_path / "m.circle"), "--host", "0.0.0.0"], "CIRCLE_TOKEN"),
        ([str(tmp_path / "m.circle"), "--classes", "0"], "--classes 0: expected more than 0"),
    ):
        assert run(["serve", *arguments, "--port", "0"]) != 0
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert message in line
    assert damaged.read_bytes() == b"not a model"


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    script = """
import sys
sys.modules |= dict.fromkeys(("h11", "starlette", "uvicorn"))
from circle.cli import run
sys.exit(run(sys.argv[1:]))
"""
    command = [sys.executable, "-c", script, "serve", str(tmp_path / "m.circle")]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(SOURCE)})
    (line,) = result.stderr.strip().splitlines()
    assert line == "circle: error: serving needs Starlette and uvicorn: pip install 'circle-cil[serve]'"
    assert result.returncode == 1
    assert not list(tmp_path.iterdir())


def test_a_model_that_only_predicts_is_named(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = tmp_path / "small.circle"
    assert run(["pack", str(model), str(small)]) == 0
    assert f"{small}: this model only predicts" in fails(["serve", small, "--port", "0"], capsys)
    assert not (tmp_path / "small.circle.journal").exists()


def test_flags_that_contradict_the_model_change_nothing(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, names = model.read_bytes(), sorted(path.name for path in model.parent.iterdir())
    assert "model.circle: exists with groups = 1, not 7" in fails(
        ["serve", model, "--groups", "7", "--port", "0"], capsys
    )
    assert model.read_bytes() == before
    assert sorted(path.name for path in model.parent.iterdir()) == names, "no journal was begun"
