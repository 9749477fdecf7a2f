"""The whole stream of CIFAR-100 with `fast`, twenty evaluations included, in flops at the rate of a GEMM."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.clock import Clock
from benchmarks.limits import Machine
from benchmarks.rows import Row
from circle import CircleClassifier
from circle.ensemble import Group
from circle.statistics import Statistics

LEARNED, TESTED, CLASSES, TASKS = 50_000, 10_000, 100, 20
LIMIT = 60e12  # flops
REST = "all else"


def rows(machine: Machine) -> Iterator[Row]:
    """Noise instead of photographs: the time is the same."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (LEARNED, 32, 32, 3), dtype=np.uint8)
    labels = np.sort(np.arange(LEARNED) % CLASSES)
    tests = images[:TESTED]
    model = CircleClassifier.from_preset("fast")
    model.partial_fit(images[:64], labels[:64] * 0)  # calibration, which happens once for ever
    model = CircleClassifier.from_preset("fast")
    per_task = LEARNED // TASKS
    learner, tester = Clock("features", "statistics", REST), Clock("features", REST)
    for task in range(TASKS):
        part = slice(task * per_task, (task + 1) * per_task)
        with (
            learner.watching(Group, "features", "features"),
            learner.watching(Statistics, "update", "statistics"),
            learner.watching(Statistics, "flush", "statistics"),
            learner.part(REST),
        ):
            model.partial_fit(images[part], labels[part])
            for statistics in model.statistics_:
                statistics.flush()
        with tester.watching(Group, "features", "features"), tester.part(REST):
            model.predict(tests[: TESTED * (task + 1) // TASKS])
    learning, evaluating = sum(learner.seconds().values()), sum(tester.seconds().values())
    extracting, share = tester.seconds()["features"], 1 - learner.seconds()[REST] / learning
    yield Row(
        "whole stream",
        "fast: share of learning in features and statistics",
        f"{learning:.1f} s for {LEARNED:,} images",
        "all of it",
        share,
        ">= 0.8",
    )
    once = extracting * TESTED / sum(TESTED * (task + 1) // TASKS for task in range(TASKS))
    yield Row(
        "whole stream",
        "fast: evaluations that keep the features of test images (`--cache`)",
        f"{evaluating - extracting + once:.1f} s, of which {once:.1f} s for features",
        f"without: {evaluating:.1f} s",
        (evaluating - extracting + once) / evaluating,
    )
    total = (learning + evaluating) * machine.gemm
    yield Row(
        "whole stream",
        f"fast: {TASKS} tasks, {TASKS} evaluations",
        f"{learning + evaluating:.1f} s = {total / 1e12:.1f} Tflop at the GEMM rate",
        f"{LIMIT / 1e12:.0f} Tflop",
        total / LIMIT,
        "<= 1",
    )
