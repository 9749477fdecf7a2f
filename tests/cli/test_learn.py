"""circle learn, as a user calls it, on folders of images."""

from __future__ import annotations

import os
import re
import signal
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calling import FAST, fails, make_folder
from PIL import Image
from rich.console import Console

import circle
from circle import CircleClassifier
from circle import learning as teaching
from circle.cli import run


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


def test_another_preset_than_the_model_was_made_with(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "pets.circle"
    assert run(["learn", str(model), str(data), "--image-size", "16", "--seed", "3"]) == 0
    before = model.read_bytes()
    line = fails(["learn", model, data, "--preset", "best"], capsys)
    assert f"{model}: was made with preset fast; --preset best cannot be changed later: it differs in " in line
    assert "{" not in line and "(" not in line and line.endswith("leave --preset out, or choose a new file")
    line = fails(["learn", model, data, "--preset", "fast", "--groups", "2"], capsys)
    assert f"{model}: exists with groups = 1, not 2" in line
    assert run(["learn", str(model), str(data), "--preset", "fast", "--seed", "3"]) == 0
    assert model.read_bytes() == before


def test_one_is_not_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, one = tmp_path / "model", make_folder(tmp_path / "one", 1, classes={"red": (210, 50, 40)})
    assert run(["learn", str(model), str(one), *FAST]) == 0
    assert capsys.readouterr().out == f"learned 1 image; {model} knows 1 class from 1 image\n"
    assert run(["learn", str(model), str(one)]) == 0
    assert "learned 0 images, 1 was known already" in capsys.readouterr().out
    assert run(["info", str(model)]) == 0
    assert "1 image of 1 class" in " ".join(capsys.readouterr().out.split())


def test_every_setting_has_a_flag(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("circle.cli.app.console", Console(width=250))  # shorter lines cut names in two
    capsys.readouterr()
    assert run(["learn", "--help-all"]) == 0
    text = capsys.readouterr().out
    assert "Usage: circle learn" in text
    for field in [*circle.BiRC2DConfig.field_names(), "name"]:
        assert f"--extractor.{field.replace('_', '-')}" in text
    for field in circle.SLDAConfig.field_names():
        assert f"--head.{field.replace('_', '-')}" in text
    for name in CircleClassifier().get_params(deep=False):
        assert f"--{name.replace('_', '-')}" in text


def test_the_short_help_fits_on_a_screen(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("circle.cli.app.console", Console(width=250))
    capsys.readouterr()
    assert run(["learn", "--help"]) == 0
    text = capsys.readouterr().out
    assert 10 <= len(re.findall(r"^\W*--", text, re.MULTILINE)) <= 16
    assert "--preset" in text and "--set" in text and "--help-all lists all settings" in text
    assert "--extractor." not in text and "Its head" not in text and "--quantise" not in text


def test_settings_by_name(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--set takes every setting that has a flag, and means the same."""
    flags, named = tmp_path / "flags", tmp_path / "named"
    assert run(["learn", str(flags), str(data), *FAST, "--extractor.patch-sizes", "2", "4", "--groups", "2"]) == 0
    changes = {"stem-channels": 4, "width": 4, "grid": 2, "bits": 8, "patch_sizes": "2,4"}
    given = [word for name, value in changes.items() for word in ("--set", f"extractor.{name}={value}")]
    more = ["--set", "groups=2", "--set", "image_size=16", "--set", "extractor=birc2d"]
    assert run(["learn", str(named), *given, str(data), "--preset", "reservoir", *more]) == 0
    assert named.read_bytes() == flags.read_bytes()
    assert run(["learn", str(named), str(data), "--set", "extractor.mirror=yes", "--set", "seed=0"]) == 0
    for change, words in {
        "extractor.widht=3": "--set extractor.widht=3: unknown setting; did you mean extractor.width?",
        "nonsense=3": "unknown setting; `circle learn --help-all` lists all settings",
        "extractor.width": "expected a setting and its value, such as extractor.filters=64",
        "extractor.width=": "expected a setting and its value",
        "extractor.width=many": "--set extractor.width=many: expected a whole number",
        "extractor.patch_sizes=2,x": "expected a whole number, or several with commas between",
        "extractor.bits=9": "expected 8 or 16",
        "extractor.mirror=perhaps": "expected true or false",
        "extractor.leak=3": "leak = 3.0: expected above 0",
        "extractor.width=9": "exists with extractor.width = 4, not 9",
    }.items():
        where = [named, data] if "=9" in change else [tmp_path / "new", data, "--preset", "reservoir"]
        assert words in fails(["learn", *where, "--set", change], capsys)
    line = fails(["learn", tmp_path / "new", data, "--groups", "2", "--set", "groups=3"], capsys)
    assert "--set groups=3: was given as 2 before; expected one value" in line
    assert not (tmp_path / "new").exists()


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


def test_ctrl_c_keeps_what_was_learned(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    command = ["learn", str(model), str(data), *FAST]
    learn, batches = teaching.learn_batch, []

    def interrupted(*arguments: Any) -> None:
        batches.append(arguments)
        if len(batches) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        learn(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(teaching, "IMAGES_PER_TILE", 8)
        patch.setattr(teaching, "learn_batch", interrupted)
        assert run([*command, "--checkpoint-seconds", "0"]) == 130
    out = capsys.readouterr().out
    assert "stopped: learned 16 images; 20 are left" in out
    assert "run the same command again to resume" in out
    assert CircleClassifier.load(model).samples_ == 16, "what was under way is kept, too"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "model"], "no lock, no leftovers"
    assert run(command) == 0
    assert "learned 20 images, 16 were known already" in capsys.readouterr().out
    assert CircleClassifier.load(model).samples_ == 36


def test_what_is_ignored_is_said_and_strict_refuses_it(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / "red" / "notes.txt").write_text("my best ones")
    (data / "red" / "IMG_1").write_bytes((data / "red" / "000.png").read_bytes())
    model = tmp_path / "model"
    assert run(["learn", str(model), str(data), *FAST]) == 0
    said = capsys.readouterr()
    assert said.err == f"note {data}: 1 file ignored: 1 .txt; 1 without extension that is PNG: read\n"
    assert "learned 37 images" in said.out
    line = fails(["learn", tmp_path / "new", data, *FAST, "--strict"], capsys)
    assert "1 file would be ignored: 1 .txt, such as red/notes.txt; --strict expects images alone" in line
    assert not (tmp_path / "new").exists()
    (data / "red" / "notes.txt").unlink()
    assert run(["learn", str(tmp_path / "new"), str(data), *FAST, "--strict"]) == 0


def test_the_same_picture_in_two_classes_is_named_and_strict_refuses_it(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / "green" / "zzz.png").write_bytes((data / "red" / "000.png").read_bytes())
    model = tmp_path / "model"
    for _ in range(2):  # also when they are known already
        assert run(["learn", str(model), str(data), *FAST]) == 0
        said = capsys.readouterr().err
        assert said == f"note the same picture in two classes: {data}/green/zzz.png and {data}/red/000.png\n"
    line = fails(["learn", tmp_path / "new", data, *FAST, "--strict"], capsys)
    assert line.endswith("red/000.png; --strict expects each picture in one class")
    assert not (tmp_path / "new").exists()
    assert run(["evaluate", str(model), str(data)]) == 0
    assert "note the same picture in two classes: " in capsys.readouterr().err
    assert "--strict expects each picture in one class" in fails(["evaluate", model, data, "--strict"], capsys)


def test_train_is_learned_and_test_is_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_folder(tmp_path / "photos" / "train", 5)
    make_folder(tmp_path / "photos" / "test", 2, seed=1)
    model, photos = tmp_path / "model", tmp_path / "photos"
    assert run(["learn", str(model), str(photos), *FAST]) == 0
    said = capsys.readouterr()
    assert said.err == f"note {photos}: has train and test: taking train\n"
    assert CircleClassifier.load(model).classes_.tolist() == ["blue", "green", "red"]
    assert CircleClassifier.load(model).samples_ == 15
    assert run(["evaluate", str(model), str(photos)]) == 0
    said = capsys.readouterr()
    assert said.err == f"note {photos}: has train and test: taking test\n"
    assert "of 6 images" in said.out


def test_labels_in_a_table_are_refused(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    (data / "red").rename(photos / "images")
    (photos / "labels.csv").write_text("000.png,red")
    line = fails(["learn", tmp_path / "model", photos, *FAST], capsys)
    assert f"{photos}: holds 12 images and labels.csv; labels are not read from tables" in line
