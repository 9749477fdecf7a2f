"""Metrics against numbers worked out by hand and against a naive loop in fractions."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from circle.benchmark.metrics import (
    DEFINITIONS,
    Reliability,
    StreamRecord,
    count_correct,
    expected_calibration_error,
)
from circle.errors import CircleError

# Three tasks of two, one and one classes. By hand:
#   right after task 0: 18 of 30; after task 1: 8 + 12 + 5 = 25 of 40; after task 2: 6 + 12 + 10 + 32 = 60 of 80
#   task 0: 18/30, 20/30, 18/30; task 1: 5/10, 10/10; task 2: 32/40
CORRECT = np.array([[10, 8, 0, 0], [8, 12, 5, 0], [6, 12, 10, 32]])
TOTAL = np.array([10, 20, 10, 40])
TASKS = [["ant", "bee"], ["cow"], ["dog"]]


def test_by_hand() -> None:
    record = StreamRecord(CORRECT, TOTAL, TASKS)
    nan = np.nan
    np.testing.assert_array_equal(record.accuracy_after_task, [18 / 30, 25 / 40, 60 / 80])
    assert record.average_incremental_accuracy == pytest.approx((0.6 + 0.625 + 0.75) / 3, abs=1e-15)
    assert record.final_accuracy == 0.75
    np.testing.assert_array_equal(record.first_task_accuracy, [18 / 30, 20 / 30, 18 / 30])
    np.testing.assert_array_equal(
        record.per_task_accuracy, [[18 / 30, nan, nan], [20 / 30, 0.5, nan], [18 / 30, 1.0, 0.8]]
    )
    # Task 0: best 20/30, final 18/30. Task 1: best before the end 0.5, final 1.0, so it gained.
    assert record.forgetting == pytest.approx((2 / 30 - 0.5) / 2, abs=1e-15)
    np.testing.assert_array_equal(
        record.per_class_accuracy,
        [[1.0, 0.4, nan, nan], [0.8, 0.6, 0.5, nan], [0.6, 0.6, 1.0, 0.8]],
    )
    assert record.class_order == ("ant", "bee", "cow", "dog")


def test_a_single_task_forgets_nothing() -> None:
    record = StreamRecord(np.array([[3, 1]]), np.array([4, 4]), [[0, 1]])
    assert record.forgetting == 0.0
    assert record.final_accuracy == record.average_incremental_accuracy == 0.5


def test_every_definition_belongs_to_a_metric() -> None:
    record = StreamRecord(CORRECT, TOTAL, TASKS)
    for name, text in DEFINITIONS.items():
        assert np.asarray(getattr(record, name)).dtype == np.float64
        assert "\n" not in text and text


@st.composite
def records(draw: st.DrawFn) -> StreamRecord:
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    total = draw(st.lists(st.integers(1, 10**6), min_size=sum(sizes), max_size=sum(sizes)))
    correct = np.zeros((len(sizes), sum(sizes)), dtype=np.int64)
    for task in range(len(sizes)):
        for column in range(sum(sizes[: task + 1])):
            correct[task, column] = draw(st.integers(0, total[column]))
    ends = np.cumsum(sizes)
    tasks = [list(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)]
    return StreamRecord(correct, np.array(total), tasks)


@given(records())
def test_against_a_naive_loop(record: StreamRecord) -> None:
    """Classes are named by their column, so the loop needs no bookkeeping of positions."""
    tasks, correct, total = record.tasks, record.correct.tolist(), record.total.tolist()

    def accuracy(after: int, classes: list[int]) -> Fraction:
        return Fraction(sum(correct[after][c] for c in classes), sum(total[c] for c in classes))

    last = len(tasks) - 1
    after_task = [accuracy(t, [c for task in tasks[: t + 1] for c in task]) for t in range(last + 1)]
    drops = [max(accuracy(t, tasks[k]) for t in range(k, last)) - accuracy(last, tasks[k]) for k in range(last)]

    np.testing.assert_array_equal(record.accuracy_after_task, [float(value) for value in after_task])
    assert record.average_incremental_accuracy == pytest.approx(float(sum(after_task) / len(tasks)), abs=1e-15)
    assert record.final_accuracy == float(after_task[-1])
    assert record.forgetting == pytest.approx(float(sum(drops) / last) if drops else 0.0, abs=1e-15)
    for t in range(last + 1):
        assert record.first_task_accuracy[t] == float(accuracy(t, tasks[0]))
        for k, task in enumerate(tasks):
            found = record.per_task_accuracy[t, k]
            assert np.isnan(found) if k > t else found == float(accuracy(t, task))
            for c in task:
                found = record.per_class_accuracy[t, c]
                assert np.isnan(found) if k > t else found == correct[t][c] / total[c]


def changed(array: np.ndarray, index: object, value: int) -> np.ndarray:
    array = array.copy()
    array[index] = value
    return array


@pytest.mark.parametrize(
    ("correct", "total", "tasks", "message"),
    [
        (CORRECT[:2], TOTAL, TASKS, r"shape \[2, 4\]"),
        (CORRECT, TOTAL[:3], TASKS, r"total of shape \[3\]"),
        (CORRECT, TOTAL, [["ant", "bee"], [], ["cow", "dog"]], "one class in each"),
        (CORRECT, TOTAL, [["ant", "bee"], ["cow"], ["ant"]], "two tasks"),
        (CORRECT / 2, TOTAL, TASKS, "integer counts"),
        (changed(CORRECT, (0, 0), -1), TOTAL, TASKS, "integer counts"),
        (changed(CORRECT, (2, 3), 41), TOTAL, TASKS, "more right answers"),
        (changed(CORRECT, (0, 3), 1), TOTAL, TASKS, "before its task"),
        (changed(CORRECT, (slice(None), 2), 0), changed(TOTAL, 2, 0), TASKS, "'cow' has no test images"),
    ],
)
def test_impossible_counts_are_refused(correct, total, tasks, message) -> None:
    with pytest.raises(CircleError, match=message):
        StreamRecord(correct, total, tasks)


def test_a_record_keeps_its_own_counts() -> None:
    correct = CORRECT.copy()
    record = StreamRecord(correct, TOTAL, TASKS)
    correct[:] = 0
    assert record.final_accuracy == 0.75
    with pytest.raises(ValueError, match="read-only"):
        record.correct[0, 0] = 0


def test_count_correct_follows_the_class_order() -> None:
    labels, predictions = np.array([7, 7, 7, 2, 2, 5]), [7, 2, 7, 2, 7, 7]
    np.testing.assert_array_equal(count_correct(labels, predictions, [5, 7, 2]), [0, 2, 1])
    with pytest.raises(ValueError, match="zip"):
        count_correct(labels, predictions[:-1], [5, 7, 2])


def test_calibration_error_by_hand() -> None:
    found = Reliability(bins=2)
    for probability, right in [(0.4, True), (0.2, False), (0.5, True), (1.0, False), (0.9, True)]:
        found.add(probability, right)
    assert found.images.tolist() == [2, 3]
    assert found.correct.tolist() == [1, 2]
    assert found.mean_confidence == pytest.approx(3.0 / 5)
    assert found.expected_calibration_error == pytest.approx((abs(1 - 0.6) + abs(2 - 2.4)) / 5)
    assert [row[:3] for row in found.rows()] == [(0.0, 0.5, 2), (0.5, 1.0, 3)]


def test_nothing_was_answered() -> None:
    found = Reliability()
    assert (found.mean_confidence, found.expected_calibration_error, found.rows()) == (0.0, 0.0, [])


def test_true_posteriors_have_no_calibration_error_and_sharper_ones_do() -> None:
    """Two Gaussian classes, whose posterior is known."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 20_000)
    values = random.normal(size=20_000) + 2.0 * labels
    errors = {}
    for sharpness in (0.25, 1.0, 4.0):
        second = 1.0 / (1.0 + np.exp(-sharpness * (2.0 * values - 2.0)))
        right = (second > 0.5) == (labels == 1)
        errors[sharpness] = expected_calibration_error(np.stack([1.0 - second, second], 1), right)
        assert errors[sharpness] == expected_calibration_error(np.maximum(second, 1.0 - second), right)
    assert errors[1.0] < 0.02
    assert min(errors[0.25], errors[4.0]) > 0.08
