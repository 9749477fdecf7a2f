"""Class orders and task splits: deterministic, complete, refused where they do not come out even."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from circle.data.tasks import class_order, split_tasks
from circle.errors import CircleError


def test_the_order_never_moves() -> None:
    """Published numbers rest on it."""
    assert class_order(range(10)) == [4, 6, 2, 7, 3, 5, 9, 0, 8, 1]
    assert class_order(range(10), class_order_seed=1) == [8, 4, 7, 0, 1, 2, 5, 9, 6, 3]
    assert split_tasks(range(10), 5) == [[4, 6], [2, 7], [3, 5], [9, 0], [8, 1]]


def test_labels_are_the_users_own() -> None:
    assert sorted(class_order(["owl", "ant", "bee"])) == ["ant", "bee", "owl"]


@given(st.integers(1, 12), st.integers(1, 8), st.integers(0, 1000))
def test_split_is_the_order_cut_into_equal_parts(tasks: int, size: int, seed: int) -> None:
    classes = [f"class {number}" for number in range(tasks * size)]
    split = split_tasks(classes, tasks, class_order_seed=seed)
    assert [len(task) for task in split] == [size] * tasks
    order = [label for task in split for label in task]
    assert order == class_order(classes, seed)
    assert sorted(order) == sorted(classes)


@pytest.mark.parametrize("tasks", [0, -1, 3, 20])
def test_uneven_split_names_the_divisors(tasks: int) -> None:
    with pytest.raises(CircleError, match=rf"10 classes .* {tasks} equal tasks: expected one of 1, 2, 5, 10$"):
        split_tasks(range(10), tasks)


def test_no_classes_are_refused() -> None:
    with pytest.raises(CircleError, match="at least one class"):
        split_tasks([], 1)


def test_a_class_listed_twice_is_refused() -> None:
    with pytest.raises(CircleError, match="'bee' is listed twice"):
        class_order(["ant", "bee", "owl", "bee"])


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(CircleError, match="class_order_seed = -1"):
        class_order(range(4), class_order_seed=-1)
