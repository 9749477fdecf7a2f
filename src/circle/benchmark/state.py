"""A method's state as one file, so that a killed run goes on where it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from circle import files
from circle.labels import decode_labels, encode_labels


def save_state(path: Path, state: dict[str, Any], progress: dict[str, Any]) -> None:
    """Write a nested dictionary of tensors and plain data, and how far the run had come."""
    plain, tensors = taken_apart(state)
    files.write(path, tensors, {"plain": plain, "progress": progress})


def load_state(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inverse of :func:`save_state`."""
    tensors, header = files.read(path)
    return put_together(header["plain"], tensors), header["progress"]


def taken_apart(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A state as what JSON can hold, and tensors by their dotted path."""
    return _plain(state), tensors_of(state, {})


def tensors_of(state: dict[str, Any], found: dict[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """All tensors of a nested dictionary by their dotted path; whole numbers take the smallest type that holds them."""
    for name, value in state.items():
        if isinstance(value, dict):
            tensors_of(value, found, f"{prefix}{name}.")
        elif isinstance(value, Tensor):
            found[f"{prefix}{name}"] = value
    return found


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    """The skeleton of a state: tensors become a mark, lists of labels their JSON form."""
    result: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, dict):
            result[name] = {"dict": _plain(value)}
        elif isinstance(value, Tensor):
            result[name] = {"tensor": True}
        elif isinstance(value, list):
            result[name] = {"labels": encode_labels(value)}
        else:
            result[name] = {"value": value}
    return result


def put_together(plain: dict[str, Any], tensors: dict[str, Tensor], prefix: str = "") -> dict[str, Any]:
    """Inverse of :func:`taken_apart`."""
    result: dict[str, Any] = {}
    for name, entry in plain.items():
        (kind, value), *_ = entry.items()
        if kind == "dict":
            result[name] = put_together(value, tensors, f"{prefix}{name}.")
        elif kind == "tensor":
            result[name] = tensors[f"{prefix}{name}"]
        else:
            result[name] = decode_labels(value) if kind == "labels" else value
    return result


def same_state(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two states are equal to the last bit."""
    mine, theirs = tensors_of(one, {}), tensors_of(other, {})
    return (
        _plain(one) == _plain(other)
        and mine.keys() == theirs.keys()
        and all(torch.equal(mine[name], theirs[name]) for name in mine)
    )
