"""An experiment run from Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from circle import BiRC2DConfig, CircleClassifier
from circle.benchmark import Progress, Run, StoppedError, read_runs, run
from circle.data.datasets import load_dataset
from circle.errors import CircleError
from circle.method import CircleMethod
from circle.report import write_report

TINY = CircleClassifier(BiRC2DConfig(stem_channels=(2,), width=2, grid=1, moments=("mean",)))


class Told(Progress):
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int]] = []
        self.runs: list[Run] = []
        self.images: set[str] = set()
        self.rows = self.ended = self.memory = 0

    def begin(self, label: str, seed: int) -> None:
        self.begun.append((label, seed))

    def needs(self, memory: int, disk: int, seconds: float | None) -> None:
        self.memory = memory

    def features(self, what: str, done: int, total: int) -> None:
        self.images.add(what)

    def row(self, row: Any, accuracy: float) -> None:
        self.rows += 1

    def end(self) -> None:
        self.ended += 1

    def finished(self, run: Run) -> None:
        self.runs.append(run)


def test_results_and_metrics_come_back_and_are_on_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits, told = load_dataset("digits").balanced_part(20), Told()
    asked: dict[str, Any] = {"tasks": [2, "4+6x1"], "classifier": TINY, "seeds": "0-1", "output": tmp_path / "out"}
    asked["cache"] = tmp_path / "features"
    runs = run(digits, **asked, progress=told)
    assert [each.info["seed"] for each in runs] == [0, 1] and runs == told.runs
    assert told.begun == [("CIRCLE fast, birc2d", 0), ("CIRCLE fast, birc2d", 1)] and told.ended == 2
    assert told.images == {"training", "test"} and told.memory > 0 and told.rows == sum(len(each.rows) for each in runs)
    for each in runs:
        assert each.record("2").final_accuracy == each.record("4+6x1").final_accuracy > 0.2
    assert [each.rows for each in read_runs([tmp_path / "out"])] == [each.rows for each in runs]
    assert TINY.seed == 0 and not hasattr(TINY, "classes_"), "the classifier given is left as it is"
    assert write_report(runs, tmp_path / "report").html.is_file()
    with monkeypatch.context() as patch:
        patch.setattr(CircleMethod, "learn", lambda *_: pytest.fail("what is on record is not done again"))
        again = run(digits, **asked)
    assert [each.rows for each in again] == [each.rows for each in runs]


def test_an_interruption_keeps_finished_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learn, learned = CircleMethod.learn, []

    def interrupted(self: CircleMethod, task: Any) -> None:
        learned.append(task)
        if len(learned) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        learn(self, task)

    with monkeypatch.context() as patch:
        patch.setattr(CircleMethod, "learn", interrupted)
        with pytest.raises(StoppedError):
            run("digits", tasks=5, classifier=TINY, images_per_class=5, output=tmp_path, cache=False)
    (stopped,) = read_runs([tmp_path])
    assert [row.classes_seen for row in stopped.rows] == [2, 4]
    (whole,) = run("digits", tasks=5, classifier=TINY, images_per_class=5, output=tmp_path, cache=False)
    assert whole.complete and [row.correct for row in whole.rows[:2]] == [row.correct for row in stopped.rows]


def test_images_of_ones_own(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    labels = np.repeat(["cat", "dog", "owl"], 10)
    np.savez(tmp_path / "pets.npz", x=random.integers(0, 255, (30, 8, 8, 3), dtype=np.uint8), y=labels)
    (mine,) = run(data=tmp_path / "pets.npz", tasks=3, classifier=TINY, output=tmp_path / "out", cache=False)
    assert sorted(mine.info["class_order"]) == ["cat", "dog", "owl"]
    assert mine.folder.parent == tmp_path / "out" / mine.info["dataset"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({}, "no data given: expected --data, a path to labelled images, or --dataset with a name"),
        ({"dataset": "digits", "method": "magic"}, "unknown method 'magic'"),
        ({"dataset": "digits", "seeds": "x"}, "seeds 'x': expected numbers such as 0-4"),
        ({"dataset": "digits", "time_limit": 0}, "expected seconds, more than 0"),
    ],
)
def test_bad_requests(asked: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CircleError, match=message):
        run(**{"tasks": 5, "output": tmp_path / "out", **asked})
    assert not (tmp_path / "out").exists()


def test_the_facades_are_cheap() -> None:
    program = "import sys, circle.benchmark, circle.report, circle.paper; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0, "PyTorch was imported before it was needed"
