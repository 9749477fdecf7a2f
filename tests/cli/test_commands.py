"""What holds for all commands: help, and one line for every kind of bad input."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from calling import FAST, fails, make_folder
from PIL import Image
from safetensors.torch import save_file

from circle import files
from circle.cli import run
from circle.runtime import container

# --- learning -----------------------------------------------------------------------------------------------


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    listed = capsys.readouterr().out
    for command in ("learn", "predict", "evaluate", "info", "forget", "rename", "pack", "merge", "demo"):
        assert command in listed
        assert run([command, "--help"]) == 0
        assert "Usage: circle " + command in capsys.readouterr().out


# --- errors -------------------------------------------------------------------------------------------------


def test_bad_data(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = model.read_bytes()
    empty = tmp_path / "empty"
    empty.mkdir()
    flat = tmp_path / "flat"
    flat.mkdir()
    Image.new("RGB", (4, 4)).save(flat / "a.png")
    broken = tmp_path / "broken"
    (broken / "red").mkdir(parents=True)
    (broken / "red" / "a.png").write_bytes(b"x")
    bomb = tmp_path / "bomb"
    (bomb / "red").mkdir(parents=True)
    Image.new("1", (60000, 2000)).save(bomb / "red" / "a.png")
    numbers = tmp_path / "numbers.npz"
    np.savez(numbers, x=np.zeros((2, 8, 8), np.uint8), y=[1, 2])
    not_numbers = tmp_path / "nan.npz"
    np.savez(not_numbers, x=np.full((2, 8, 8), np.nan), y=["a", "b"])
    channels = tmp_path / "channels.npz"
    np.savez(channels, x=np.zeros((2, 8, 8, 7), np.uint8), y=["a", "b"])
    for path, words in [
        (tmp_path / "missing", "No such file"),
        (empty, "empty"),
        (flat, "flat"),
        (broken, "none of 1 image is readable"),
        (bomb, "120000000 pixels|60000 x 2000"),
        (numbers, "mixed types"),
        (not_numbers, "nan"),
        (channels, "channels"),
        (tmp_path / "model.circle", "expected"),
    ]:
        line = fails(["learn", model, path], capsys)
        assert any(word in line for word in words.split("|")), line
        assert model.read_bytes() == before


def test_bad_models(model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = model.read_bytes()
    truncated = tmp_path / "truncated"
    truncated.write_bytes(whole[: len(whole) // 2])
    newer = tmp_path / "newer"
    header = container.header_text({"format": container.FORMAT_VERSION + 1, "checksums": {}})
    save_file(files.read(model)[0], newer, metadata={"circle": header})
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"\x80\x04\x95 this could be a pickle, and nobody will find out")
    picture = data / "red" / "000.png"
    for path, words in [
        (tmp_path / "missing", "no such model file"),
        (truncated, "truncated model file"),
        (newer, "newer CIRCLE"),
        (foreign, "not a CIRCLE model"),
        (tmp_path, "cannot be read (Is a directory); expected a model file"),
    ]:
        content = path.read_bytes() if path.is_file() else None
        for command in (
            ["predict", path, picture],
            ["evaluate", path, data],
            ["info", path],
            ["forget", path, "red"],
            ["rename", path, "red", "pink"],
        ):
            assert words in fails(command, capsys)
        assert words in fails(["merge", path, model, "-o", tmp_path / "out"], capsys)
        if path.exists():
            assert words in fails(["learn", path, data], capsys)
        assert content is None or path.read_bytes() == content
    assert not (tmp_path / "out").exists()


def test_a_predicting_model_does_not_learn(
    model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = tmp_path / "small"
    assert run(["pack", str(model), str(small)]) == 0
    before = small.read_bytes()
    for command in (
        ["learn", small, data],
        ["forget", small, "red"],
        ["rename", small, "red", "x"],
        ["merge", small, model, "-o", tmp_path / "x"],
    ):
        assert "only predicts" in fails(command, capsys)
    assert small.read_bytes() == before


def test_a_packed_model_is_not_packed_again(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small, again = tmp_path / "small", tmp_path / "again"
    assert run(["pack", str(model), str(small)]) == 0
    line = fails(["pack", small, again], capsys)
    assert line == (
        f"circle: error: {small}: this model only predicts already; expected a learning model "
        "(copy the file as it is, or make it smaller with `circle compress`)"
    )
    assert not again.exists()


def test_a_packed_model_needs_a_place(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for output in (tmp_path / "no" / "small", tmp_path):
        line = fails(["pack", model, output, "--force"], capsys)
        assert line.endswith(
            f"{output}: cannot be written; expected a file in a folder that exists and can be written to"
        )
    before, there = model.read_bytes(), tmp_path / "there"
    there.touch()
    assert "exists already" in fails(["pack", model, there], capsys)
    for force in ([], ["--force"]):
        line = fails(["pack", model, model, *force], capsys)
        assert line.endswith("is the model itself, which would be lost; choose another name for the output")
    assert model.read_bytes() == before


def test_wrong_usage(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in [
        (["lern"], "lern"),
        (["learn", model], "DATA"),
        (["learn", model, "x", "--extractor.widht", "3"], "Did you mean --extractor.width"),
        (["learn", model, "x", "--groups", "many"], "many"),
        (["merge", model, model], "output"),
    ]:
        assert words in fails(arguments, capsys, code=2)
    assert "at least 1" in fails(["predict", model, "x", "--top-k", "0"], capsys)
    assert "leak = 3.0: expected above 0" in fails(
        ["learn", model.with_name("n"), model.parent / "data", "--extractor.name", "birc2d", "--extractor.leak", "3"],
        capsys,
    )


def test_an_unwritable_place(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "folder that exists" in fails(["learn", tmp_path / "no" / "model", data, *FAST], capsys)
    if os.geteuid() != 0:
        (tmp_path / "locked").mkdir(mode=0o500)
        assert "cannot be written" in fails(["learn", tmp_path / "locked" / "model", data, *FAST], capsys)


def test_a_full_disk_keeps_the_old_model(
    model: Path, data: Path, tiny_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tiny_disk / "model"
    assert "No space left on device" in fails(["learn", place, data, "--image-size", "16"], capsys)
    assert list(tiny_disk.iterdir()) == []
    place.write_bytes(model.read_bytes())
    more = make_folder(tmp_path / "more", 5, seed=1, classes={"white": (240, 240, 240)})
    (tiny_disk / "filler").write_bytes(b"x" * (128 * 1024 - 4096 - model.stat().st_size // 4096 * 4096 - 4096))
    assert "what was there before is unchanged" in fails(["learn", place, more], capsys)
    assert place.read_bytes() == model.read_bytes()
    subprocess.run(["mount", "-o", "remount,size=2m", str(tiny_disk)], check=True)
    assert run(["learn", str(place), str(more)]) == 0


def test_no_traceback_reaches_the_user(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", "from circle.cli import main; main()", "info", str(tmp_path / "missing")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.strip() == f"circle: error: {tmp_path / 'missing'}: no such model file"


def test_brackets_in_names_are_brackets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """rich would take "[copy]" for a colour and leave it out, and end at "[/b]" with an error of its own."""
    data = make_folder(tmp_path / "photos[" / "b]", 4)
    (data / "red").rename(data / "red[copy]")
    (data / "blue" / "broken[copy].png").write_bytes(b"no image at all")
    numbers = tmp_path / "labels.npz"
    np.savez(numbers, x=np.zeros((2, 16, 16, 3), np.uint8), y=["[/b]", "[bold]"])
    model, small = data / "model[copy].circle", data / "small.circle"
    capsys.readouterr()
    for command, words in [
        (["learn", model, data, *FAST], "model[copy].circle knows 3 classes"),
        (["evaluate", model, data], "red[copy]"),
        (["predict", model, data / "red[copy]" / "000.png"], "red[copy]"),
        (["learn", model, numbers], "knows 5 classes"),
        (["evaluate", model, numbers], "[/b]"),
        (["info", model], "[bold] (1)"),
        (["pack", model, small], "/b]/small.circle"),
        (["merge", model, model, "-o", data / "both"], "/b]/both knows 5 classes"),
        (["forget", model, "[/b]"], "forgot [/b]"),
    ]:
        assert run([str(argument) for argument in command]) == 0
        said = capsys.readouterr()
        assert words in said.out.replace("\n", "")
        if command[0] == "learn" and command[2] is data:
            assert "photos[/b]/blue/broken[copy].png: not a readable image" in said.err
