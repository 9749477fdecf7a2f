"""Names that requests give."""

from __future__ import annotations

import pytest

from circle.serve.limits import RequestError
from circle.serve.model_store import clean_name, find_label


@pytest.mark.parametrize("name", ["", "  ", "x" * 65, "a\0b", "a\ud800", "a\u202eb", "\x1b[31m", None, 7, ["a"]])
def test_names_that_are_none(name: object) -> None:
    with pytest.raises(RequestError, match="label: expected"):
        clean_name(name)


def test_names_are_made_tidy() -> None:
    assert clean_name(" a \n b ") == "a b"
    assert clean_name("e\u0301") == "\u00e9", "one form for what looks the same"
    assert clean_name("../../etc/passwd") == "../../etc/passwd", "a name is never a path, so it may look like one"


def test_names_find_labels_of_any_type() -> None:
    assert find_label("cat", []) == "cat"
    assert find_label("7", ["cat"]) == "7"
    assert find_label("7", [3]) == 7
    assert find_label("(1, 2)", [(1, 2)]) == (1, 2)
    for name, known in (("seven", [3]), ("x", [(1, 2)])):
        with pytest.raises(RequestError):
            find_label(name, known)
