"""The whole stream of CIFAR-100 with `fast`, twenty evaluations included, in flops at the rate of a GEMM."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.clock import Clock
from benchmarks.images import cifar_or_noise
from benchmarks.limits import Machine
from benchmarks.rows import Row
from circle import CircleClassifier
from circle.benchmark.features import FeatureStore
from circle.data.images import ArrayImages
from circle.data.tasks import Stream
from circle.ensemble import Group
from circle.method import CircleMethod, Task, predict
from circle.statistics import Statistics

TASKS = 20
LIMIT = 60e12  # flops
PARTS = READING, FEATURES, STATISTICS, REST = "reading", "features", "statistics", "all else"


def learn(method: CircleMethod, task: Task, clock: Clock) -> None:
    with (
        clock.watching(ArrayImages, "_read", READING),
        clock.watching(Group, "features", FEATURES),
        clock.watching(Statistics, "update", STATISTICS),
        clock.watching(Statistics, "flush", STATISTICS),
        clock.part(REST),
    ):
        method.learn(task)


def keeping(model: CircleClassifier, stream: Stream, folder: Path) -> CircleMethod:
    """A method that finds the features of the test images in a store, as `circle bench run` does by default."""
    method, test = CircleMethod(model), stream.dataset.test
    store = FeatureStore(folder)
    method.use_features(test, [store.group_features(group, test)[0] for group in model.groups_])
    return method


def rows(machine: Machine) -> Iterator[Row]:
    dataset, words = cifar_or_noise()
    stream, classes = Stream.of(dataset, 0), len(dataset.classes)
    model = CircleClassifier.from_preset("fast")
    model.prepare(dataset.image)  # calibration, which happens once for ever
    method = CircleMethod(model)
    learner, tester, keeper = Clock(*PARTS), Clock(*PARTS), Clock(FEATURES, REST)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with keeper.part(FEATURES):  # computed and written, once for all evaluations
            keeping(model, stream, folder)
        for task in range(TASKS):
            start, end = task * classes // TASKS, (task + 1) * classes // TASKS
            learn(method, Task(*stream.view(dataset.train, start, end)), learner)
            tests = stream.view(dataset.test, 0, end)[0]
            kept = keeping(model.copy(), stream, folder)  # a copy has to make the closed form anew
            with (
                tester.watching(ArrayImages, "_read", READING),
                tester.watching(Group, "features", FEATURES),
                tester.part(REST),
            ):
                answers = predict(method, tests)
            with keeper.part(REST):
                same = predict(kept, tests)
            assert same == answers
    learning, evaluating, keeping_them = (sum(each.seconds().values()) for each in (learner, tester, keeper))
    times, found = learner.seconds(), tester.seconds()
    yield Row(
        "whole stream",
        f"fast: share of learning in features and statistics; {words}",
        f"{learning:.1f} s for {len(dataset.train):,} images, of which {times[READING]:.1f} s for reading them",
        "all of it",
        (times[FEATURES] + times[STATISTICS]) / learning,
        ">= 0.8",
    )
    yield Row(
        "whole stream",
        f"fast: {TASKS} evaluations, features of test images kept on disk (the default of `circle bench run`)",
        f"{keeping_them:.1f} s, of which {keeper.seconds()[FEATURES]:.1f} s to extract and write them",
        f"extracted anew each time: {evaluating:.1f} s, of which {found[FEATURES]:.1f} s for features",
        keeping_them / evaluating,
    )
    for how, seconds in (("extracted anew each time", evaluating), ("kept", keeping_them)):
        total = (learning + seconds) * machine.gemm
        yield Row(
            "whole stream",
            f"fast: {TASKS} tasks, {TASKS} evaluations, test features {how}; {words}",
            f"{learning + seconds:.1f} s = {total / 1e12:.1f} Tflop at the GEMM rate",
            f"{LIMIT / 1e12:.0f} Tflop",
            total / LIMIT,
            "<= 1",
        )
