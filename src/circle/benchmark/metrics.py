"""What a class-incremental run is judged by, from integer counts of right answers.

Notation: tasks t = 0 .. T-1 arrive in turn; class c, counted in class order, belongs to task k(c). After
every task the method is tested, without being told the task, on all test images of the classes seen so far:

    correct[t, c] = right answers on class c after task t        total[c] = test images of class c
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

import numpy as np

from circle.errors import CircleError
from circle.labels import plain_labels

# The one-line texts that reports print beside the numbers; the properties of these names state the equations.
DEFINITIONS: dict[str, str] = {
    "accuracy_after_task": "share of right answers on the test images of all classes seen so far",
    "average_incremental_accuracy": "mean over the tasks of the accuracy after each",
    "final_accuracy": "accuracy after the last task, on all classes",
    "first_task_accuracy": "share of right answers on the first task's test images, among all classes seen",
    "per_task_accuracy": "share of right answers on one task's test images, among all classes seen",
    "forgetting": "mean over all tasks but the last of the best earlier accuracy on it minus the final one",
    "per_class_accuracy": "share of right answers on one class's test images, among all classes seen",
}


@dataclass(frozen=True, eq=False)
class StreamRecord:
    """The counts of one run and every metric that follows from them.

    Parameters
    ----------
    correct
        Integers [T, C], right answers on class c (position in class order) after task t; 0 where c is yet to come.
    total
        Integers [C], test images of each class.
    tasks
        The classes of each task, in class order (what ``split_tasks`` returns); tasks may differ in size.

    Examples
    --------
    >>> correct, total = np.array([[8, 10, 0], [7, 8, 5]]), np.array([10, 10, 20])
    >>> record = StreamRecord(correct, total, [["cat", "dog"], ["owl"]])
    >>> record.accuracy_after_task
    array([0.9, 0.5])
    >>> record.average_incremental_accuracy, record.final_accuracy, round(record.forgetting, 3)
    (0.7, 0.5, 0.15)
    """

    correct: np.ndarray
    total: np.ndarray
    tasks: Sequence[Sequence[Hashable]]

    def __post_init__(self) -> None:
        # A frozen record of its own: later changes to the caller's arrays or lists must not reach it.
        object.__setattr__(self, "correct", _counts(self.correct, "correct"))
        object.__setattr__(self, "total", _counts(self.total, "total"))
        object.__setattr__(self, "tasks", tuple(tuple(task) for task in self.tasks))
        self._check()

    def _check(self) -> None:
        sizes = [len(task) for task in self.tasks]
        if not sizes or 0 in sizes:
            found = ", ".join(map(str, sizes)) or "no"
            raise CircleError(f"tasks of {found} classes: expected at least one task and one class in each")
        if len(set(self.class_order)) != len(self.class_order):
            raise CircleError("a class appears in two tasks: expected every class once")
        expected = (len(sizes), sum(sizes))
        if self.correct.shape != expected or self.total.shape != expected[1:]:
            raise CircleError(
                f"correct of shape {list(self.correct.shape)} and total of shape {list(self.total.shape)}: "
                f"expected {list(expected)} and {list(expected[1:])} for these tasks"
            )
        if (self.total == 0).any():
            raise CircleError(f"class {self.class_order[int(np.argmin(self.total))]!r} has no test images")
        if (self.correct > self.total).any():
            raise CircleError("more right answers than test images")
        if self.correct[~self.seen].any():
            # A method scores only classes it has seen: this means columns in another order than the tasks'.
            raise CircleError("right answers on a class before its task: expected the columns in class order")

    @property
    def class_order(self) -> tuple[Hashable, ...]:
        """All classes in the order of the columns of ``correct``."""
        return tuple(label for task in self.tasks for label in task)

    @cached_property
    def task_of_class(self) -> np.ndarray:
        """k(c): int [C], the task that brings each class."""
        return np.repeat(np.arange(len(self.tasks)), [len(task) for task in self.tasks])

    @cached_property
    def seen(self) -> np.ndarray:
        """bool [T, C]: k(c) <= t, class c has been seen after task t."""
        return self.task_of_class[None, :] <= np.arange(len(self.tasks))[:, None]

    @cached_property
    def accuracy_after_task(self) -> np.ndarray:
        """A_t = sum_{c : k(c) <= t} correct[t, c] / sum_{c : k(c) <= t} total[c]. Shape [T]."""
        return self.correct.sum(axis=1) / (self.seen * self.total).sum(axis=1)

    @property
    def average_incremental_accuracy(self) -> float:
        """(1 / T) sum_t A_t."""
        return fmean(self.accuracy_after_task.tolist())

    @property
    def final_accuracy(self) -> float:
        """A_{T-1}."""
        return float(self.accuracy_after_task[-1])

    @cached_property
    def per_task_accuracy(self) -> np.ndarray:
        """a[t, k] = sum_{c : k(c) = k} correct[t, c] / sum_{c : k(c) = k} total[c].

        Shape [T, T], NaN for k > t: the task is yet to come.
        """
        membership = self.task_of_class[:, None] == np.arange(len(self.tasks))[None, :]
        accuracy = (self.correct @ membership) / (self.total @ membership)
        accuracy[np.triu_indices(len(self.tasks), 1)] = np.nan
        return accuracy

    @property
    def first_task_accuracy(self) -> np.ndarray:
        """a[t, 0]: the first task over time. Shape [T]."""
        return self.per_task_accuracy[:, 0]

    @property
    def forgetting(self) -> float:
        """(1 / (T-1)) sum_{k < T-1} (max_{k <= t < T-1} a[t, k] - a[T-1, k]); 0 for a single task.

        Negative where later tasks improved earlier ones: the best is taken over the past alone.
        """
        accuracy = self.per_task_accuracy
        if len(accuracy) == 1:
            return 0.0
        best = np.nanmax(accuracy[:-1, :-1], axis=0)
        return fmean((best - accuracy[-1, :-1]).tolist())

    @cached_property
    def per_class_accuracy(self) -> np.ndarray:
        """correct[t, c] / total[c]. Shape [T, C], NaN where c is yet to come."""
        return np.where(self.seen, self.correct / self.total, np.nan)


RELIABILITY_BINS = 15  # of equal width, the usual number


class Reliability:
    """Whether answers are right as often as their probabilities say, from counts in bins of equal width:

        ECE = sum_b (n_b / N) |a_b - p_b|

    where bin b holds the n_b of N images whose largest probability lies in it, p_b is the mean of those probabilities
    and a_b the share of right answers among them. A bin holds its lower edge, and the last one 1 as well.

    Parameters
    ----------
    bins : int
        How many, of equal width.

    Attributes
    ----------
    images, correct : ndarray
        Int64 [bins]: images, and right answers among them.
    confidence : ndarray
        Float64 [bins]: the sum of the largest probabilities.

    Examples
    --------
    >>> found = Reliability()
    >>> for probability, right in [(0.97, True), (0.95, True), (0.51, False), (0.51, True)]:
    ...     found.add(probability, right)
    >>> round(found.mean_confidence, 3), round(found.expected_calibration_error, 3)
    (0.735, 0.025)
    """

    def __init__(self, bins: int = RELIABILITY_BINS) -> None:
        self.images, self.correct = np.zeros(bins, np.int64), np.zeros(bins, np.int64)
        self.confidence = np.zeros(bins)

    def add(self, probability: float, right: bool) -> None:
        """Count an image by its largest probability."""
        place = min(int(probability * len(self.images)), len(self.images) - 1)
        self.images[place] += 1
        self.correct[place] += right
        self.confidence[place] += probability

    @property
    def mean_confidence(self) -> float:
        """The mean of the largest probabilities; 0 without images."""
        return float(self.confidence.sum() / max(1, self.images.sum()))

    @property
    def expected_calibration_error(self) -> float:
        """ECE, 0 to 1; 0 without images."""
        return float(np.abs(self.correct - self.confidence).sum() / max(1, self.images.sum()))

    def rows(self) -> list[tuple[float, float, int, float, float]]:
        """(lower edge, upper edge, images, mean probability, accuracy) of each bin that has images."""
        bins = len(self.images)
        return [
            (place / bins, (place + 1) / bins, int(number), float(total / number), float(right / number))
            for place, (number, total, right) in enumerate(zip(self.images, self.confidence, self.correct, strict=True))
            if number
        ]


def expected_calibration_error(probabilities: np.ndarray, right: np.ndarray, bins: int = RELIABILITY_BINS) -> float:
    """ECE of :class:`Reliability` from probabilities [N, C], or the largest of each image [N], and right answers [N].

    Parameters
    ----------
    probabilities : ndarray
        What ``predict_proba`` gives, or its largest value for each image.
    right : ndarray
        Bool [N]: whether the most probable class is the right one.
    bins : int
        How many, of equal width.

    Examples
    --------
    >>> round(expected_calibration_error(np.array([[0.8, 0.2], [0.1, 0.9]]), np.array([True, False])), 3)
    0.55
    """
    found = Reliability(bins)
    for row, answer in zip(np.asarray(probabilities), np.asarray(right), strict=True):
        found.add(float(np.max(row)), bool(answer))
    return found.expected_calibration_error


def count_correct(
    labels: Iterable[Hashable], predictions: Iterable[Hashable], class_order: Sequence[Hashable]
) -> np.ndarray:
    """One row of ``correct``: right answers on each class, int64 [C] in class order.

    >>> count_correct(["cat", "dog", "cat"], ["cat", "cat", "cat"], ["dog", "cat"])
    array([0, 2])
    """
    position = {label: index for index, label in enumerate(class_order)}
    counts = np.zeros(len(class_order), dtype=np.int64)
    for label, prediction in zip(plain_labels(labels), plain_labels(predictions), strict=True):
        counts[position[label]] += label == prediction
    return counts


def _counts(values: object, what: str) -> np.ndarray:
    """A read-only int64 copy; fractions and negative numbers are no counts."""
    array = np.asarray(values)
    if not np.issubdtype(array.dtype, np.integer) or (array < 0).any():
        raise CircleError(f"{what}: expected integer counts of 0 or more, found {array.dtype} {array.min()}")
    array = array.astype(np.int64)  # copies
    array.flags.writeable = False
    return array
