"""Labels of any hashable kind, one kind per model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from circle.errors import CircleError
from circle.labels import check_one_kind, decode_labels, encode_labels, label_array, ordered, plain_labels

atoms = st.one_of(st.text(), st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False))


@given(st.lists(st.recursive(atoms, lambda inner: st.tuples(inner, inner), max_leaves=4)))
def test_json_and_back(labels: list) -> None:
    again = decode_labels(encode_labels(labels))
    assert again == labels
    assert [type(label) for label in again] == [type(label) for label in labels]


@pytest.mark.parametrize(
    "labels", [["a", "b"], np.array(["a", "b"]), ("a", "b"), np.array(["a", "b"], object), np.array([["a"], ["b"]])]
)
def test_any_sequence_becomes_plain(labels: object) -> None:
    assert plain_labels(labels) == ["a", "b"]


def test_numbers_become_python_numbers() -> None:
    for labels in (np.array([1, 2], np.uint8), torch.tensor([1, 2]), [np.int64(1), 2]):
        assert [type(label) for label in plain_labels(labels)] == [int, int]


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (np.zeros((2, 2)), "one label per image"),
        ("cat", "sequence"),
        (5, "sequence"),
        ([["a"], ["b"]], "not hashable"),
        ([1.0, float("nan")], "not a number"),
    ],
)
def test_what_is_no_label(labels: object, words: str) -> None:
    with pytest.raises(CircleError, match=words):
        plain_labels(labels)


def test_one_kind() -> None:
    check_one_kind(["a", "b"])
    check_one_kind([])
    for mixed in ([1, "1"], [True, 1], [(1, 2), 3]):
        with pytest.raises(CircleError, match="mixed types"):
            check_one_kind(mixed)


def test_order_and_arrays() -> None:
    assert ordered([3, 1, 2]) == [1, 2, 3]
    assert ordered([frozenset({2}), frozenset({1})]) == [frozenset({1}), frozenset({2})]
    assert label_array([1, 2]).dtype.kind == "i"
    assert label_array(["a"]).dtype.kind == "U"
    pairs = label_array([(1, 2), (3, 4)])
    assert pairs.shape == (2,)
    assert pairs[0] == (1, 2)
    assert label_array([2**70]).dtype == object
    with pytest.raises(CircleError, match="cannot be saved"):
        encode_labels([frozenset({1})])
