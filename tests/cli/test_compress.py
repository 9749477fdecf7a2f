"""circle compress as a user calls it, and its one-line errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from calling import fails

from circle import CircleClassifier, Predictor
from circle.cli import run
from circle.extractors import LocalContrastConfig

EXTRACTOR = LocalContrastConfig(filters=(6,), kernels=(3,), reductions=(1,), colours=2, grid=2)


@pytest.fixture
def model(tmp_path: Path, stream: tuple[np.ndarray, np.ndarray]) -> Path:
    path = tmp_path / "model.circle"
    CircleClassifier(extractor=EXTRACTOR).partial_fit(*stream).save(path)
    return path


@pytest.fixture
def images(tmp_path: Path, make_stream: object) -> Path:
    x, y = make_stream(60, seed=1)  # pyright: ignore[reportCallIssue]
    np.savez(tmp_path / "held.npz", x=x, y=y)
    return tmp_path / "held.npz"


def test_with_images(model: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, report, plot = tmp_path / "small.circle", tmp_path / "steps.json", tmp_path / "curve.png"
    before = model.read_bytes()
    arguments = ["compress", model, out, "--data", images, "--report", report, "--plot", plot, "--timing-seconds", 0]
    assert run([*map(str, arguments), "--max-loss", "5"]) == 0
    shown, said = capsys.readouterr()
    assert "not tried: groups (the model has one group); parts (statistics of the head" in " ".join(said.split())
    assert shown.count("*: chosen") == 1
    assert any(line.split()[0].endswith("*") for line in shown.splitlines() if line.strip()), shown
    assert max(map(len, shown.splitlines()[:-1])) <= 80
    assert model.read_bytes() == before
    facts = json.loads(report.read_text())
    assert facts["validation_images"] == 60
    assert facts["command"].startswith("circle compress")
    assert set(facts["refused"]) == {"groups", "parts"}
    assert {step["way"] for step in facts["steps"]} == {None, "weights", "rank"}
    (chosen,) = [step for step in facts["steps"] if step["chosen"]]
    assert chosen["file_bytes"] == out.stat().st_size
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert run(["evaluate", str(out), str(images), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == chosen["accuracy"]
    assert run(["info", str(out), "--json"]) == 0
    compressed = json.loads(capsys.readouterr().out)["compressed"]
    assert compressed["features"] == chosen["features"]
    assert run(["info", str(out)]) == 0
    assert f"{chosen['features']:,} features" in " ".join(capsys.readouterr().out.split())


def test_without_images(model: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "small.circle"
    assert run(["compress", str(model), str(out), "--weights", "int8"]) == 0
    assert "predicts only" in capsys.readouterr().out
    assert Predictor.load(out).scores_[0].describe() == "int8"
    assert run(["info", str(model), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["compressed"] is None


def test_another_head_of_the_same_statistics(
    model: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, report = tmp_path / "small.circle", tmp_path / "steps.json"
    arguments = ["compress", model, out, "--head", "slda", "--data", images, "--report", report, "--timing-seconds", 0]
    assert run([*map(str, arguments), "--max-loss", "100"]) == 0
    facts = json.loads(report.read_text())
    assert {step["way"] for step in facts["steps"]} == {None, "weights", "parts", "rank"}
    assert set(facts["refused"]) == {"groups"}
    own = json.loads(json.dumps(CircleClassifier.load(model).settings()["head"]))
    assert facts["settings"]["head"] == {
        name: "slda" if name == "name" else own[name] for name in facts["settings"]["head"]
    }
    assert run(["compress", str(model), str(out), "--head", "slda", "--weights", "int8", "--force"]) == 0
    assert Predictor.load(out).scores_[0].kind == "packed"
    capsys.readouterr()
    assert "head 'qda' needs" in fails(["compress", model, out, "--head", "qda", "--force"], capsys)
    assert "did you mean 'slda'" in fails(["compress", model, out, "--head", "sdla", "--force"], capsys)
    line = fails(["compress", out, tmp_path / "more.circle", "--head", "slda"], capsys)
    assert "--head: this model only predicts" in line


def test_errors(model: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "small.circle"
    before = model.read_bytes()
    for command in ("compress", "pack"):
        assert "is the model itself" in fails([command, model, model, "--force"], capsys)
    one = tmp_path / "one.png"
    for outputs in ([out, "--report", out], [out, "--report", model], [one, "--plot", one]):
        line = fails(["compress", model, *outputs, "--images", images, "--force"], capsys)
        assert "named for two outputs" in line or "is the model itself" in line
    assert model.read_bytes() == before
    out.touch()
    assert "exists already" in fails(["compress", model, out], capsys)
    out.unlink()
    assert "--plot: needs --data" in fails(["compress", model, out, "--plot", tmp_path / "a.png"], capsys)
    assert ".png or .svg" in fails(["compress", model, out, "--data", images, "--plot", tmp_path / "a.gif"], capsys)
    assert "from 0 to 100" in fails(["compress", model, out, "--data", images, "--max-loss", -1], capsys)
    line = fails(["compress", model, out, "--data", images, "--target-kb", 0.01, "--timing-seconds", 0], capsys)
    assert "target of 10 bytes: the smallest model" in line
    assert "no such" in fails(["compress", tmp_path / "none.circle", out], capsys).lower()
    packed = tmp_path / "packed.circle"
    assert run(["pack", str(model), str(packed)]) == 0
    line = fails(["compress", packed, out, "--data", images, "--ways", "parts"], capsys)
    assert "way 'parts': this model only predicts" in line
    line = fails(["compress", packed, out, "--data", images, "--ways", "rank"], capsys)
    assert "way 'rank': this model only predicts" in line
    line = fails(["compress", model, out, "--data", images, "--ways", "parts"], capsys)
    assert "way 'parts': statistics of the head 'subspace_qda' cannot be cut" in line
    assert "int8 weights need the features' covariance" in fails(["compress", packed, out, "--weights", "int8"], capsys)
    assert not out.exists()
