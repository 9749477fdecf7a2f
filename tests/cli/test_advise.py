"""circle advise as a user calls it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import calling
import numpy as np
import pytest
from PIL import Image

from circle.cli import run

FAST = [
    *("--extractor.name", "birc2d", "--extractor.stem-channels", "4", "--extractor.width", "4"),
    *("--extractor.grid", "2", "--image-size", "16"),
]
SMALL = ["--budget", "4", "--partitions", "2", *FAST]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes that are hard to tell apart, thirty noisy images each, one of them broken."""
    path = tmp_path_factory.mktemp("data") / "pets"
    random = np.random.default_rng(0)
    for name, level in {"cat": 118, "dog": 138}.items():
        (path / name).mkdir(parents=True)
        for index in range(30):
            pixels = np.clip(level + random.normal(0, 60, (16, 16, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(path / name / f"{index:02}.png")
    (path / "cat" / "zz.png").write_bytes(b"no image at all")
    return path


def test_a_head_that_cannot_be_cut_is_refused_where_it_was_asked_for(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [str(data), *SMALL, "--head.name", "subspace_qda"]
    assert "cannot be judged on groups of all sizes at once: choose another head" in fails(asked, capsys)


def fails(arguments: list, capsys: pytest.CaptureFixture[str], code: int = 1) -> str:
    return calling.fails(["advise", *arguments], capsys, code)


def test_table_json_and_plot(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot, numbers = tmp_path / "advice.png", tmp_path / "advice.json"
    assert run(["advise", str(data), *SMALL, "--plot", str(plot), "--json", str(numbers)]) == 0
    said = capsys.readouterr()
    assert "groups were judged with the head slda, which subspace_qda only corrects" in said.err
    facts = json.loads(numbers.read_text())
    assert facts["head"]["name"] == "slda"
    best = facts["recommended"]
    assert best["members"] * best["groups"] == 4
    assert f"(--groups {best['groups']} --members {best['members']})" in said.out
    assert f"m* = {facts['best_real_members']:.2f}" in said.out
    assert f"A = {facts['laws']['power']['amplitude']:.3g}" in said.out
    assert f"alpha = {facts['laws']['power']['alpha']:.3g}" in said.out
    rows = [line.split() for line in said.out.splitlines()[2:5]]
    assert [row[:2] for row in rows] == [["1", "4"], ["2", "2"], ["4", "1"]]
    for row, found in zip(rows, facts["allocations"], strict=True):
        shown = [found["bias"], found["variance"], found["predicted"], found["ensemble"]["error"], found["bound"]]
        assert row[2:7] == [f"{value:.4f}" for value in shown]
        assert row[7] == f"{100 * found['ensemble']['accuracy']:.2f}"
        assert " ".join(row[9:]) == found["origin"]
    smallest = min(facts["allocations"], key=lambda row: row["predicted"])
    assert smallest["members"] == best["members"]
    assert smallest["recommended"]
    assert facts["learned"] + facts["validated"] == 60
    assert facts["command"].startswith("circle advise ")
    assert facts["extractor"]["width"] == 4
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "zz.png" in said.err
    assert len(said.err.strip().splitlines()) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["advice.json", "advice.png"], "no leftovers"


def test_data_sets_limits_and_extrapolation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = tmp_path / "advice.json"
    flags = ["--limit", "80", "--members-measured", "4", "--validation", "0.5", "--json", str(numbers)]
    assert run(["advise", "--dataset", "digits", *SMALL[2:], "--budget", "16", *flags]) == 0
    out = capsys.readouterr().out
    facts = json.loads(numbers.read_text())
    assert facts["classes"] == 10
    assert 70 < facts["learned"] + facts["validated"] <= 80
    assert facts["request"]["limit"] == 80
    assert [row["origin"] for row in facts["allocations"]][-2:] == ["extrapolated"] * 2
    assert [row["ensemble"] for row in facts["allocations"]] == [None] * 5
    assert "B_m where nothing was measured" in out
    assert "most accurate" not in out


def test_existing_and_impossible_files_are_refused_before_any_work(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there.json"
    there.write_text("mine")
    monkeypatch.setattr("circle.cli.advise.recommend_allocation", lambda *_: pytest.fail("work was begun"))
    assert "exists already" in fails([data, *SMALL, "--json", there], capsys)
    assert "exists already" in fails([data, *SMALL, "--plot", there.rename(tmp_path / "there.png")], capsys)
    assert "folder that exists" in fails([data, *SMALL, "--json", tmp_path / "no" / "a.json"], capsys)
    assert "folder that exists" in fails([data, *SMALL, "--json", tmp_path, "--force"], capsys)
    assert "ends in .png or .svg" in fails([data, *SMALL, "--plot", tmp_path / "a.gif"], capsys)
    assert (tmp_path / "there.png").read_text() == "mine"
    if os.geteuid() != 0:
        (tmp_path / "locked").mkdir(mode=0o500)
        assert "cannot be written" in fails([data, *SMALL, "--json", tmp_path / "locked" / "a.json"], capsys)


def test_force_replaces(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = tmp_path / "there.svg"
    there.write_text("old")
    assert run(["advise", str(data), *SMALL, "--plot", str(there), "--force"]) == 0
    assert "<svg" in there.read_text()[:1000]


def test_a_full_disk(data: Path, tiny_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tiny_disk / "filler").write_bytes(b"x" * (128 * 1024))
    capsys.readouterr()
    assert run(["advise", str(data), *SMALL, "--json", str(tiny_disk / "advice.json")]) == 1
    assert "No space left on device" in capsys.readouterr().err.splitlines()[-1]
    assert [path.name for path in tiny_disk.iterdir()] == ["filler"]


def test_errors(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = tmp_path / "one.npz"
    np.savez(one, x=np.zeros((4, 8, 8), np.uint8), y=["cat"] * 4)
    lonely = tmp_path / "lonely.npz"
    np.savez(lonely, x=np.zeros((4, 8, 8), np.uint8), y=["cat"] * 3 + ["dog"])
    for arguments, words in [
        ([*SMALL], "no data given: expected --data"),
        ([tmp_path / "missing", *SMALL], "No such file"),
        (["--dataset", "cifar101", *SMALL], "did you mean 'cifar100'"),
        ([one, *SMALL], "1 class; expected at least 2"),
        ([lonely, *SMALL], "class 'dog' has one image"),
        ([data, *SMALL, "--limit", "3"], "limit = 3: expected at least 4"),
        ([data, *SMALL, "--validation", "1"], "validation = 1.0: expected a share"),
        ([data, *SMALL, "--members-measured", "3"], "members measured = 3: expected 4"),
        ([data, *FAST, "--budget", "1"], "budget = 1: expected 2"),
        ([data, *SMALL, "--groups", "2"], "--groups: leave it out"),
        ([data, *SMALL, "--members", "2"], "--members: leave it out"),
        ([data, *SMALL, "--device", "nonsense"], "not usable"),
    ]:
        assert words in fails(arguments, capsys)
    assert "budget" in fails([data], capsys, code=2)


def test_what_does_not_fit_into_memory(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("circle.machine", "circle.paper.advise"):
        monkeypatch.setattr(f"{module}.available_memory", lambda: 10**9)
    line = fails([data, *FAST, "--budget", "64"], capsys)
    assert "64 members of" in line
    assert "only 1.0 GB available; --members-measured" in line


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["advise", "--help"]) == 0
    text = capsys.readouterr().out
    assert "Usage: circle advise" in text
    for flag in ("--budget", "--members-measured", "--plot", "--json"):
        assert flag in text
    assert run(["advise", "--help-all"]) == 0
    text = capsys.readouterr().out
    for flag in ("--budget", "--extractor.width", "--head.ridge"):
        assert flag in text
