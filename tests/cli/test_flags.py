"""Flags made from configs: what parts share is said once, where they differ each has its say."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import pytest

from circle import registry
from circle.cli import flags
from circle.config import Config, option
from circle.errors import CircleError
from circle.registry import register


def made(name: str, **fields: tuple[Any, Any, str]) -> type[Config]:
    """A config class from its fields' types, defaults and descriptions."""
    return dataclasses.make_dataclass(
        "Made",
        [(key, hint, option(default, text)) for key, (hint, default, text) in fields.items()],
        bases=(Config,),
        namespace={"name": name, "__annotations__": {"name": ClassVar[str]}},
        frozen=True,
    )


@pytest.fixture
def helps(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, str]]:
    """Registers heads for one test; returns the help of every flag that is made for them."""
    monkeypatch.setitem(registry._ENTRIES, "head", dict(registry._ENTRIES["head"]))

    def make(*configs: type[Config]) -> dict[str, str]:
        for config in configs:
            register("head", config)(object())
        made_flags = flags.part_flags("head", [config.name for config in configs])
        hints = typing.get_type_hints(made_flags, include_extras=True)
        return {name: hint.__metadata__[0].help for name, hint in hints.items()}

    return make


def test_one_part(helps: Callable[..., dict[str, str]]) -> None:
    found = helps(made("one", width=(int, 3, "units"), sizes=(tuple[int, ...], (2, 4), "sides")))
    assert found == {
        "name": "one of one",
        "width": "one: units (own default 3)",
        "sizes": "one: sides (own default 2 4)",
    }


def test_what_parts_share_is_said_once(helps: Callable[..., dict[str, str]]) -> None:
    found = helps(
        made("one", width=(int, 3, "units"), leak=(float, 0.5, "a")),
        made("two", width=(int, 3, "units"), leak=(float, 0.5, "a")),
        made("three", width=(int, 3, "units")),
    )
    assert found["width"] == "all: units (own default 3)"
    assert found["leak"] == "one, two: a (own default 0.5)"


def test_where_parts_differ_each_has_its_say(helps: Callable[..., dict[str, str]]) -> None:
    found = helps(
        made("one", width=(int, 3, "units")),
        made("two", width=(int, 7, "units")),
        made("three", width=(int, 3, "units")),
        made("four", width=(int, 5, "something else")),
    )
    assert found["width"] == (
        "one, three, two: units (own defaults 3 for one and three, 7 for two); four: something else (own default 5)"
    )


@pytest.mark.parametrize("other", [float, str, Literal[1, 2], tuple[int, ...]])
def test_one_setting_has_one_type(helps: Callable[..., dict[str, str]], other: Any) -> None:
    with pytest.raises(CircleError, match="heads one and three share a setting width of different types"):
        helps(
            made("one", width=(int, 3, "units")),
            made("two", width=(int, 3, "units")),
            made("three", width=(other, 3, "units")),
        )
