"""Names of classes as requests give them: text, whatever type the model's labels have."""

from __future__ import annotations

import unicodedata
from collections.abc import Hashable, Iterable

from circle.serve.errors import RequestError
from circle.serve.limits import MAX_LABEL_LENGTH


def clean_name(text: object) -> str:
    """A name that can stand in a file, a page and a terminal, or the error that says what it needs.

    >>> clean_name("  Grey  cat ")
    'Grey cat'
    """
    if not isinstance(text, str):
        raise RequestError("label: expected text")
    name = unicodedata.normalize("NFC", " ".join(text.split()))
    if not name or len(name) > MAX_LABEL_LENGTH or not name.isprintable():
        raise RequestError(f"label: expected 1 to {MAX_LABEL_LENGTH} printable characters")
    return name


def find_label(text: object, known: Iterable[Hashable]) -> Hashable:
    """The label that a name means in a model: one that it has, or a new one of the same type."""
    name = clean_name(text)
    kinds: set[type] = set()
    for label in known:
        if str(label) == name:
            return label
        kinds.add(type(label))
    if not kinds or kinds == {str}:
        return name
    if kinds == {int}:
        try:
            return int(name)
        except ValueError as error:
            raise RequestError(f"label {name!r}: this model's classes are whole numbers; expected one") from error
    raise RequestError(f"label {name!r}: not a class of this model, and new ones need text or whole numbers")
