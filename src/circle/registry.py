"""Names for everything that can be chosen by name: extractors, heads, methods, data sets.

One decorator registers a part together with the config that describes it; the contracts in
``tests/contracts`` then run on it without further ado.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from circle.config import Config, check_names
from circle.plugins import load_plugins

Kind = Literal["extractor", "head", "method", "dataset"]
Part = TypeVar("Part")


@dataclass(frozen=True)
class Entry:
    """A registered part and the config class that parameterises it."""

    part: Any
    config: type[Config]


# The rooms that register each kind; they are imported on demand to keep start-up short.
ROOMS: dict[str, str] = {
    "extractor": "circle.extractors",
    "head": "circle.heads",
    "method": "circle.baselines",
    "dataset": "circle.streams",
}
_ENTRIES: dict[str, dict[str, Entry]] = {"extractor": {}, "head": {}, "method": {}, "dataset": {}}


def register(kind: Kind, config: type[Config]) -> Callable[[Part], Part]:
    """Class decorator: make a part available under ``config.name``."""

    def add(part: Part) -> Part:
        if not config.name or config.name in _ENTRIES[kind]:
            raise TypeError(f"{kind} {config.name!r} needs a name of its own")
        _ENTRIES[kind][config.name] = Entry(part, config)
        return part

    return add


def entry(kind: Kind, name: str) -> Entry:
    """The registered part of that name, or an error that names the nearest."""
    _load(kind)
    check_names([name], _ENTRIES[kind], kind)
    return _ENTRIES[kind][name]


def resolve(kind: Kind, choice: str | Mapping[str, Any] | Config) -> Config:
    """A config from any way of naming a part: ``"birc2d"``, ``{"name": "birc2d", "width": 60}``, a config."""
    if isinstance(choice, Config):
        return choice
    values = {"name": choice} if isinstance(choice, str) else dict(choice)
    return entry(kind, str(values.get("name", ""))).config.from_dict(values)


def list_extractors() -> list[str]:
    """Names of all extractors, plug-ins among them."""
    return _list("extractor")


def list_heads() -> list[str]:
    """Names of all heads."""
    return _list("head")


def list_methods() -> list[str]:
    """Names of all methods that CIRCLE is compared with."""
    return _list("method")


def list_datasets() -> list[str]:
    """Names of all data sets, on this machine or not."""
    return _list("dataset")


def _list(kind: Kind) -> list[str]:
    _load(kind)
    return sorted(_ENTRIES[kind])


def _load(kind: Kind) -> None:
    """Import the room that registers this kind."""
    importlib.import_module(ROOMS[kind])
    load_plugins()
