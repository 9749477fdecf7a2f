"""circle evaluate, as a user calls it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from calling import COLOURS, fails, make_folder
from PIL import Image

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


def test_top_k_and_the_table_of_classes(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = make_folder(tmp_path / "test", 6, seed=3, classes=COLOURS | {"pink": (230, 120, 140)})
    table = tmp_path / "classes.csv"
    capsys.readouterr()
    assert run(["evaluate", str(model), str(test), "--json", "--top-k", "3", "--csv", str(table)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["top_k"] == 3
    assert result["top_k_accuracy"] == 18 / 24, "three classes are known, and pink is not"
    with table.open(newline="") as file:
        rows = {row["label"]: row for row in csv.DictReader(file)}
    for plain in result["classes"]:
        row = rows.pop(plain["label"])
        assert (int(row["correct"]), int(row["images"])) == (plain["correct"], plain["total"])
        assert float(row["accuracy"]) == plain["correct"] / plain["total"]
        assert float(row["top_3_accuracy"]) == (plain["label"] != "pink")
    assert not rows
    assert run(["evaluate", str(model), str(test), "--top-k", "3"]) == 0
    text = capsys.readouterr().out
    assert "top 3" in text and "among the 3 most probable classes 75.00 % (18 of 24 images)" in text
    assert "--top-k 0: expected at least 1" in fails(["evaluate", model, test, "--top-k", "0"], capsys)
    assert "exists already" in fails(["evaluate", model, test, "--csv", table], capsys)


def test_confusion_matrix(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = make_folder(tmp_path / "test", 6, seed=3, classes=COLOURS | {"pink": (230, 120, 140)})
    capsys.readouterr()
    assert run(["evaluate", str(model), str(test), "--json", "--confusion", "table", "--pairs", "99"]) == 0
    result = json.loads(capsys.readouterr().out)
    labels, images = result["confusion"]["labels"], result["confusion"]["images"]
    assert labels == ["blue", "green", "pink", "red"]
    assert [sum(row) for row in images] == [6, 6, 6, 6]
    assert sum(images[index][index] for index in range(4)) == result["correct"]
    for pair in result["confused"]:
        assert images[labels.index(pair["true"])][labels.index(pair["predicted"])] == pair["images"]
    assert run(["evaluate", str(model), str(test), "--confusion", "table"]) == 0
    assert "confusion matrix" in capsys.readouterr().out
    table, picture = tmp_path / "matrix.csv", tmp_path / "matrix.png"
    for path in (table, picture):
        assert run(["evaluate", str(model), str(test), "--confusion", str(path)]) == 0
    with table.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["true / predicted", *labels]
    assert [[row[0], *map(int, row[1:])] for row in rows[1:]] == [[a, *b] for a, b in zip(labels, images, strict=True)]
    with Image.open(picture) as shown:
        assert shown.format == "PNG"
    assert "exists already" in fails(["evaluate", model, test, "--confusion", picture], capsys)
    wrong = fails(["evaluate", model, test, "--confusion", "matrix.pdf"], capsys)
    assert "--confusion matrix.pdf: expected table, or a name that ends in .csv, .png or .svg" in wrong
    line = fails(["evaluate", model, test, "--confusion", tmp_path / "a.csv", "--csv", tmp_path / "a.csv"], capsys)
    assert "named for two outputs" in line


def test_a_matrix_that_is_too_wide_for_a_terminal(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    test = make_folder(tmp_path / "test", 2, seed=3)
    monkeypatch.setattr("circle.cli.evaluate.MAX_COLUMNS", 2)
    capsys.readouterr()
    assert run(["evaluate", str(model), str(test), "--confusion", "table"]) == 0
    said = capsys.readouterr()
    assert "confusion matrix of 3 classes is too wide" in " ".join(said.err.split())
    assert "accuracy" in said.out


def test_reliability(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = make_folder(tmp_path / "test", 6, seed=3, classes=COLOURS | {"pink": (230, 120, 140)})
    table, picture, drawing = tmp_path / "bins.csv", tmp_path / "bins.png", tmp_path / "bins.svg"
    for path in (table, picture, drawing):
        capsys.readouterr()
        assert run(["evaluate", str(model), str(test), "--json", "--reliability", str(path)]) == 0
    result = json.loads(capsys.readouterr().out)
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    images = [int(row["images"]) for row in rows]
    assert sum(images) == result["total"] == 24
    assert all(float(row["from"]) <= float(row["mean_probability"]) <= float(row["to"]) for row in rows)
    means = [float(row["mean_probability"]) for row in rows]
    shares = [float(row["accuracy"]) for row in rows]
    assert sum(n * p for n, p in zip(images, means, strict=True)) / 24 == pytest.approx(result["mean_confidence"])
    assert sum(n * a for n, a in zip(images, shares, strict=True)) / 24 == pytest.approx(result["accuracy"])
    error = sum(n * abs(p - a) for n, p, a in zip(images, means, shares, strict=True)) / 24
    assert error == pytest.approx(result["expected_calibration_error"])
    with Image.open(picture) as shown:
        assert shown.format == "PNG"
    assert "<svg" in drawing.read_text()
    assert run(["evaluate", str(model), str(test)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"mean confidence {100 * result['mean_confidence']:.2f} %" in text
    assert f"expected calibration error {100 * result['expected_calibration_error']:.2f} points" in text
    assert "exists already" in fails(["evaluate", model, test, "--reliability", picture], capsys)
    wrong = fails(["evaluate", model, test, "--reliability", "bins.pdf"], capsys)
    assert "--reliability bins.pdf: expected a name that ends in .csv, .png or .svg" in wrong
    line = fails(
        ["evaluate", model, test, "--confusion", tmp_path / "a.csv", "--reliability", tmp_path / "a.csv"], capsys
    )
    assert "named for two outputs" in line
