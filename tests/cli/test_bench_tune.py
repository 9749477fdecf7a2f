"""circle bench tune as a user calls it, on a few of the digits."""

from __future__ import annotations

import json
import os
import signal
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from calling import fails, wait_until

from circle.benchmark.results import read_run
from circle.cli import run
from circle.data import datasets

pytest.importorskip("optuna")

SMALL = ["--preset", "reservoir", "--extractor.stem-channels", "3", "--extractor.width", "3", "--extractor.grid", "2"]
RIVAL = ["--method", "lwf", "--rival.network", "convnet", "--rival.width", "4", "--rival.epochs", "2"]
RIVAL += ["--rival.initial-epochs", "2"]

Tune = Callable[..., list[str]]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CIRCLE_DATA", str(tmp_path / "data"))


@pytest.fixture
def shared(few_digits: Path) -> list[str]:
    """What a search and the run of its outcome have in common."""
    return ["--data", str(few_digits), "--tasks", "5", "--images-per-class", "20"]


@pytest.fixture
def tune(shared: list[str]) -> Tune:
    def arguments(folder: Path, *more: str) -> list[str]:
        return ["bench", "tune", *shared, "--trials", "2", "--output", str(folder), *more]

    return arguments


def test_circle(tune: Tune, shared: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert run(["bench", "run", *shared, "--preset", str(folder / "tuned.toml"), "--output", str(again)]) == 0
    (repeated,) = again.glob("*/*/run.json")
    assert read_run(repeated.parent).rows[-1].correct == read_run(tested.parent).rows[-1].correct


def test_a_rival(tune: Tune, shared: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "search"
    assert run(tune(folder, *RIVAL)) == 0
    preset = tomllib.loads((folder / "tuned.toml").read_text())
    settings = preset["methods"]["lwf"]
    assert settings["network"] == "convnet" and settings["width"] == 4
    again = tmp_path / "again"
    arguments = ["bench", "run", *shared, "--method", "lwf", "--preset", str(folder / "tuned.toml")]
    assert run([*arguments, "--output", str(again)]) == 0
    (tested,), (repeated,) = (folder / "test").glob("*/*/run.json"), again.glob("*/*/run.json")
    assert read_run(repeated.parent).info["config"] == read_run(tested.parent).info["config"]
    assert read_run(repeated.parent).rows[-1].correct == read_run(tested.parent).rows[-1].correct
    capsys.readouterr()


def test_the_test_images_are_not_read_before_the_last_step(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = datasets.load_dataset
    read: list[int] = []

    class Locked(datasets.Images):
        def __init__(self, images: datasets.Images) -> None:
            self.labels, self.own = images.labels, images

        def _read(self, indices):
            read.append(len(indices))
            return self.own[indices]

        def _fingerprint(self) -> str:
            return self.own.fingerprint

    def locked(*arguments, **keywords):
        dataset = load(*arguments, **keywords)
        return datasets.replace(dataset, test=Locked(dataset.test))

    monkeypatch.setattr("circle.benchmark.experiment.load_dataset", locked)
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
def test_wrong_wishes(
    tune: Tune, more: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = tune(tmp_path / "search", *more)
    if more[0] in ("--trials", "--tasks"):  # in the place of the shared one
        del arguments[arguments.index(more[0]) : arguments.index(more[0]) + 2]
    assert run(arguments) == 1
    assert words in capsys.readouterr().err.strip().splitlines()[-1]


def test_a_file_is_no_folder_for_a_search(tune: Tune, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    for arguments in (tune(file), tune(tmp_path / "search", "--cache", str(file))):
        assert f"{file} is a file; expected a folder, or a new name" in fails(arguments, capsys)
    assert file.read_text() == "precious"
    assert not (tmp_path / "search").exists()


def test_another_search_in_the_same_folder(tune: Tune, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tune(tmp_path, *RIVAL, "--no-test")) == 0
    assert run(tune(tmp_path, *RIVAL, "--no-test", "--search-seed", "3")) == 1
    assert "a search with another seed was begun here" in capsys.readouterr().err


def finished(folder: Path) -> dict[int, str]:
    """Trials in the journal that came to an end, and what they came to."""
    journal = folder / "journal.log"
    lines = journal.read_text().splitlines() if journal.exists() else []
    found: dict[int, str] = {}
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:  # the last line of a process that was killed while it wrote
            continue
        if entry.get("state") in (1, 2) and "trial_id" in entry:  # complete or cut short
            found[entry["trial_id"]] = json.dumps(entry.get("values"))
    return found


def stopped_outside(lock: Path, children: list[int]) -> bool:
    """Stop processes where none of them holds a lock, or let them go on."""
    for child in children:
        os.kill(child, signal.SIGSTOP)
    outside = not lock.is_symlink()
    if not outside:
        for child in children:
            os.kill(child, signal.SIGCONT)
    return outside


def test_processes_killed_twice_lose_no_finished_trial(
    tune: Tune, tmp_path: Path, launcher_of_jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "search"
    arguments = tune(folder, *RIVAL, "--no-test")
    arguments[arguments.index("--trials") + 1] = "6"
    kept: dict[int, str] = {}
    assert launcher_of_jobs.alone(["bench", "tune", "--help"]).code == 0  # imports once what all of them need
    for count in (2, 1):
        children = [child for _ in range(count) for child in launcher_of_jobs.start(1, arguments)]
        try:
            wait_until(lambda: len(finished(folder)) >= len(kept) + 2)  # noqa: B023
            wait_until(lambda: stopped_outside(folder / "journal.log.lock", children))  # noqa: B023
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
            for child in children:
                launcher_of_jobs.wait([child])
        now = finished(folder)
        assert now.items() >= kept.items(), "what was finished stays as it was"
        kept = now
    # One that was killed while it wrote leaves the lock behind. Optuna waits half a minute before it takes it away.
    if not (folder / "journal.log.lock").is_symlink():
        (folder / "journal.log.lock").symlink_to(folder / "journal.log")
    patience = property(lambda self: 0.1, lambda self, seconds: None)
    monkeypatch.setattr("optuna.storages.journal.JournalFileSymlinkLock.grace_period", patience, raising=False)
    assert run(arguments) == 0
    trials = [
        trial for stage in json.loads((folder / "search.json").read_text())["stages"] for trial in stage["trials"]
    ]
    settings = [json.dumps([trial["stage"], trial["settings"]], sort_keys=True) for trial in trials]
    assert finished(folder).items() >= kept.items()
    assert len(trials) >= 12 and len(settings) <= len(set(settings)) + 2, "two at once may have tried the same"
