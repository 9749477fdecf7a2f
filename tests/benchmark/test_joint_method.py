"""CIRCLE through the benchmark by several processes: rows, confusions and state are those of one."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from circle.benchmark.method import CircleMethod, Task
from circle.benchmark.results import read_runs
from circle.benchmark.runner import Stream
from circle.benchmark.state import load_state, same_state
from circle.cli.flags import ExtractorFlags, ModelFlags
from circle.streams.datasets import load_dataset

SETTINGS = [
    *("--preset", "reservoir", "--extractor.stem-channels", "4", "--extractor.width", "4"),
    *("--extractor.grid", "2", "--groups", "2"),
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    labels = random.integers(0, 6, 180)
    images = (random.integers(0, 180, (180, 8, 8)) + 12 * labels[:, None, None]).astype(np.uint8)
    path = tmp_path / "data.npz"
    np.savez(path, x=images, y=np.array(list("abcdef"))[labels])
    return path


def command(data: Path, output: Path, *more: object) -> list[object]:
    cache = data.with_name("features")
    where = ["--dataset", "folder", "--data-path", data, "--output", output, "--cache", cache]
    return ["bench", "run", *where, "--tasks", "2", "3", "--confusion", *SETTINGS, *more]


def record(output: Path) -> tuple[list[Any], str]:
    """What does not depend on the clock."""
    (run,) = read_runs([output])
    assert run.complete and "finished" in run.info
    return [(row.classes_seen, row.correct, row.samples) for row in run.rows], (
        run.folder / "confusion.csv"
    ).read_text()


def test_the_record_is_that_of_one_process(tmp_path: Path, data: Path, launcher_of_jobs: Any) -> None:
    assert launcher_of_jobs.alone(command(data, tmp_path / "one")).code == 0
    rows, confusion = record(tmp_path / "one")
    assert [seen for seen, _, _ in rows] == [2, 3, 4, 6]
    assert 0 < sum(rows[-1][1]) < len(load_dataset("folder", path=data).test), "some are right, some are wrong"
    for size, more in ((2, []), (3, ["--no-cache"])):
        output = tmp_path / f"by-{size}"
        ended = launcher_of_jobs.run(size, command(data, output, *more))
        assert [each.code for each in ended] == [0] * size
        assert ended[0].out.count("A_bar") == 2
        assert all(each.out == each.err == "" for each in ended[1:])
        assert record(output) == (rows, confusion)
        assert json.loads(next(output.rglob("run.json")).read_text())["machine"]["processes"] == size
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "features").iterdir()}
    ended = launcher_of_jobs.run(2, command(data, tmp_path / "again"))
    assert "0 B of disk for features" in ended[0].err
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "features").iterdir()} == kept, "extracted once"
    ended = launcher_of_jobs.run(2, command(data, tmp_path / "again"))
    assert [each.code for each in ended] == [0, 0] and ended[0].out.count("A_bar") == 2


def test_stopped_killed_and_resumed(tmp_path: Path, data: Path, launcher_of_jobs: Any) -> None:
    launcher_of_jobs.alone(command(data, tmp_path / "one"))
    expected = record(tmp_path / "one")
    output = tmp_path / "several"
    ended = launcher_of_jobs.run(2, command(data, output), signals={1: (signal.SIGTERM, 2)})
    assert [each.code for each in ended] == [130, 130]
    state, progress = load_state(next(output.rglob("state.safetensors")))
    assert progress["classes_seen"] == 3, "the second evaluation"
    extractor = ExtractorFlags(stem_channels=(4,), width=4, grid=2)
    model = ModelFlags(preset="reservoir", groups=2, extractor=extractor).new_model()
    stream = Stream.of(load_dataset("folder", path=data), 0)
    method = CircleMethod(model.prepare(stream.dataset.image))
    method.learn(Task(*stream.view(stream.dataset.train, 0, 3)))
    assert same_state(state, method.state_dict())
    ended = launcher_of_jobs.run(2, command(data, output), signals={1: (signal.SIGKILL, 2)})
    assert ended[0].code == 1
    assert ended[0].err.splitlines()[-1].startswith("circle: error: process 0 of 2: process 1 ended; ")
    assert [each.code for each in launcher_of_jobs.run(3, command(data, output))] == [0] * 3
    assert record(output) == expected


def test_rivals_are_refused_by_one_voice(tmp_path: Path, data: Path, launcher_of_jobs: Any) -> None:
    first, second = launcher_of_jobs.run(2, command(data, tmp_path / "out", "--method", "circle", "finetune"))
    assert (first.code, second.code, second.err) == (1, 1, "")
    assert (
        first.err == "circle: error: method 'finetune': several processes run circle alone; start it without torchrun\n"
    )
    assert not (tmp_path / "out").exists()
    for more, message in (
        (("--tasks", "4"), "expected one of 1, 2, 3, 6"),
        (("--no-quantise",), "expect --quantise"),
        (("--time-limit", "0"), "time-limit 0: expected seconds"),
        (("--seeds", "x"), "seeds 'x'"),
        (("--timeout-seconds", "0"), "timeout-seconds 0: expected more than 0"),
    ):
        first, second = launcher_of_jobs.run(2, command(data, tmp_path / "out", *more))
        assert (first.code, second.code, second.err) == (1, 1, "")
        assert message in first.err.splitlines()[-1]
