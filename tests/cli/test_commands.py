"""The commands as a user calls them, on folders of images, with their errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file

import circle
from circle import CircleClassifier, checkpoint
from circle.cli import run

FAST = [
    *("--preset", "reservoir", "--extractor.stem-channels", "4", "--extractor.width", "4", "--extractor.grid", "2"),
    *("--extractor.bits", "8", "--image-size", "16"),
]
COLOURS = {"blue": (40, 60, 200), "green": (40, 180, 60), "red": (210, 50, 40)}


def make_folder(path: Path, per_class: int = 12, seed: int = 0, classes: dict | None = None) -> Path:
    random = np.random.default_rng(seed)
    for name, colour in (classes or COLOURS).items():
        (path / name).mkdir(parents=True)
        for index in range(per_class):
            pixels = np.clip(np.array(colour) + random.normal(0, 40, (20, 24, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(path / name / f"{index:03}.png")
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "data")


@pytest.fixture
def model(tmp_path: Path, data: Path) -> Path:
    path = tmp_path / "model.circle"
    assert run(["learn", str(path), str(data), *FAST]) == 0
    return path


def fails(arguments: list, capsys: pytest.CaptureFixture[str], code: int = 1) -> str:
    """Run a command that must fail with one line on stderr; returns that line."""
    capsys.readouterr()
    assert run([str(argument) for argument in arguments]) == code
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("circle: error: ")
    return lines[0]


# -- learning ------------------------------------------------------------------------------------------------


def test_learn_again_learns_nothing_twice(model: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = model.read_bytes()
    assert run(["learn", str(model), str(data)]) == 0
    assert "learned 0 images, 36 were known already" in capsys.readouterr().out
    assert model.read_bytes() == before


def test_new_images_and_new_classes(
    model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = make_folder(tmp_path / "more", 5, seed=1, classes={"red": (210, 50, 40), "white": (240, 240, 240)})
    assert run(["learn", str(model), str(more)]) == 0
    assert "learned 10 images; " in capsys.readouterr().out
    both = tmp_path / "both.circle"
    assert run(["learn", str(both), str(more), *FAST]) == 0
    assert run(["learn", str(both), str(data)]) == 0
    assert CircleClassifier.load(both).statistics_ == CircleClassifier.load(model).statistics_
    assert both.read_bytes() == model.read_bytes(), "the order of lessons leaves no trace"


def test_copies_count_as_often_as_they_are_given(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / "red" / "copy.png").write_bytes((data / "red" / "000.png").read_bytes())
    model = tmp_path / "m"
    assert run(["learn", str(model), str(data), *FAST]) == 0
    assert CircleClassifier.load(model).samples_ == 37
    assert run(["learn", str(model), str(data)]) == 0
    assert "learned 0 images, 37 were known" in capsys.readouterr().out


def test_folder_zip_and_npz_teach_the_same(tmp_path: Path, data: Path, model: Path) -> None:
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        for path in sorted(data.rglob("*.png")):
            archive.write(path, path.relative_to(data))
    files = sorted(data.rglob("*.png"))
    np.savez(
        tmp_path / "data.npz",
        x=np.stack([np.asarray(Image.open(path)) for path in files]),
        y=[path.parent.name for path in files],
    )
    for kind in ("zip", "npz"):
        other = tmp_path / f"{kind}.circle"
        assert run(["learn", str(other), str(tmp_path / f"data.{kind}"), *FAST]) == 0
        assert CircleClassifier.load(other).statistics_ == CircleClassifier.load(model).statistics_


def test_python_and_the_command_agree(model: Path, data: Path) -> None:
    loaded = CircleClassifier.load(model)
    files = sorted(data.rglob("*.png"))
    own = CircleClassifier.from_preset(
        "reservoir",
        extractor__stem_channels=(4,),
        extractor__width=4,
        extractor__grid=2,
        extractor__bits=8,
        image_size=16,
    )
    own.fit([Image.open(path) for path in files], [path.parent.name for path in files])
    assert own.statistics_ == loaded.statistics_


def test_flags_and_presets(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "m"
    flags = [
        "--groups",
        "2",
        "--members",
        "1",
        "--head.ridge",
        "0.5",
        "--channels",
        "1",
        "--aspect",
        "pad",
        "--seed",
        "7",
    ]
    assert run(["learn", str(model), str(data), *FAST, *flags, "--extractor.patch-sizes", "2", "4"]) == 0
    loaded = CircleClassifier.load(model)
    assert (loaded.groups, loaded.members, loaded.seed, loaded.head.ridge) == (2, 1, 7, 0.5)  # pyright: ignore
    assert loaded.extractor.patch_sizes == (2, 4)  # pyright: ignore
    assert (loaded.image_.channels, loaded.image_.aspect) == (1, "pad")
    assert run(["learn", str(model), str(data), "--groups", "2"]) == 0, "what it has may be repeated"
    line = fails(["learn", model, data, "--extractor.width", "9"], capsys)
    assert "exists with extractor.width = 4, not 9" in line
    assert "exists with extractor" in fails(["learn", model, data, "--preset", "small"], capsys)


def test_every_setting_has_a_flag(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    assert run(["learn", "--help"]) == 0
    text = capsys.readouterr().out
    for field in [*circle.BiRC2DConfig.field_names(), "name"]:
        assert f"--extractor.{field.replace('_', '-')}" in text
    for field in circle.SLDAConfig.field_names():
        assert f"--head.{field.replace('_', '-')}" in text
    for name in CircleClassifier().get_params(deep=False):
        assert f"--{name.replace('_', '-')}" in text


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    listed = capsys.readouterr().out
    for command in ("learn", "predict", "evaluate", "info", "forget", "pack", "merge", "demo"):
        assert command in listed
        assert run([command, "--help"]) == 0
        assert "Usage: circle " + command in capsys.readouterr().out


def test_unreadable_images_are_skipped_and_counted(
    tmp_path: Path, data: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = (data / "red" / "000.png").read_bytes()
    (data / "red" / "broken.png").write_bytes(b"no image at all")
    (data / "red" / "half.png").write_bytes(whole[: len(whole) // 2])
    other = tmp_path / "other"
    capsys.readouterr()
    assert run(["learn", str(other), str(data), *FAST]) == 0
    said = capsys.readouterr()
    assert "learned 36 images, 2 unreadable were skipped" in said.out
    assert "broken.png" in said.err
    assert "half.png" in said.err
    assert CircleClassifier.load(other).statistics_ == CircleClassifier.load(model).statistics_


def test_strict_stops_before_anything_is_learned(
    tmp_path: Path, data: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / "red" / "zzz.png").write_bytes(b"no image at all")
    before = model.read_bytes()
    make_folder(tmp_path / "data2", 3, seed=5)
    (tmp_path / "data2" / "red" / "zzz.png").write_bytes(b"no image at all")
    assert "zzz.png" in fails(["learn", model, tmp_path / "data2", "--strict"], capsys)
    assert model.read_bytes() == before
    assert "zzz.png" in fails(["learn", tmp_path / "new", data, "--strict", *FAST], capsys)
    assert not (tmp_path / "new").exists()


def test_ctrl_c_keeps_what_was_learned(tmp_path: Path) -> None:
    data = make_folder(tmp_path / "many", 700)
    model = tmp_path / "model"
    command = [sys.executable, "-c", "from circle.cli import main; main()", "learn", str(model), str(data), *FAST]
    process = subprocess.Popen(
        [*command, "--checkpoint-seconds", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not model.exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "stopped: learned" in out
    assert "run the same command again to go on" in out
    kept = CircleClassifier.load(model).samples_
    assert 0 < kept < 2100
    assert sorted(path.name for path in tmp_path.iterdir()) == ["many", "model"], "no lock, no leftovers"
    assert run(command[3:]) == 0
    assert CircleClassifier.load(model).samples_ == 2100


# -- asking --------------------------------------------------------------------------------------------------


def test_predict(model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [data / name / "003.png" for name in COLOURS]
    capsys.readouterr()
    assert run(["predict", str(model), *map(str, files), "--json", "--top", "2"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["image"] for row in rows] == [str(file) for file in files]
    assert [row["predictions"][0]["label"] for row in rows] == list(COLOURS)
    assert all(len(row["predictions"]) == 2 for row in rows)
    assert run(["predict", str(model), str(data)]) == 0
    table = capsys.readouterr().out
    assert "green" in table
    assert "%" in table


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


# -- changing ------------------------------------------------------------------------------------------------


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


def test_forget_errors(model: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = model.read_bytes()
    assert "class 'rde' is not in the model; it has blue, green, red" in fails(["forget", model, "rde"], capsys)
    (data / "red" / "000.png").unlink()
    assert "11 images given, 12 learned" in fails(["forget", model, "red", "--images", data], capsys)
    assert model.read_bytes() == before


def test_merge(model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = make_folder(tmp_path / "more", 5, seed=1, classes={"white": (240, 240, 240)})
    other, merged = tmp_path / "other", tmp_path / "merged"
    assert run(["learn", str(other), str(more), *FAST]) == 0
    assert run(["merge", str(model), str(other), "-o", str(merged)]) == 0
    assert "knows 4 classes from 41 images" in capsys.readouterr().out
    assert run(["learn", str(model), str(more)]) == 0
    assert merged.read_bytes() == model.read_bytes()
    assert "exists already" in fails(["merge", model, other, "-o", merged], capsys)
    assert run(["merge", str(model), str(other), "-o", str(merged), "--force"]) == 0
    assert "5 images had been learned by more than one model" in " ".join(capsys.readouterr().err.split())


# -- errors --------------------------------------------------------------------------------------------------


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
        (broken, "none of 1 images is readable"),
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
    header = json.dumps({"format": checkpoint.FORMAT_VERSION + 1, "checksums": {}})
    save_file(checkpoint.read(model)[0], newer, metadata={"circle": header})
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"\x80\x04\x95 this could be a pickle, and nobody will find out")
    picture = data / "red" / "000.png"
    for path, words in [
        (tmp_path / "missing", "no such model file"),
        (truncated, "truncated model file"),
        (newer, "newer CIRCLE"),
        (foreign, "not a CIRCLE model"),
        (tmp_path, "cannot be read"),
    ]:
        content = path.read_bytes() if path.is_file() else None
        for command in (["predict", path, picture], ["evaluate", path, data], ["info", path], ["forget", path, "red"]):
            assert words in fails(command, capsys)
        assert words in fails(["merge", path, model, "-o", tmp_path / "out"], capsys)
        if path.exists():
            assert words in fails(["learn", path, data], capsys)
        assert content is None or path.read_bytes() == content
    assert not (tmp_path / "out").exists()


def test_models_that_do_not_merge(model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    assert run(["learn", str(other), str(data), *FAST, "--seed", "1"]) == 0
    line = fails(["merge", model, other, "-o", tmp_path / "out"], capsys)
    assert "different seed do not combine: 0 and 1" in line
    assert not (tmp_path / "out").exists()


def test_a_predicting_model_does_not_learn(
    model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = tmp_path / "small"
    assert run(["pack", str(model), str(small)]) == 0
    before = small.read_bytes()
    for command in (["learn", small, data], ["forget", small, "red"], ["merge", small, model, "-o", tmp_path / "x"]):
        assert "only predicts" in fails(command, capsys)
    assert small.read_bytes() == before


def test_wrong_usage(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in [
        (["lern"], "lern"),
        (["learn", model], "DATA"),
        (["learn", model, "x", "--extractor.widht", "3"], "Did you mean --extractor.width"),
        (["learn", model, "x", "--groups", "many"], "many"),
        (["merge", model, model], "output"),
    ]:
        assert words in fails(arguments, capsys, code=2)
    assert "at least 1" in fails(["predict", model, "x", "--top", "0"], capsys)
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
