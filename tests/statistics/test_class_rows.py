"""Rows of classes: they come, move and go without losing anything."""

from __future__ import annotations

import pytest
import torch

from circle.errors import CircleError
from circle.statistics.class_rows import ClassRows


def rows(**parts: bool) -> ClassRows:
    return ClassRows(3, torch.device("cpu"), **{"class_moments": True, "unit_sums": True, **parts})


def filled(*labels: str) -> ClassRows:
    """A row for each label, with one sample of as many ones as its place."""
    result = rows()
    for place, label in enumerate(labels, start=1):
        result.add(label)
        result.update(torch.full((1, 3), float(place)), [place - 1])
    return result


def test_many_classes_keep_their_rows_while_room_grows() -> None:
    labels = [f"class {number:03}" for number in range(70)]
    result = filled(*labels)
    assert result.classes == labels
    assert result.sums[result.order()][:, 0].tolist() == list(range(1, 71))
    assert [float(moment.diagonal()[0]) for moment in result.kept_moments()] == [n * n for n in range(1, 71)]
    assert result.nbytes == 8 * 70 * (1 + 3 + 3) + 70 * 8 * 9


@pytest.mark.parametrize("gone", ["a", "b", "c"])
def test_a_row_that_leaves_takes_only_itself(gone: str) -> None:
    result = filled("a", "b", "c")
    result.drop(gone)
    kept = [label for label in "abc" if label != gone]
    assert result.classes == kept
    for label in kept:
        place = "abc".index(label) + 1
        row = result.index[label]
        assert result.sums[row].tolist() == [place] * 3
        assert int(result.counts[row]) == 1
        assert float(result.kept_moments()[row].diagonal()[0]) == place**2
    result.add(gone)
    assert result.sums[result.index[gone]].tolist() == [0.0] * 3, "a class that returns starts from nothing"


def test_order_of_arrival_does_not_matter_to_equality() -> None:
    first, second = filled("a", "b"), rows()
    for place, label in ((2, "b"), (1, "a")):
        second.add(label)
        second.update(torch.full((1, 3), float(place)), [second.index[label]])
    assert first == second
    assert first.copy() == first
    second.kept_moments()[0].strips[0][0, 0] += 1
    assert first != second
    assert rows() != rows(unit_sums=False)


def test_what_cannot_be_subtracted_is_refused() -> None:
    with pytest.raises(CircleError, match="'b' was never learned"):
        filled("a").accumulate(filled("a", "b"), -1)
    twice = filled("a")
    twice.accumulate(filled("a"), 1)
    short = filled("a")
    short.accumulate(twice, -1)
    with pytest.raises(CircleError, match="'a': more samples to subtract"):
        short.drop_empty(exact=True)
    other = filled("b", "a")
    other.drop("b")
    wrong = filled("a")
    wrong.accumulate(other, -1)
    with pytest.raises(CircleError, match="'a': these are not the samples"):
        wrong.drop_empty(exact=True)


def test_moments_that_are_not_kept() -> None:
    with pytest.raises(CircleError, match="without second moments"):
        rows(class_moments=False).kept_moments()
    assert rows(class_moments=False).bytes_for("abc") == 0
    assert filled("a").bytes_for("abc") == 2 * 8 * 9
