"""circle bench ablation as a user calls it, on a few of the digits."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from calling import wait_until

from circle.benchmark import results
from circle.cli import run

SMALL = ["--preset", "reservoir", "--extractor.stem-channels", "3", "--extractor.width", "3", "--extractor.grid", "2"]


Study = Callable[..., list[str]]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CIRCLE_DATA", str(tmp_path / "data"))
    return tmp_path / "data" / "features"


@pytest.fixture
def study(few_digits: Path) -> Study:
    def arguments(name: str, output: Path, *more: str, size: int = 24) -> list[str]:
        what = ["bench", "ablation", name, "--data", str(few_digits)]
        return [*what, "--tasks", "5", "--head-size", str(size), "--output", str(output), *SMALL, *more]

    return arguments


def test_heads_from_the_same_features(
    study: Study, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = study("head", tmp_path / "out", "--seeds", "0-1", "--only", "slda", "ncm")
    assert run(arguments) == 0
    printed = capsys.readouterr().out
    assert printed.count("T = 5: A_bar") == 4
    assert "SLDA, seed 2, T = 5" in printed  # the second replicate of two groups
    assert "head ablation with k = 2, m = 1" in printed
    assert "ridge" in printed
    assert len(list(cache.glob("*.npy"))) == 8, "two groups, two seeds, training and test images"
    runs = results.read_runs([tmp_path / "out"])
    assert {(one.info["study"]["variant"], one.info["seed"]) for one in runs} == {
        (head, seed) for head in ("slda", "ncm") for seed in (0, 2)
    }
    for file in (tmp_path / "out").rglob("selection.json"):
        chosen = json.loads(file.read_text())
        heads = [one.info["config"]["head"] for one in runs if one.folder.parent == file.parent]
        assert len(heads) == 2 and heads[0] == heads[1] == chosen["head"]
    # Again: nothing is left to do, and the features are not even needed.
    for path in cache.glob("*.npy"):
        path.unlink()
    assert run(arguments) == 0
    assert capsys.readouterr().out == printed
    assert not list(cache.glob("*.npy"))
    assert run(["bench", "report", str(tmp_path / "out"), "--output", str(tmp_path / "report")]) == 0
    assert "digits-own: head ablation" in (tmp_path / "report" / "report.md").read_text()


def test_ensembles_share_features(
    study: Study, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = study("ensemble", tmp_path / "out", "--budget", "4", "--member-size", "12")
    assert run(arguments) == 0
    assert len(list(cache.glob("*.npy"))) == 8, "four members, training and test images"
    runs = results.read_runs([tmp_path / "out"])
    assert {(one.info["config"]["members"], one.info["config"]["groups"]) for one in runs} == {(1, 4), (2, 2), (4, 1)}
    assert "k m = 4" in capsys.readouterr().out


def test_extractors(study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(study("extractor", tmp_path / "out", "--only", "birc2d", "--groups", "1", "--projection", "linear")) == 0
    assert "BiRC2D (reservoir), seed 0, T = 5" in capsys.readouterr().out
    (one,) = results.read_runs([tmp_path / "out"])
    assert one.info["config"]["extractor"]["projection"] == "linear"
    assert one.folder == tmp_path / "out" / "digits-own" / "extractor-k1-m1-d24-linear-t5" / "birc2d" / "seed0"


def test_killed_and_given_again(study: Study, tmp_path: Path, launcher_of_jobs: Any) -> None:
    more = ["--seeds", "0-1", "--only", "slda"]
    assert run(study("head", tmp_path / "whole", *more)) == 0
    command = study("head", tmp_path / "killed", *more, "--cache", str(tmp_path / "features"))
    # At its first choice of settings, and in the middle of a run.
    for pattern in ("selection.json", "rows.jsonl"):
        (child,) = launcher_of_jobs.start(1, command)
        wait_until(lambda: list((tmp_path / "killed").rglob(pattern)))  # noqa: B023
        os.kill(child, signal.SIGKILL)
        launcher_of_jobs.wait([child])
    kept = {path: path.read_bytes() for path in (tmp_path / "killed").rglob("selection.json")}
    assert kept
    assert run(command) == 0
    assert all(path.read_bytes() == before for path, before in kept.items())
    counts = []
    for name in ("whole", "killed"):
        found = results.read_runs([tmp_path / name])
        counts.append({str(one.folder.relative_to(tmp_path / name)): [r.correct for r in one.rows] for one in found})
    assert len(counts[0]) == 2
    assert counts[0] == counts[1]


def test_bad_requests(study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, more, words, code in [
        ("head", ["--only", "sldb"], "did you mean 'slda'", 1),
        ("head", ["--members", "5"], "expected a multiple of the members", 1),
        ("head", ["--validation", "1.5"], "expected more than 0 and less than 1", 1),
        ("head", ["--seed", "3"], "--seeds", 1),
        ("head", ["--seeds", "x"], "0-4 or 0,3,7", 1),
        ("head", ["--variants", "x.toml"], "for the extractor study", 1),
        ("extractor", ["--variants", "x.toml"], "x.toml: expected a TOML file", 1),
        ("ensemble", ["--groups", "2"], "give --budget instead", 1),
        ("ensemble", ["--budget", "0"], "expected at least 1", 1),
        ("something", [], "something", 2),
    ]:
        capsys.readouterr()
        assert run(study(name, tmp_path / "out", *more)) == code, words
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert words in line
    assert run(study("head", tmp_path / "out", size=50_000)) == 1
    assert "GB" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_other_settings_are_not_mixed_in(study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = study("head", tmp_path / "out", "--only", "ncm")
    assert run(arguments) == 0
    assert run([*arguments, "--extractor.leak", "0.5"]) == 1
    assert "another extractor; choose another --output" in capsys.readouterr().err
