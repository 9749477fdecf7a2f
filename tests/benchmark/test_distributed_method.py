"""CIRCLE through the benchmark by several processes: rows, confusions and state are those of one."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from circle.benchmark.results import load_state, read_runs, same_state
from circle.cli.flags import ExtractorFlags, ModelFlags
from circle.data.datasets import load_dataset
from circle.data.tasks import Stream
from circle.method import CircleMethod, Task

SETTINGS = [
    *("--preset", "reservoir", "--extractor.stem-channels", "4", "--extractor.width", "4"),
    *("--extractor.grid", "2", "--groups", "3"),
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
    where = ["--data", data, "--output", output, "--cache", cache]
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
    parameters = read_runs([tmp_path / "one"])[0].info["parameters"]
    assert [seen for seen, _, _ in rows] == [2, 3, 4, 6]
    assert 0 < sum(rows[-1][1]) < len(load_dataset("folder", path=data).test), "some are right, some are wrong"
    by_data, by_groups = ["--shard", "data"], ["--shard", "groups"]
    for size, more in ((2, []), (4, [*by_data, "--no-cache"]), (2, by_groups), (3, [*by_groups, "--no-cache"])):
        output = tmp_path / f"by-{size}{''.join(more)}"
        ended = launcher_of_jobs.run(size, command(data, output, *more))
        assert [each.code for each in ended] == [0] * size
        assert ended[0].out.count("A_bar") == 2
        assert all(each.out == each.err == "" for each in ended[1:])
        assert record(output) == (rows, confusion)
        (run,) = read_runs([output])
        assert run.info["machine"]["processes"] == size
        assert run.info["parameters"] == parameters
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "features").iterdir()}
    ended = launcher_of_jobs.run(2, command(data, tmp_path / "again"))
    assert "0 B of disk for features" in ended[0].err
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "features").iterdir()} == kept, "extracted once"
    ended = launcher_of_jobs.run(2, command(data, tmp_path / "again"))
    assert [each.code for each in ended] == [0, 0] and ended[0].out.count("A_bar") == 2


@pytest.mark.parametrize("shard", ["data", "groups"])
def test_stopped_killed_and_resumed(tmp_path: Path, data: Path, launcher_of_jobs: Any, shard: str) -> None:
    launcher_of_jobs.alone(command(data, tmp_path / "one"))
    expected = record(tmp_path / "one")
    output = tmp_path / "several"
    shared = command(data, output, "--shard", shard)
    ended = launcher_of_jobs.run(2, shared, signals={1: (signal.SIGTERM, 2)})
    assert [each.code for each in ended] == [130, 130]
    state, progress = load_state(next(output.rglob("state.safetensors")))
    assert progress["classes_seen"] == 3, "the second evaluation"
    extractor = ExtractorFlags(stem_channels=(4,), width=4, grid=2)
    model = ModelFlags(preset="reservoir", groups=3, extractor=extractor).new_model()
    stream = Stream.of(load_dataset("folder", path=data), 0)
    method = CircleMethod(model.prepare(stream.dataset.image))
    method.learn(Task(*stream.view(stream.dataset.train, 0, 3)))
    assert same_state(state, method.state_dict())
    ended = launcher_of_jobs.run(2, shared, signals={1: (signal.SIGKILL, 2)})
    assert ended[0].code == 1
    assert ended[0].err.splitlines()[-1].startswith("circle: error: process 0 of 2: process 1 ended; ")
    assert [each.code for each in launcher_of_jobs.run(3, shared)] == [0] * 3
    assert record(output) == expected
    assert not [*output.rglob("state*")] and len([*output.rglob("*.tmp")]) == 0


def test_rivals_are_refused_by_rank_zero(tmp_path: Path, data: Path, launcher_of_jobs: Any) -> None:
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
        assert not [*(tmp_path / "out").rglob("run.json")]
    first, *others = launcher_of_jobs.run(4, command(data, tmp_path / "new", "--shard", "groups"))
    assert [each.code for each in (first, *others)] == [1] * 4
    message = "circle: error: 4 processes for 3 groups: expected at least as many groups, or --shard data\n"
    assert [first.err, *(each.err for each in others)] == [message, "", "", ""]
    assert not (tmp_path / "new").exists()


def test_other_data_on_another_machine_is_refused(tmp_path: Path, data: Path, launcher_of_jobs: Any) -> None:
    with np.load(data) as arrays:
        for rank in range(2):
            np.savez(tmp_path / f"{rank}.npz", x=arrays["x"] + np.uint8(rank), y=arrays["y"])
    first, second = launcher_of_jobs.run(2, command(tmp_path / "{rank}.npz", tmp_path / "out"))
    assert (first.code, second.code, second.err) == (1, 1, "")
    assert "process 1 of 2 finds other images than process 0" in first.err and first.err.count("\n") == 1
