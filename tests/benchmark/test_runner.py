"""The runner: one door for all methods, resumed to the same numbers, no looking back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from circle import BiRC2DConfig, CircleClassifier
from circle.baselines.finetune import FineTune, FineTuneConfig
from circle.benchmark import results
from circle.benchmark.features import FeatureStore
from circle.benchmark.runner import STATE, Plan, run_stream
from circle.data.datasets import Dataset
from circle.data.decode import ImageConfig
from circle.data.images import Images
from circle.data.tasks import Stream, boundaries
from circle.errors import CircleError
from circle.extractors import ParameterCount
from circle.method import CircleMethod, Method, Task

TINY = BiRC2DConfig(stem_channels=(3,), width=3, grid=2, moments=("mean",))


class Pictures(Images):
    """Six classes of coloured noise."""

    def __init__(self, per_class: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.labels = random.permutation(np.repeat(np.arange(6), per_class))
        tint = np.random.default_rng(99).integers(30, 220, (6, 1, 1, 3))[self.labels]
        self.pixels = np.clip(tint + random.normal(0, 60, (len(self.labels), 8, 8, 3)), 0, 255).astype(np.uint8)
        self.reads = 0

    def _fingerprint(self) -> str:
        return str(self.pixels.sum())

    def _read(self, indices: np.ndarray) -> np.ndarray:
        self.reads += len(indices)
        return self.pixels[indices]


@pytest.fixture
def stream() -> Stream:
    image = ImageConfig(height=8, width=8, channels=3)
    return Stream.of(Dataset("noise", list("abcdef"), image, Pictures(12, 0), Pictures(7, 1)), 0)


def circle_method(stream: Stream, seed: int = 0) -> CircleMethod:
    return CircleMethod(CircleClassifier(TINY, groups=2, seed=seed).prepare(stream.dataset.image))


def plan(*tasks: str, method: str = "circle", seed: int = 0) -> Plan:
    return Plan(method, method.upper(), None, tasks, seed, {"extractor": {"name": "birc2d"}})


METHODS = {
    "circle": circle_method,
    "finetune": lambda stream: FineTune(FineTuneConfig(epochs=2, width=4), seed=0),
}


def test_boundaries() -> None:
    assert boundaries(["2", "3"], 6) == [2, 3, 4, 6]
    assert boundaries(["3+3x1"], 6) == [3, 4, 5, 6]
    with pytest.raises(CircleError, match="expected one of 1, 2, 3, 6"):
        boundaries(["4"], 6)


def test_one_pass_serves_all_splits(stream: Stream, tmp_path: Path) -> None:
    together = run_stream(plan("1", "2", "3", "6"), stream, circle_method(stream), tmp_path / "all")
    finals = set()
    for split in ("1", "2", "3", "6"):
        alone = run_stream(plan(split), stream, circle_method(stream), tmp_path / split)
        assert np.array_equal(together.record(split).correct, alone.record(split).correct)
        finals.add(together.record(split).final_accuracy)
    assert len(finals) == 1, "the end does not depend on the way"
    assert len(together.record("6").accuracy_after_task) == 6
    assert together.record("6").final_accuracy > 0.5
    classifier = circle_method(stream).classifier
    assert together.info["parameters"]["learnable"] == 2 * classifier.head_config().numbers(
        6, classifier.groups_[0].size
    )


@pytest.mark.parametrize("name", METHODS)
def test_a_killed_run_ends_with_the_same_numbers(name: str, stream: Stream, tmp_path: Path) -> None:
    """The run is stopped after every single task, each time with a new method object, as after a kill."""
    reference = run_stream(plan("6", method=name), stream, METHODS[name](stream), tmp_path / "whole")
    folder = tmp_path / "pieces"
    for _ in range(20):
        rows = len(results.read_run(folder).rows) if (folder / results.INFO).exists() else 0
        count = [0]

        def die(count: list[int] = count) -> None:
            count[0] += 1
            if count[0] > 1:
                raise KeyboardInterrupt  # whatever: the process is gone

        method = METHODS[name](stream)
        evaluate = method.scores
        method.scores = lambda images, evaluate=evaluate, die=die: (die(), evaluate(images))[1]  # pyright: ignore
        try:
            run = run_stream(plan("6", method=name), stream, method, folder, save_seconds=0.0)
            break
        except KeyboardInterrupt:
            assert len(results.read_run(folder).rows) == rows + 1, "one more task each time"
    assert run.complete
    assert [row.correct for row in run.rows] == [row.correct for row in reference.rows]
    assert [row.samples for row in run.rows] == [row.samples for row in reference.rows]
    assert not (folder / STATE).exists()
    again = run_stream(plan("6", method=name), stream, METHODS[name](stream), folder)
    assert [row.correct for row in again.rows] == [row.correct for row in reference.rows], (
        "a finished run is not run again"
    )


def test_rows_after_the_last_state_are_made_anew(stream: Stream, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    calls: list[int] = []

    class Dying(CircleMethod):
        def learn(self, task: Task) -> None:
            calls.append(len(task.labels))
            if len(calls) == 4:
                raise KeyboardInterrupt
            super().learn(task)

    with pytest.raises(KeyboardInterrupt):
        run_stream(plan("6"), stream, Dying(circle_method(stream).classifier), folder, save_seconds=1e9)
    assert len(results.read_run(folder).rows) == 3
    run = run_stream(plan("6"), stream, circle_method(stream), folder)
    assert [row.classes_seen for row in run.rows] == [1, 2, 3, 4, 5, 6]
    assert [row.classes_seen for row in results.read_run(folder).rows] == [1, 2, 3, 4, 5, 6]


class Nosy:
    """Keeps what it was given and looks back."""

    classes: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.kept: list[Task] = []

    def learn(self, task: Task) -> None:
        for old in self.kept:
            old.images[:1]
        self.kept.append(task)
        self.classes = (*self.classes, *task.classes)  # pyright: ignore

    def scores(self, images: Any) -> Tensor:
        return torch.zeros(len(images), len(self.classes))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def parameter_count(self) -> ParameterCount:
        return ParameterCount()


def test_no_method_may_look_back(stream: Stream, tmp_path: Path) -> None:
    nosy = Nosy()
    assert isinstance(nosy, Method)
    with pytest.raises(CircleError, match="past task are gone"):
        run_stream(plan("2"), stream, nosy, tmp_path)
    with pytest.raises(CircleError, match="past task are gone"):
        np.asarray(nosy.kept[0].images)


def test_a_task_has_only_its_own_classes(stream: Stream, tmp_path: Path) -> None:
    seen: list[list[int]] = []

    class Watching(CircleMethod):
        def learn(self, task: Task) -> None:
            seen.append(sorted(set(task.labels.tolist())))
            super().learn(task)

    run_stream(plan("3"), stream, Watching(circle_method(stream).classifier), tmp_path)
    assert seen == [sorted(stream.order[start : start + 2]) for start in (0, 2, 4)]


def test_cached_features_give_the_same(stream: Stream, tmp_path: Path) -> None:
    plain = run_stream(plan("3"), stream, circle_method(stream), tmp_path / "plain")
    store = FeatureStore(tmp_path / "features")
    train, test = stream.dataset.train, stream.dataset.test
    for attempt in range(2):
        method = circle_method(stream)
        for images in (train, test):
            found = [store.group_features(group, images) for group in method.classifier.groups_]
            method.use_features(images, [parts for parts, _ in found], sum(seconds for _, seconds in found))
        train.reads = test.reads = 0  # pyright: ignore
        cached = run_stream(plan("3"), stream, method, tmp_path / f"cached{attempt}")
        assert [row.correct for row in cached.rows] == [row.correct for row in plain.rows]
        extraction = sum(store.group_features(group, train)[1] for group in method.classifier.groups_)
        assert cached.rows[-1].learning_seconds > extraction > 0, "the cache does not hide what extraction costs"
        assert train.reads == test.reads == 0, "no image is read once its features are there"  # pyright: ignore


def test_another_plan_in_the_same_folder_is_refused(stream: Stream, tmp_path: Path) -> None:
    run_stream(plan("3"), stream, circle_method(stream), tmp_path)
    with pytest.raises(CircleError, match="another seed"):
        run_stream(plan("3", seed=1), stream, circle_method(stream, 1), tmp_path)


def test_stopping_keeps_finished_tasks(stream: Stream, tmp_path: Path) -> None:
    asked = [0]

    def should_stop() -> bool:
        asked[0] += 1
        return asked[0] > 2

    run = run_stream(plan("6"), stream, circle_method(stream), tmp_path, should_stop=should_stop)
    assert len(run.rows) == 2
    assert len(run.record("6").accuracy_after_task) == 2, "what was reached can be reported"
    done = run_stream(plan("6"), stream, circle_method(stream), tmp_path)
    assert done.complete
    assert done.rows[1].correct == run.rows[1].correct
