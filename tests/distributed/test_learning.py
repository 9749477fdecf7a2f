"""Several processes make, bit for bit, the model file of one, whatever happens on the way."""

from __future__ import annotations

import re
import signal
import time
from os import kill
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from circle import CircleClassifier

SETTINGS = [
    *("--preset", "reservoir", "--extractor.stem-channels", "4", "--extractor.width", "4"),
    *("--extractor.grid", "2", "--image-size", "8"),
]
TILE = 16  # of the processes that the launcher starts


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """101 images, some of them more than once; the last class is seen by one process alone."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 5, 101)
    images = (random.integers(0, 120, (101, 8, 8)) + 25 * labels[:, None, None]).astype(np.uint8)
    for copy, original in ((50, 3), (90, 3), (81, 8), (9, 8)):
        images[copy], labels[copy] = images[original], labels[original]
    labels[100] = 5
    path = tmp_path_factory.mktemp("data") / "data.npz"
    np.savez(path, x=images, y=np.array(list("abcdef"))[labels])
    return path


@pytest.fixture(scope="module")
def reference(data: Path, launcher_of_jobs: Any) -> bytes:
    """The file that one process writes."""
    path = data.with_name("reference")
    ended = launcher_of_jobs.alone(["learn", path, data, *SETTINGS, "--groups", "3"])
    assert (ended.code, ended.err) == (0, "")
    return path.read_bytes()


@pytest.mark.parametrize(("size", "shard"), [(2, "data"), (4, "data"), (2, "groups")])
def test_the_file_is_that_of_one_process(
    tmp_path: Path, data: Path, reference: bytes, launcher_of_jobs: Any, size: int, shard: str
) -> None:
    model = tmp_path / "model"
    command = ["learn", model, data, "--shard", shard, "--checkpoint-seconds", "0"]
    ended = launcher_of_jobs.run(size, [*command, *SETTINGS, "--groups", "3"])
    assert [each.code for each in ended] == [0] * size
    assert ended[0].out == f"learned 101 images; {model} knows 6 classes from 101 images\n"
    assert [each.err for each in ended] == [""] * size
    assert [each.out for each in ended[1:]] == [""] * (size - 1)
    assert model.read_bytes() == reference
    stamp = model.stat().st_mtime_ns
    ended = launcher_of_jobs.run(size, command)
    assert "learned 0 images, 101 were known already" in ended[0].out
    assert model.stat().st_mtime_ns == stamp, "nothing new, nothing written"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


@pytest.mark.parametrize(
    ("size", "shard", "groups", "head"),
    [(3, "data", 2, "qda"), (3, "data", 2, "cosine_ncm"), (2, "groups", 2, "qda"), (3, "groups", 5, "slda")],
)
def test_more_images_and_heads_that_keep_more(
    tmp_path: Path, data: Path, launcher_of_jobs: Any, size: int, shard: str, groups: int, head: str
) -> None:
    """A process without images, images that the model knew, a matrix of each class, sums of unit vectors."""
    with np.load(data) as arrays:
        images, labels = arrays["x"], arrays["y"]
    one, several = tmp_path / "one", tmp_path / "several"
    for count, new in ((2, 2), (20, 18)):
        np.savez(tmp_path / "some.npz", x=images[:count], y=labels[:count])
        flags = [] if one.exists() else [*SETTINGS, "--groups", groups, "--head.name", head]
        launcher_of_jobs.alone(["learn", one, tmp_path / "some.npz", *flags])
        ended = launcher_of_jobs.run(size, ["learn", several, tmp_path / "some.npz", "--shard", shard, *flags])
        assert [each.code for each in ended] == [0] * size
        assert ended[0].out.startswith(f"learned {new} images")
        assert several.read_bytes() == one.read_bytes()


@pytest.mark.parametrize(("victim", "shard"), [(0, "data"), (1, "groups")])
def test_a_killed_process_ends_all_and_the_next_run_goes_on(
    tmp_path: Path, data: Path, reference: bytes, launcher_of_jobs: Any, victim: int, shard: str
) -> None:
    model = tmp_path / "model"
    command = ["learn", model, data, "--shard", shard, "--checkpoint-seconds", "0", *SETTINGS, "--groups", "3"]
    started = time.monotonic()
    ended = launcher_of_jobs.run(2, command, signals={victim: (signal.SIGKILL, 3)})
    assert time.monotonic() - started < 300, "nobody waits for the dead"
    survivor = ended[1 - victim]
    assert ended[victim].code == -signal.SIGKILL
    assert survivor.code == 1
    assert survivor.err.startswith(f"circle: error: process {1 - victim} of 2: process {victim} ended; ")
    assert "run the same command again to resume" in survivor.err and survivor.err.count("\n") == 1
    learned = CircleClassifier.load(model).samples_
    # Killed in the third round, after the second save: a save of what the first round brought, and one of the second.
    assert learned == (4 * TILE if shard == "data" else 2 * TILE)
    size = 3  # another number of processes may go on
    ended = launcher_of_jobs.run(size, command)
    assert [each.code for each in ended] == [0] * size
    assert f"learned {101 - learned:,} images, {learned:,} were known already" in ended[0].out
    assert model.read_bytes() == reference


def test_survivors_name_the_one_that_was_killed(tmp_path: Path, data: Path, launcher_of_jobs: Any) -> None:
    command = ["learn", tmp_path / "model", data, *SETTINGS]
    ended = launcher_of_jobs.run(4, command, signals={2: (signal.SIGKILL, 1)})
    assert [each.code for each in ended] == [1, 1, -signal.SIGKILL, 1]
    left = [each.err for each in ended if each.err]
    assert all(re.search("process(es)? [0-3][0-3, ]* ended; ", line) and line.count("\n") == 1 for line in left)
    # One that hears first of another survivor's leaving may name that one alone: connections close in any order.
    assert any(re.search("process(es)? [0-3, ]*2[0-3, ]* ended; ", line) for line in left)


def test_one_that_hangs_is_given_up(tmp_path: Path, data: Path, launcher_of_jobs: Any) -> None:
    command = ["learn", tmp_path / "model", data, "--timeout-seconds", "8", *SETTINGS]
    children = launcher_of_jobs.start(3, command, signals={2: (signal.SIGSTOP, 2)})
    first, second = launcher_of_jobs.wait(children[:2])
    kill(children[2], signal.SIGKILL)
    launcher_of_jobs.wait(children[2:])
    waited = ["gave no answer for 8 s" in each.err for each in (first, second)]
    assert any(waited), "the other may see that this one has left before its own time is up"
    for rank, each in enumerate((first, second)):
        assert each.code == 1 and each.err.count("\n") == 1
        assert waited[rank] or f"process {1 - rank} ended" in each.err


def test_a_request_to_stop_any_of_them_stops_all_and_keeps_everything(
    tmp_path: Path, data: Path, reference: bytes, launcher_of_jobs: Any
) -> None:
    model = tmp_path / "model"
    command = ["learn", model, data, *SETTINGS, "--groups", "3"]
    for number, learned in ((signal.SIGTERM, 2 * TILE), (signal.SIGINT, 4 * TILE)):
        ended = launcher_of_jobs.run(2, command, signals={1: (number, 1)})
        assert [each.code for each in ended] == [130, 130]
        assert ended[0].out.startswith("stopped: learned 32 images")
        assert ended[0].err == ended[1].err == ended[1].out == ""
        assert CircleClassifier.load(model).samples_ == learned
    assert launcher_of_jobs.alone(command).code == 0, "one process may go on"
    assert model.read_bytes() == reference


@pytest.mark.parametrize("shard", ["data", "groups"])
def test_unreadable_images(tmp_path: Path, launcher_of_jobs: Any, shard: str) -> None:
    photos, model, one = tmp_path / "photos", tmp_path / "model", tmp_path / "one"
    random = np.random.default_rng(1)
    for label in "ab":
        (photos / label).mkdir(parents=True)
        for number in range(5):
            pixels = random.integers(0, 255, (8, 8, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(photos / label / f"{number}.png")
    (photos / "b" / "1.png").write_bytes(b"not an image")
    (photos / "b" / "3.png").unlink()
    (photos / "b" / "3.png").symlink_to("nowhere")
    command = ["learn", model, photos, "--shard", shard, *SETTINGS, "--groups", "2"]
    ended = launcher_of_jobs.run(2, [*command, "--strict"])
    assert [each.code for each in ended] == [1, 1]
    assert f"{photos}/b/" in ended[0].err and ended[0].err.count("\n") == 1
    assert ended[1].err == ended[0].out == ""
    assert not model.exists()
    ended = launcher_of_jobs.run(2, command)
    assert [each.code for each in ended] == [0, 0]
    assert "learned 8 images, 2 unreadable were skipped" in ended[0].out
    assert ended[0].err.count("skipped") == 2 and ended[1].err == ""
    launcher_of_jobs.alone(["learn", one, photos, *SETTINGS, "--groups", "2"])
    assert model.read_bytes() == one.read_bytes()


def test_other_data_on_another_machine_is_refused(tmp_path: Path, launcher_of_jobs: Any) -> None:
    for rank in range(2):
        for name in ("a", "b"):
            (tmp_path / str(rank) / name).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(tmp_path / str(rank) / name / f"{rank}.png")
    first, second = launcher_of_jobs.run(2, ["learn", tmp_path / "model", tmp_path / "{rank}", *SETTINGS])
    assert (first.code, second.code, second.err) == (1, 1, "")
    assert "process 1 of 2 finds other images (2) there than process 0 (2)" in first.err
    assert "circle merge" in first.err and first.err.count("\n") == 1
    assert not (tmp_path / "model").exists()


def test_what_is_wrong_is_said_once_by_rank_zero(tmp_path: Path, data: Path, launcher_of_jobs: Any) -> None:
    model = tmp_path / "model"
    for more, message in (
        ([tmp_path / "nowhere"], "nowhere"),
        ([data, "--shard", "groups", "--groups", "1"], "2 processes for 1 group"),
        ([data, "--no-quantise"], "expect --quantise"),
        ([data, "--grups", "2"], "grups"),
        ([data, "--timeout-seconds", "0"], "expected more than 0"),
    ):
        first, second = launcher_of_jobs.run(2, ["learn", model, *more])
        assert first.code == second.code != 0
        assert message in first.err and first.err.count("\n") == 1
        assert second.err == ""
        assert not model.exists()
