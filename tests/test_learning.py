"""Teaching survives kill -9 at any moment: nothing is lost that was saved, and nothing is counted twice."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from os import kill
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from circle import CircleClassifier
from circle import learning as teaching
from circle.cli import run
from circle.data.user_images import open_images
from circle.errors import CircleError
from circle.learning import LearningProgress, teach

KILLS = 24
IMAGES = 160
TILE = 16  # of the tests: a small one shows the same with fewer images
FAST = [
    *("--preset", "reservoir", "--extractor.stem-channels", "4", "--extractor.width", "4"),
    *("--extractor.grid", "2", "--image-size", "16"),
]

# Imports once and forks for every run, so that a run starts at once and a kill falls on its work, not on imports.
# Before that it learns all once itself, in larger tiles, and what extractors need to know is known to all that follow.
# It waits for a second line before it collects the child, whose number therefore cannot be given to another process.
LAUNCHER = """
import io, os, sys
from contextlib import redirect_stdout
import circle.learning
from circle.cli import run
with redirect_stdout(io.StringIO()):
    code = run(sys.argv[1:])
print(code, flush=True)
circle.learning.IMAGES_PER_TILE = 16
for line in sys.stdin:
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(run(line.split("\\t")[:-1]))
    print(child, flush=True)
    sys.stdin.readline()
    print(os.waitpid(child, 0)[1], flush=True)
"""


@pytest.fixture
def data(tmp_path: Path, make_stream: Any) -> Path:
    images, labels = make_stream(IMAGES)
    path = tmp_path / "data.npz"
    np.savez(path, x=images, y=np.array(["red", "green", "blue", "yellow"])[labels])
    return path


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    return tmp_path / "reference"


@pytest.fixture
def launcher(reference: Path, data: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, "learn", str(reference), str(data), *FAST],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert int(process.stdout.readline()) == 0
    yield process
    process.kill()
    process.communicate()


def tell(launcher: subprocess.Popen[str], line: str) -> str:
    assert launcher.stdin is not None
    assert launcher.stdout is not None
    launcher.stdin.write(line + "\n")
    launcher.stdin.flush()
    return launcher.stdout.readline()


def test_killed_at_random_moments(tmp_path: Path, data: Path, reference: Path, launcher: subprocess.Popen[str]) -> None:
    chance = random.Random(0)
    kills = finished = 0
    longest = float("inf")  # of a run that was not killed: the first is not, so that kills fall into the work anywhere
    moments: list[int] = []
    model = tmp_path / "model0"
    while kills < KILLS or not finished:
        command = ["learn", str(model), str(data), *([] if model.exists() else FAST), "--checkpoint-seconds", "0"]
        started = time.monotonic()
        child = int(tell(launcher, "\t".join(command) + "\t"))
        if finished and kills < KILLS:
            time.sleep(chance.uniform(0.0, longest))
            kill(child, signal.SIGKILL)
        status = int(tell(launcher, "collect"))
        if status == signal.SIGKILL:
            kills += 1
            moments.append(CircleClassifier.load(model).samples_ if model.exists() else 0)
        else:
            assert status == 0
            assert model.read_bytes() == reference.read_bytes(), f"differs after {kills} kills"
            finished += 1
            longest = min(longest, time.monotonic() - started)
            model = tmp_path / f"model{finished}"
    assert any(0 < moment < IMAGES for moment in moments), "some kills must fall in the middle of the work"
    # The next run of a killed one removes what it left; the last kill may have no next run.
    left = [path.name for path in tmp_path.iterdir() if path.name.endswith(".tmp")]
    assert [name for name in left if not name.startswith(f".{model.name}.")] == []


def test_reports_and_stops(tmp_path: Path, data: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teaching, "IMAGES_PER_TILE", TILE)
    seen: list[int] = []

    def report(lesson: LearningProgress) -> None:
        seen.append(lesson.looked_at)

    model = tiny(image_size=16)
    lesson = teach(tmp_path / "m", open_images(data), model, should_stop=lambda: len(seen) >= 2, report=report)
    assert lesson.stopped
    assert lesson.learned == seen[-1] == CircleClassifier.load(tmp_path / "m").samples_
    assert 0 < lesson.learned < lesson.total


def test_checkpoints_are_no_more_frequent_than_asked(
    tmp_path: Path, data: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teaching, "IMAGES_PER_TILE", TILE)
    saves: list[float] = []
    monkeypatch.setattr(CircleClassifier, "save", lambda self, path: saves.append(time.monotonic()))
    teach(tmp_path / "m", open_images(data), tiny(image_size=16), checkpoint_seconds=1e9)
    assert len(saves) == 1, "only the one at the end"
    teach(tmp_path / "m", open_images(data), tiny(image_size=16), checkpoint_seconds=0.0)
    assert len(saves) > 5


def test_labels_of_another_kind_are_refused_at_once(tmp_path: Path, data: Path, tiny: Any, make_stream: Any) -> None:
    images, labels = make_stream(10)
    model = tiny(image_size=16).partial_fit(images, labels)
    before = model.copy()
    with pytest.raises(CircleError, match="mixed types"):
        teach(tmp_path / "m", open_images(data), model)
    assert model.statistics_ == before.statistics_
    assert not (tmp_path / "m").exists()


def test_classes_that_do_not_fit_are_refused_before_the_first_image(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The source names its classes, so what each of them needs is known before anything is learned."""
    monkeypatch.setattr("circle.machine.available_memory", lambda: 1000)
    path = tmp_path / "model.circle"
    assert run(["learn", str(path), str(data), *FAST, "--head.name", "qda"]) == 1
    message = capsys.readouterr().err
    assert message.startswith("circle: error: second moments of 4 classes with ")
    assert "slda" in message and message.count("\n") == 1
    assert not path.exists()
    assert run(["learn", str(path), str(data), *FAST]) == 0
