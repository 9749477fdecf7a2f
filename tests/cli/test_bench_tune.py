"""circle bench tune as a user calls it, on the digits."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from circle.benchmark.results import read_run
from circle.cli import run
from circle.streams import datasets

pytest.importorskip("optuna")

SMALL = ["--preset", "reservoir", "--extractor.stem-channels", "3", "--extractor.width", "3", "--extractor.grid", "2"]
RIVAL = ["--method", "lwf", "--rival.network", "convnet", "--rival.width", "4", "--rival.epochs", "2"]
RIVAL += ["--rival.initial-epochs", "2"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CIRCLE_DATA", str(tmp_path / "data"))


def tune(folder: Path, *more: str) -> list[str]:
    shared = ["--dataset", "digits", "--tasks", "5", "--images-per-class", "20", "--trials", "2"]
    return ["bench", "tune", *shared, "--output", str(folder), *more]


def test_circle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "search"
    assert run(tune(folder, *SMALL, "--parameters", "0")) == 0
    out = capsys.readouterr().out
    assert "on held-back images (as given: " in out and "A_T" in out
    preset = tomllib.loads((folder / "tuned.toml").read_text())
    assert preset["extractor"]["name"] == "birc2d" and preset["head"]["ridge"] > 0
    record = json.loads((folder / "search.json").read_text())
    assert [stage["name"] for stage in record["stages"]] == ["member", "ensemble"]
    assert all(len(stage["trials"]) == 2 for stage in record["stages"]) and "bench tune" in record["basis"]["command"]
    page = (folder / "search.html").read_text()
    assert "Stage member: 2 trials" in page and "<script" not in page and "http" not in page.split("<body>")[1][:200]
    (tested,) = (folder / "test").glob("*/*/run.json")
    assert read_run(tested.parent).info["config"]["head"]["ridge"] == preset["head"]["ridge"]

    again = tmp_path / "again"
    arguments = ["bench", "run", "--dataset", "digits", "--tasks", "5", "--images-per-class", "20"]
    assert run([*arguments, "--preset", str(folder / "tuned.toml"), "--output", str(again)]) == 0
    (repeated,) = again.glob("*/*/run.json")
    assert read_run(repeated.parent).rows[-1].correct == read_run(tested.parent).rows[-1].correct


def test_a_rival(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "search"
    assert run(tune(folder, *RIVAL)) == 0
    preset = tomllib.loads((folder / "tuned.toml").read_text())
    settings = preset["methods"]["lwf"]
    assert settings["network"] == "convnet" and settings["width"] == 4
    again = tmp_path / "again"
    arguments = ["bench", "run", "--dataset", "digits", "--tasks", "5", "--images-per-class", "20", "--method", "lwf"]
    assert run([*arguments, "--preset", str(folder / "tuned.toml"), "--output", str(again)]) == 0
    (tested,), (repeated,) = (folder / "test").glob("*/*/run.json"), again.glob("*/*/run.json")
    assert read_run(repeated.parent).info["config"] == read_run(tested.parent).info["config"]
    assert read_run(repeated.parent).rows[-1].correct == read_run(tested.parent).rows[-1].correct
    capsys.readouterr()


def test_the_test_images_are_not_read_before_the_last_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = datasets.load_dataset
    read: list[int] = []

    class Locked(datasets.ImageSet):
        def __init__(self, images: datasets.ImageSet) -> None:
            self.labels, self.own = images.labels, images

        def _read(self, indices):
            read.append(len(indices))
            return self.own.images(indices)

        def _fingerprint(self) -> str:
            return self.own.fingerprint

    def locked(*arguments, **keywords):
        dataset = load(*arguments, **keywords)
        return datasets.replace(dataset, test=Locked(dataset.test))

    monkeypatch.setattr("circle.cli.bench_tune.load_dataset", locked)
    for more in ([*SMALL, "--parameters", "0"], RIVAL):
        assert run(tune(tmp_path / more[1], *more, "--no-test")) == 0
        assert not read
    assert run(tune(tmp_path / RIVAL[1], *RIVAL)) == 0
    assert read, "the last step does read them"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--method", "lvf"], "unknown method 'lvf': did you mean 'lwf'?"),
        (["--tasks", "3"], "10 classes cannot be split into 3 equal tasks"),
        (["--trials", "0"], "trials 0: expected more than 0"),
        (["--share", "1.5"], "validation share 1.5: expected more than 0 and less than 1"),
        (["--extractor.name", "vgg13"], "no settings to search for extractor 'vgg13'"),
        (["--search", "width_of"], "unknown setting to search 'width_of'"),
        (["--search", "kernels"], "--search without groups or members cannot meet --parameters"),
        ([*SMALL, "--parameters", "7"], "no trial of the search was completed"),
    ],
)
def test_wrong_wishes(more: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = tune(tmp_path / "search", *more)
    if more[0] in ("--trials", "--tasks"):  # in the place of the shared one
        del arguments[arguments.index(more[0]) : arguments.index(more[0]) + 2]
    assert run(arguments) == 1
    assert words in capsys.readouterr().err.strip().splitlines()[-1]


def test_another_search_in_the_same_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tune(tmp_path, *RIVAL, "--no-test")) == 0
    assert run(tune(tmp_path, *RIVAL, "--no-test", "--search-seed", "3")) == 1
    assert "a search with another seed was begun here" in capsys.readouterr().err
