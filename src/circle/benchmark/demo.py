"""The demo: digits arrive two classes at a time; who still knows the first ones at the end?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
from torch import Tensor

from circle.baselines.finetune import FineTune
from circle.benchmark.metrics import StreamRecord, count_correct
from circle.data.digits import DigitsSplit, load_digits_images
from circle.data.tasks import split_tasks
from circle.learner import CircleClassifier
from circle.method import CircleMethod, Method, Task, TaskImages, predict

TASKS = 5
CIRCLE, CLASS_MEAN, NETWORK = "CIRCLE", "nearest class mean", "fine-tuned network"


@dataclass(frozen=True, eq=False)
class ContestantResult:
    """One contestant's counts, wall clock and size of what it learned, in bytes.

    ``learning_seconds`` and ``state_bytes`` are None where the contestant learns nothing of its own.
    """

    record: StreamRecord
    learning_seconds: float | None
    evaluation_seconds: float
    state_bytes: int | None


class ClassMeanView(CircleMethod):
    """CIRCLE's own statistics under another head: whatever CIRCLE has learned, this knows."""

    def learn(self, task: Task) -> None:
        """Only look again: the statistics are CIRCLE's and already hold this task."""
        # Not once at the start: an empty classifier has no statistics yet that a view could share.
        self.view = self.classifier.with_head("ncm")

    def scores(self, images: TaskImages) -> Tensor:
        return CircleMethod(self.view).scores(images)


@dataclass
class Run:
    """A contestant on its way through the tasks."""

    method: Method
    rows: list[np.ndarray] = field(default_factory=list)
    learning_seconds: float = 0.0
    evaluation_seconds: float = 0.0

    def advance(self, task: Task, test: Task, class_order: Sequence[int]) -> float:
        """Learn a task, then count right answers on the test images of all classes seen: their share."""
        start = perf_counter()
        self.method.learn(task)
        learned = perf_counter()
        predictions = predict(self.method, test.images)
        self.learning_seconds += learned - start
        self.evaluation_seconds += perf_counter() - learned
        self.rows.append(count_correct(test.labels, predictions, class_order))
        return float(self.rows[-1].sum() / len(test.labels))


def run_demo(
    seed: int = 0, on_task: Callable[[str, float], None] = lambda name, accuracy: None
) -> dict[str, ContestantResult]:
    """Class-incremental learning of the digits, 5 tasks of 2 classes, by three contestants in one run.

    Parameters
    ----------
    seed
        The models' seed; the class order is always that of ``class_order_seed=0``.
    on_task
        Called whenever a contestant has learned a task, with its name and its accuracy on all classes seen.

    Returns
    -------
    dict
        What came of each contestant, by name.
    """
    digits = load_digits_images()
    tasks = split_tasks(range(10), TASKS)
    classifier = CircleClassifier.from_preset("small", channels=1, seed=seed)
    network = FineTune(seed=seed)
    # The order counts: the class means are read from CIRCLE's statistics after CIRCLE has learned the task.
    runs = {
        CIRCLE: Run(CircleMethod(classifier)),
        CLASS_MEAN: Run(ClassMeanView(classifier)),
        NETWORK: Run(network),
    }
    _run_tasks(runs, tasks, digits, on_task)

    state_bytes = {CIRCLE: classifier.statistics_bytes, CLASS_MEAN: None, NETWORK: network.parameter_bytes}
    total = np.array([np.sum(digits.test_labels == label) for task in tasks for label in task])
    return {
        name: ContestantResult(
            record=StreamRecord(np.array(run.rows), total, tasks),
            learning_seconds=None if state_bytes[name] is None else run.learning_seconds,
            evaluation_seconds=run.evaluation_seconds,
            state_bytes=state_bytes[name],
        )
        for name, run in runs.items()
    }


def _run_tasks(
    runs: dict[str, Run], tasks: list[list[int]], digits: DigitsSplit, on_task: Callable[[str, float], None]
) -> None:
    """Bring every task to every contestant."""
    class_order = [label for task in tasks for label in task]
    for index, classes in enumerate(tasks):
        arriving = np.isin(digits.train_labels, classes)
        seen = np.isin(digits.test_labels, class_order[: (index + 1) * len(classes)])
        task = Task(digits.train_images[arriving], digits.train_labels[arriving])
        test = Task(digits.test_images[seen], digits.test_labels[seen])
        for name, run in runs.items():
            on_task(name, run.advance(task, test, class_order))
