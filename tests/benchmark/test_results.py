"""Records of runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from circle.benchmark import results
from circle.benchmark.results import Row, Run
from circle.cli.bench_shared import summaries
from circle.errors import CircleError

INFO = {"class_order": list("abcd"), "test_images": [10, 10, 20, 20], "label": "X", "tasks": ["2", "4"], "seed": 0}
ROWS = [
    Row(1, [9, 0, 0, 0], 50, 1.0, 0.5),
    Row(2, [8, 9, 0, 0], 100, 2.0, 1.0),
    Row(3, [8, 8, 18, 0], 150, 3.0, 1.5),
    Row(4, [7, 8, 17, 20], 200, 4.0, 2.0),
]


def write(folder: Path, rows: list[Row]) -> Path:
    folder.mkdir(parents=True)
    results.write_info(folder, INFO)
    for row in rows:
        results.append_row(folder, row)
    return folder


def test_one_run_several_splits(tmp_path: Path) -> None:
    run = results.read_run(write(tmp_path / "r", ROWS))
    assert run.complete
    halves, singles = run.record("2"), run.record("4")
    assert halves.accuracy_after_task.tolist() == [17 / 20, 52 / 60]
    assert singles.accuracy_after_task.tolist() == [9 / 10, 17 / 20, 34 / 40, 52 / 60]
    assert halves.tasks == (("a", "b"), ("c", "d"))
    assert run.record("2+2x1").correct.shape == (3, 4)
    assert run.seconds("2") == [(2.0, 1.0), (4.0, 2.0)]


def test_cost_growth(tmp_path: Path) -> None:
    run = results.read_run(write(tmp_path / "r", ROWS))
    assert run.cost_growth("4") == 1.0
    run.rows[-1] = Row(4, [7, 8, 17, 20], 250, 6.0, 2.0)  # 3 s for 100 images instead of 1 s for 50
    assert run.cost_growth("4") == pytest.approx(1.5)
    assert run.cost_growth("2") == pytest.approx((4.0 / 150) / (2.0 / 100))


def test_what_a_stopped_run_reached(tmp_path: Path) -> None:
    run = results.read_run(write(tmp_path / "r", ROWS[:3]))
    assert not run.complete
    assert run.record("4").accuracy_after_task.tolist() == [9 / 10, 17 / 20, 34 / 40]
    assert np.array_equal(run.record("2").correct, [[8, 9]])
    with pytest.raises(CircleError, match="no rows for the split 1"):
        run.record("1")
    assert [split for split in ("1", "2", "4") if run.reached(split)] == ["2", "4"]
    earlier = results.read_run(write(tmp_path / "s", ROWS[:1]))
    assert [line.split(":")[0] for line in summaries(earlier)] == ["X, seed 0, T = 4"]


def test_a_line_cut_short_by_a_kill_is_left_out(tmp_path: Path) -> None:
    folder = write(tmp_path / "r", ROWS)
    path = folder / results.ROWS
    path.write_text(path.read_text()[:-30])
    assert len(results.read_run(folder).rows) == 3
    path.write_text("garbage\n" + path.read_text())
    with pytest.raises(CircleError, match="line 1"):
        results.read_run(folder)


def test_reading_many(tmp_path: Path) -> None:
    write(tmp_path / "a" / "one", ROWS)
    write(tmp_path / "a" / "two", ROWS[:1])
    write(tmp_path / "a" / "none", [])
    assert len(results.read_runs([tmp_path, tmp_path / "a"])) == 2
    with pytest.raises(CircleError, match="no such folder"):
        results.read_runs([tmp_path / "missing"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(CircleError, match="no results found"):
        results.read_runs([tmp_path / "empty"])
    (tmp_path / "a" / "one" / results.INFO).write_text("{")
    with pytest.raises(CircleError, match="not a readable run record"):
        results.read_runs([tmp_path])


def test_environment_is_plain_data() -> None:
    facts = json.loads(json.dumps(results.environment()))
    assert facts["versions"]["torch"]
    assert facts["machine"]["cores"] >= 1
    assert results.peak_memory_bytes() > 10_000_000
    assert Run(Path(), {"class_order": ["a"]}, []).complete is False
