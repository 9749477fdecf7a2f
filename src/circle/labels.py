"""Labels are the user's own values; this file gives them one type per model, an order and a JSON form."""

from __future__ import annotations

import json
import warnings
from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from circle.errors import CircleError

_STORABLE = (str, int, float, bool, type(None))


def plain_labels(labels: Any) -> list[Hashable]:
    """Any sequence of labels (list, NumPy array, tensor) as plain Python values."""
    if hasattr(labels, "detach"):  # a tensor; a model that only predicts is labelled without PyTorch
        labels = labels.detach().cpu().numpy()
    if hasattr(labels, "__array__"):
        labels = np.asarray(labels)
        if labels.ndim == 2 and labels.shape[1] == 1:
            from sklearn.exceptions import DataConversionWarning

            warnings.warn(
                "A column-vector y was passed when a 1d array was expected; its one column is used",
                DataConversionWarning,
                stacklevel=4,
            )
            labels = labels[:, 0]
        if labels.ndim != 1:
            raise CircleError(f"labels of shape {tuple(labels.shape)}: expected one label per image, shape [N]")
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        raise CircleError(f"labels = {labels!r}: expected a sequence with one label per image")
    plain = [label.item() if isinstance(label, np.generic) else label for label in labels]
    for label in plain:
        if not isinstance(label, Hashable):
            raise CircleError(f"label {label!r} is not hashable: expected str, int or the like")
        if label != label:
            raise CircleError(f"label {label!r} is not a number: every image needs a label")
        if isinstance(label, float) and not label.is_integer():
            raise CircleError(f"Unknown label type: continuous values such as {label!r}; expected classes")
    return plain


def check_one_kind(labels: Iterable[Hashable]) -> None:
    """Refuse labels of mixed types: 1 and "1" in one model are nearly always a mistake."""
    first: dict[str, Hashable] = {}
    for label in labels:
        first.setdefault(type(label).__name__, label)
        if len(first) > 1:
            (one, example), (other, counterexample) = list(first.items())[:2]
            raise CircleError(
                f"labels of mixed types: {example!r} is {one}, {counterexample!r} is {other}; expected one type"
            )


def ordered(labels: Iterable[Hashable]) -> list[Hashable]:
    """The canonical order of classes: sorted where labels compare, else by their representation."""
    labels = list(labels)
    # Sets compare, too, but only in part: they would come out in the order they went in.
    if all(isinstance(label, (str, int, float, bytes, tuple)) for label in labels):
        with suppress(TypeError):
            return sorted(labels)  # pyright: ignore[reportArgumentType]
    return sorted(labels, key=repr)


def label_array(labels: Sequence[Hashable]) -> np.ndarray:
    """Labels as a NumPy array [C] of their natural type, or of objects (tuples stay tuples)."""
    if labels and all(type(label) in (int, str, bool, float) for label in labels):
        try:
            return np.array(labels)
        except OverflowError:
            pass
    array = np.empty(len(labels), dtype=object)
    array[:] = labels
    return array


def encode_labels(labels: Sequence[Hashable]) -> str:
    """JSON text of labels; tuples are marked, so that they come back as tuples."""
    return json.dumps([_encode(label) for label in labels])


def decode_labels(text: str) -> list[Hashable]:
    """Inverse of :func:`encode_labels`."""
    return [_decode(value) for value in json.loads(text)]


def _encode(label: Hashable) -> Any:
    if isinstance(label, tuple):
        return {"tuple": [_encode(item) for item in label]}
    if not isinstance(label, _STORABLE):
        raise CircleError(f"label {label!r} of type {type(label).__name__} cannot be saved: expected str, int or tuple")
    return label


def _decode(value: Any) -> Hashable:
    return tuple(_decode(item) for item in value["tuple"]) if isinstance(value, dict) else value
