"""circle predict, as a user calls it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from calling import COLOURS, fails
from PIL import Image

from circle.cli import run


def test_predict(model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [data / name / "003.png" for name in COLOURS]
    capsys.readouterr()
    assert run(["predict", str(model), *map(str, files), "--json", "--top-k", "2"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["image"] for row in rows] == [str(file) for file in files]
    assert [row["predictions"][0]["label"] for row in rows] == list(COLOURS)
    assert all(len(row["predictions"]) == 2 for row in rows)
    assert run(["predict", str(model), str(data)]) == 0
    table = capsys.readouterr().out
    assert "green" in table
    assert "%" in table


def test_predictions_as_csv(model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images, table = [str(data / name / "003.png") for name in COLOURS], tmp_path / "out.csv"
    capsys.readouterr()
    assert run(["predict", str(model), *images, "--csv", str(table), "--top-k", "2"]) == 0
    assert capsys.readouterr().out == f"{table}: predictions of 3 images\n"
    assert run(["predict", str(model), *images, "--csv", str(table), "--force", "--json", "--top", "2"]) == 0
    expected = json.loads(capsys.readouterr().out)
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["image", "label", "probability", "label_2", "probability_2"]
    assert [(row["image"], row["label"]) for row in rows] == list(zip(images, COLOURS, strict=True))
    for row, plain in zip(rows, expected, strict=True):
        first, second = plain["predictions"]
        assert (float(row["probability"]), float(row["probability_2"])) == (first["probability"], second["probability"])
        assert row["label_2"] == second["label"]
    before = table.read_bytes()
    assert "exists already" in fails(["predict", model, *images, "--csv", table], capsys)
    assert "ends in .csv" in fails(["predict", model, *images, "--csv", tmp_path / "out.circle", "--force"], capsys)
    link = tmp_path / "link.csv"
    link.symlink_to(model)
    assert "is the model itself" in fails(["predict", model, *images, "--csv", link, "--force"], capsys)
    assert table.read_bytes() == before


def test_images_of_every_kind(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Grey, palette, alpha, 16 bit and large ones are all brought to the model's size and channels."""
    red = Image.new("RGB", (300, 200), COLOURS["red"])
    kinds = {
        "palette.png": red.convert("P"),
        "alpha.png": red.convert("RGBA"),
        "grey.png": red.convert("L"),
        "deep.png": Image.fromarray(np.full((9, 40), 30000, np.uint16)),
        "photo.jpg": red.resize((1500, 1000)),
    }
    for name, image in kinds.items():
        image.save(tmp_path / name)
    paths = [str(tmp_path / name) for name in kinds]
    capsys.readouterr()
    assert run(["predict", str(model), *paths, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    best = {Path(row["image"]).name: row["predictions"][0]["label"] for row in rows}
    assert len(best) == 5
    assert best["palette.png"] == best["alpha.png"] == best["photo.jpg"] == "red"


def test_predict_names_the_unreadable_and_goes_on(
    model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"x")
    capsys.readouterr()
    assert run(["predict", str(model), str(bad), str(data / "red" / "001.png"), "--json"]) == 1
    said = capsys.readouterr()
    assert len(json.loads(said.out)) == 1
    assert len(said.err.strip().splitlines()) == 1
    assert "bad.png" in said.err


def test_one_line_for_what_cannot_be_predicted(
    model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty, nested = tmp_path / "empty", tmp_path / "nested"
    empty.mkdir()
    (nested / "inner").mkdir(parents=True)
    assert f"{empty}: no images in it; expected a folder of images" in fails(["predict", model, empty], capsys)
    assert f"{nested}: no images in it; expected a folder" in fails(["predict", model, nested], capsys)
    (nested / "inner" / "1.heic").write_bytes(b"\0\0\0\x18ftypheic")
    line = fails(["predict", model, nested], capsys)
    assert "no images in it (1 file ignored: 1 .heic (no reader for this format)); expected" in line
    assert "No such file" in fails(["predict", model, tmp_path / "gone.png"], capsys)
    assert "no such model file" in fails(["predict", tmp_path / "gone.circle", data], capsys)


def test_predict_says_what_it_ignores(model: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "red" / "notes.txt").write_text("my best ones")
    capsys.readouterr()
    assert run(["predict", str(model), str(data)]) == 0
    assert capsys.readouterr().err == f"note {data}: 1 file ignored: 1 .txt\n"
    assert "1 file would be ignored: 1 .txt" in fails(["predict", model, data, "--strict"], capsys)
    (data / "red" / "notes.txt").unlink()
    (data / "red" / "broken.png").write_bytes(b"x")
    assert "broken.png" in fails(["predict", model, data, "--strict"], capsys)
