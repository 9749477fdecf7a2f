"""Frozen settings: the same object serves Python, TOML presets and command-line flags."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

from circle.errors import CircleError


def option(default: Any, description: str) -> Any:
    """A config field: its default and the one description that ``--help`` and the docs show."""
    return dataclasses.field(default=default, metadata={"help": description})


@dataclasses.dataclass(frozen=True)
class Config:
    """Base of all settings. Immutable, comparable, convertible to plain data and back.

    Subclasses are frozen dataclasses that set ``name``, under which the registry knows what they configure, declare
    their fields with :func:`option` and check values in :meth:`check`. Each field becomes a parameter in Python, a
    line in a preset and a flag.

    Attributes
    ----------
    name : str
        What presets, files and flags call the part.

    Examples
    --------
    >>> @dataclasses.dataclass(frozen=True)
    ... class BlurConfig(Config):
    ...     name: ClassVar[str] = "blur"
    ...     radius: float = option(1.0, "of the blur, in pixels")
    ...
    ...     def check(self):
    ...         self.require(self.radius > 0, "radius", "a positive number")
    >>> BlurConfig().replace(radius=2).to_dict()
    {'name': 'blur', 'radius': 2.0}
    >>> BlurConfig.from_dict({"radius": -1})
    Traceback (most recent call last):
    circle.errors.CircleError: blur.radius = -1.0: expected a positive number
    """

    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for field_name, annotation in typing.get_type_hints(type(self)).items():
            if typing.get_origin(annotation) is not ClassVar:
                value = _coerce(
                    getattr(self, field_name), annotation, f"{self.name or type(self).__name__}.{field_name}"
                )
                object.__setattr__(self, field_name, value)
        self.check()

    def check(self) -> None:
        """Raise :class:`CircleError` where a value is out of range."""

    def require(self, condition: bool, field_name: str, expected: str) -> None:
        """Shorthand for ``check``: raise unless ``condition``, naming field, value and expectation."""
        if not condition:
            raise CircleError(f"{self.name}.{field_name} = {getattr(self, field_name)!r}: expected {expected}")

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed; unknown names are refused."""
        check_names(changes, self.field_names(), f"{self.name} setting")
        return dataclasses.replace(self, **changes)

    @classmethod
    def field_names(cls) -> list[str]:
        """The names of all settings, in the order of their declaration."""
        return [field.name for field in dataclasses.fields(cls)]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON and TOML; :meth:`from_dict` is its inverse."""
        values = {field: getattr(self, field) for field in self.field_names()}
        plain = {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
        return {"name": self.name, **plain}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The config with these values and defaults for the others; ``name`` may be among them and is not read."""
        given = {key: value for key, value in values.items() if key != "name"}
        check_names(given, cls.field_names(), f"{cls.name} setting")
        return cls(**given)

    # scikit-learn asks these two of a nested parameter: `extractor__width=60` then works in GridSearchCV.
    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All settings by name, as scikit-learn's ``get_params`` gives them."""
        return {field: getattr(self, field) for field in self.field_names()}

    def __sklearn_clone__(self) -> Self:
        return self


def check_names(given: Iterable[str], known: Iterable[str], kind: str) -> None:
    """Refuse names that do not exist, with the nearest that does."""
    known = list(known)
    for name in given:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(sorted(known))}"
            raise CircleError(f"unknown {kind} {name!r}: {hint}")


def setting_differences(
    one: Mapping[str, Any], other: Mapping[str, Any], within: str = ""
) -> list[tuple[str, str, str]]:
    """(name, value in one, value in other) of the settings in ``one`` that differ, as a user gives them.

    Where two parts differ in kind, such as two extractors, only their names are given.

    >>> setting_differences({"seed": 0, "head": {"name": "slda", "sizes": (2, 4)}},
    ...                     {"seed": 1, "head": {"name": "slda", "sizes": [2]}})
    [('seed', '0', '1'), ('head.sizes', '2 4', '2')]
    """
    found = []
    for name, value in one.items():
        against = other.get(name)
        if isinstance(value, Mapping) and isinstance(against, Mapping):
            inner = setting_differences(value, against, f"{within}{name}.")
            found += [row for row in inner if row[0] == f"{within}{name}.name"] or inner
        elif _comparable(value) != _comparable(against):
            found.append((within + name, shown(value), shown(against)))
    return found


def shown(value: Any) -> str:
    """A value as a user writes it: the items of a tuple with spaces between them."""
    return " ".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


def _comparable(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _coerce(value: Any, annotation: Any, where: str) -> Any:
    """Bring a value from TOML or JSON to its declared type, or say what was expected."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        inner = [argument for argument in arguments if argument is not type(None)]
        return _coerce(value, inner[0], where) if len(inner) == 1 else value
    if origin is typing.Literal:
        if value not in arguments:
            raise CircleError(f"{where} = {value!r}: expected one of {', '.join(map(str, arguments))}")
        return value
    if origin is tuple:
        items = value if isinstance(value, (list, tuple)) else (value,)
        return tuple(_coerce(item, arguments[0], where) for item in items)
    if annotation is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    plain = annotation in (int, float, str, bool)
    if plain and (not isinstance(value, annotation) or (annotation is int and isinstance(value, bool))):
        raise CircleError(f"{where} = {value!r}: expected {annotation.__name__}")
    return value
