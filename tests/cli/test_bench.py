"""circle bench as a user calls it, on the digits or a few of them."""

from __future__ import annotations

import csv
import json
import os
import random
import shlex
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from calling import fails, wait_until

from circle.benchmark import jobs, results
from circle.cli import run
from circle.data.user_images import HELD_BACK
from circle.method import CircleMethod
from circle.registry import list_methods

FAST = [
    "--preset",
    "reservoir",
    "--extractor.stem-channels",
    "3",
    "--extractor.width",
    "3",
    "--extractor.grid",
    "2",
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CIRCLE_DATA", str(tmp_path / "data"))
    return tmp_path / "data" / "features"


def bench(output: Path, *more: str) -> list[str]:
    return ["bench", "run", "--dataset", "digits", "--output", str(output), *more]


def bench_few(output: Path, digits: Path, *more: str) -> list[str]:
    return ["bench", "run", "--data", str(digits), "--output", str(output), *more]


def test_several_splits_methods_and_seeds(
    tmp_path: Path, few_digits: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    splits = ["--tasks", "2", "5", "10", "4+6x1", "--seeds", "0-1"]
    arguments = bench_few(tmp_path / "out", few_digits, *splits, *FAST, "--rival.epochs", "1")
    assert run([*arguments, "--method", "circle", "finetune"]) == 0
    captured = capsys.readouterr()
    assert " ".join(captured.err.split()).count(HELD_BACK) == 1, "how the data were read is said once"
    printed = captured.out
    assert printed.count("CIRCLE reservoir, seed 0, T = ") == 4
    assert printed.count("finetune, seed 1, T = ") == 4
    runs = results.read_runs([tmp_path / "out"])
    assert len(runs) == 2 + 2 * 4
    circle = [one for one in runs if one.info["method"] == "circle"]
    for one in circle:
        finals = {one.record(split).final_accuracy for split in ("2", "5", "10", "4+6x1")}
        assert len(finals) == 1
        assert one.info["config"]["extractor"]["width"] == 3
        assert one.info["command"] == shlex.join(["circle", *arguments, "--method", "circle", "finetune"])
    assert circle[0].record("5").final_accuracy > 0.8
    assert len(list(cache.glob("*.npy"))) == 4, "two seeds, training and test images"


def test_cache_or_not_the_numbers_are_the_same(tmp_path: Path, few_digits: Path) -> None:
    rows = []
    for name, more in (("with", []), ("without", ["--no-cache"])):
        assert run(bench_few(tmp_path / name, few_digits, "--tasks", "5", *FAST, *more)) == 0
        (one,) = results.read_runs([tmp_path / name])
        rows.append([row.correct for row in one.rows])
    assert rows[0] == rows[1]


KILLS = 4


def test_killed_at_random_and_given_again(tmp_path: Path, few_digits: Path, cache: Path, launcher_of_jobs: Any) -> None:
    more = ["--tasks", "10", *FAST, "--cache", str(cache)]
    assert launcher_of_jobs.alone(bench_few(tmp_path / "whole", few_digits, *more)).code == 0
    (reference,) = results.read_runs([tmp_path / "whole"])
    chance = random.Random(1)
    kept: list[int] = []  # rows that each of the killed left behind
    finished = 0

    def written(output: Path) -> int:
        return sum(path.read_bytes().count(b"\n") for path in output.rglob("rows.jsonl"))

    while len(kept) < KILLS or not finished:
        assert finished < 20, "most runs end before they are killed"
        output = tmp_path / f"killed{finished}"
        before = written(output)
        (child,) = launcher_of_jobs.start(1, bench_few(output, few_digits, *more))
        if len(kept) < KILLS and before < 10:  # one killed after its last row has none left to wait for
            wait_until(lambda: written(output) > before)  # noqa: B023
            time.sleep(chance.uniform(0, 0.03))
            os.kill(child, signal.SIGKILL)
        (ended,) = launcher_of_jobs.wait([child])
        if ended.code == -signal.SIGKILL:
            kept.append(written(output))
            continue
        assert ended.code == 0
        finished += 1
        (one,) = results.read_runs([output])
        assert one.complete
        assert [row.correct for row in one.rows] == [row.correct for row in reference.rows]
    assert any(0 < rows < 10 for rows in kept), "some kills must fall in the middle of the work"


def test_ctrl_c_finishes_the_task_and_keeps_it(
    tmp_path: Path, few_digits: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = bench_few(tmp_path / "out", few_digits, "--tasks", "10", "--groups", "2", *FAST)
    learn, learned = CircleMethod.learn, []

    def interrupted(self: CircleMethod, task: Any) -> None:
        learned.append(task)
        if len(learned) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        learn(self, task)

    with monkeypatch.context() as patch:
        patch.setattr(CircleMethod, "learn", interrupted)
        assert run(arguments) == 130
    assert "stopped: finished tasks are kept" in capsys.readouterr().out
    (stopped,) = results.read_runs([tmp_path / "out"])
    assert len(stopped.rows) == len(learned) == 3, "the task under way is finished, and no other is begun"
    assert run(arguments) == 0
    (done,) = results.read_runs([tmp_path / "out"])
    assert done.complete and len(done.rows) == 10
    assert [row.correct for row in done.rows[: len(stopped.rows)]] == [row.correct for row in stopped.rows]


def test_bad_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    for more, words, code in [
        (["--tasks", "3"], "10 classes cannot be split into 3 equal tasks: expected one of 1, 2, 5, 10", 1),
        (["--tasks", "5+4"], "hold 9 classes", 1),
        (["--tasks", "many"], "expected a number such as 20", 1),
        (["--tasks", "5", "--seeds", "x"], "0-4 or 0,3,7", 1),
        (["--tasks", "5", "--seeds", "3-1"], "seeds '3-1': expected numbers such as 0-4", 1),
        (["--tasks", "5", "--cache", str(file)], f"{file} is a file; expected a folder, or a new name", 1),
        (["--tasks", "5", "--tensorboard", str(file / "a")], f"{file / 'a'}: cannot be a folder for results", 1),
        (["--tasks", "5", "--method", "magic"], "unknown method 'magic'", 1),
        (["--tasks", "5", "--preset", "huge"], "unknown preset 'huge'", 1),
        ([], "--tasks", 2),
    ]:
        capsys.readouterr()
        assert run(bench(tmp_path / "out", *more)) == code
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1
        assert words in lines[0]
    assert not (tmp_path / "out").exists()
    for output in (file, file / "below"):
        line = fails([*bench(output), "--tasks", "5"], capsys)
        assert f"{output}: cannot be a folder for results: {file} is a file; expected a folder" in line
    assert file.read_text() == "precious"
    assert run(["bench", "run", "--dataset", "digitz", "--tasks", "5"]) == 1
    assert "did you mean 'digits'" in capsys.readouterr().err


def test_memory_is_estimated_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[int] = []
    build = jobs.build_extractor
    monkeypatch.setattr(jobs, "build_extractor", lambda *each: built.append(1) or build(*each))
    jobs._member.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr("circle.learner.build_groups", lambda *_, **__: pytest.fail("800 members were built for it"))
        assert run(bench(tmp_path / "out", "--tasks", "5", "--members", "100", "--groups", "8")) == 1
    said = capsys.readouterr().err
    assert "GB of memory" in said
    assert "use fewer members" in said
    assert len(built) == 1, "one member is asked for its size"
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr("circle.benchmark.features.shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    assert run(bench(tmp_path / "out", "--tasks", "5", *FAST)) == 1
    assert "do not fit" in capsys.readouterr().err


def test_report(tmp_path: Path, few_digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(bench_few(tmp_path / "out", few_digits, "--tasks", "5", "--seeds", "0,1", *FAST)) == 0
    assert run(["bench", "report", str(tmp_path / "out"), "--output", str(tmp_path / "report")]) == 0
    html = (tmp_path / "report" / "report.html").read_text()
    (one, _) = results.read_runs([tmp_path / "out"])
    assert "CIRCLE reservoir" in html
    assert f"{100 * one.record('5').final_accuracy:.1f}"[:3] in html
    assert run(["bench", "report", str(tmp_path / "nowhere")]) == 1
    assert "no such folder of results" in capsys.readouterr().err


def test_confusion_and_tensorboard(tmp_path: Path) -> None:
    more = ["--confusion", "--tensorboard", str(tmp_path / "board")]
    assert run(bench(tmp_path / "out", "--tasks", "5", *FAST, *more)) == 0
    (one,) = results.read_runs([tmp_path / "out"])
    with (one.folder / "confusion.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert sum(int(row["images"]) for row in rows) == 540
    assert sum(int(row["images"]) for row in rows if row["true"] == row["predicted"]) == sum(one.rows[-1].correct)
    (log,) = (tmp_path / "board").rglob("events.*")
    assert log.stat().st_size > 500


def test_records_are_json_lines(tmp_path: Path, few_digits: Path) -> None:
    assert run(bench_few(tmp_path / "out", few_digits, "--tasks", "2", *FAST)) == 0
    (path,) = (tmp_path / "out").rglob("rows.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["classes_seen"] for row in rows] == [5, 10]
    info = json.loads((path.parent / "run.json").read_text())
    for key in ("versions", "commit", "class_order", "seed", "machine", "config", "peak_memory_bytes", "finished"):
        assert key in info
    assert os.sep + "home" not in json.dumps(info["command"])


RIVAL = ["--rival.network", "convnet", "--rival.width", "4", "--rival.initial-epochs", "2", "--rival.epochs", "2"]


def test_rivals_run_with_settings_of_their_own(
    tmp_path: Path, few_digits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [name for name in list_methods() if name != "finetune"]
    few = ["--tasks", "2", "--images-per-class", "20", "--rival.buffer-size", "50"]
    assert run(bench_few(tmp_path / "out", few_digits, "--method", *names, *RIVAL, *few)) == 0
    printed = capsys.readouterr().out
    for label in ("LwF", "ACIL", "DS-AL", "FeCAM", "FeTrIL"):
        assert f"{label}, seed 0, T = 2: A_bar" in printed
    made = results.read_runs([tmp_path / "out"])
    assert {one.info["method"] for one in made} == set(names)
    assert {one.info["config"]["width"] for one in made} == {4}


def test_a_time_limit_is_kept_and_reported(
    tmp_path: Path, few_digits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = [*RIVAL[:-1], "100000"]
    arguments = bench_few(tmp_path / "out", few_digits, "--tasks", "5", "--method", "lwf", *slow)
    assert run([*arguments, "--time-limit", "1"]) == 0
    printed = capsys.readouterr().out
    assert "LwF, seed 0: stopped, time limit of 1 s of learning reached in task 2, epoch " in printed
    assert "; 2 of 10 classes learned and evaluated" in printed
    (one,) = results.read_runs([tmp_path / "out"])
    assert [row.classes_seen for row in one.rows] == [2]
    assert run(["bench", "report", str(tmp_path / "out"), "--output", str(tmp_path / "report")]) == 0
    assert "time limit of 1 s" in (tmp_path / "report" / "report.md").read_text()


def test_a_balanced_part_is_a_data_set_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more in ([], ["--images-per-class", "10"]):
        assert run(bench(tmp_path, "--tasks", "5", "--method", "finetune", "--rival.epochs", "1", *more)) == 0
    rows = {path.parent.parent.name: results.read_run(path.parent).rows for path in tmp_path.glob("*/*/run.json")}
    assert set(rows) == {"digits", "digits-10"}
    assert rows["digits-10"][-1].samples == 100 < rows["digits"][-1].samples
    assert (
        results.read_run(next(tmp_path.glob("digits-10/*"))).info["test_images"]
        == (results.read_run(next(tmp_path.glob("digits/*"))).info["test_images"])
    )
    capsys.readouterr()
    assert run(bench(tmp_path, "--tasks", "5", "--images-per-class", "1000")) == 1
    assert "1,000 images of each class: digits has 1 to " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--time-limit", "0"], "time-limit 0: expected seconds, more than 0"),
        (["--method", "lwf", "--budget", "-1"], "budget -1: expected seconds, more than 0"),
        (["--method", "lwf", "--rival.alpha1", "1"], "'alpha1' of a rival: none of lwf has it"),
        (["--method", "lwf", "--rival.device", "nonsense"], "device 'nonsense' is not usable"),
        (["--method", "lwf", "--rival.temperature", "0"], "lwf.temperature = 0.0: expected a positive number"),
        (["--method", "lwf", "--rival.augmentations", "flop"], "unknown lwf augmentation 'flop': did you mean 'flip'?"),
        (["--method", "lwf", "--preset", "paper"], "no published settings for data set 'digits'"),
    ],
)
def test_wrong_settings_of_rivals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    assert run(bench(tmp_path / "out", "--tasks", "5", *more)) != 0
    error = capsys.readouterr().err
    assert message in " ".join(error.split()) and "Traceback" not in error
    assert not (tmp_path / "out").exists()
