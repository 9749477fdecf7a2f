"""Names of parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

import circle
from circle import BiRC2DConfig, SLDAConfig
from circle.config import Config
from circle.errors import CircleError
from circle.registry import register, resolve


def test_lists() -> None:
    assert "birc2d" in circle.list_extractors()
    assert {"slda", "ncm"} <= set(circle.list_heads())
    assert "finetune" in circle.list_methods()


def test_every_way_of_naming_a_part() -> None:
    assert resolve("extractor", "birc2d") == BiRC2DConfig()
    assert resolve("extractor", {"name": "birc2d", "width": 7}) == BiRC2DConfig(width=7)
    assert resolve("head", SLDAConfig(ridge=0.5)) == SLDAConfig(ridge=0.5)
    with pytest.raises(CircleError, match="unknown head 'sdla': did you mean 'slda'"):
        resolve("head", "sdla")
    with pytest.raises(CircleError, match="unknown extractor ''"):
        resolve("extractor", {"width": 3})


def test_a_name_is_taken_once() -> None:
    @dataclass(frozen=True)
    class Second(Config):
        name: ClassVar[str] = "slda"

    with pytest.raises(TypeError, match="name of its own"):
        register("head", Second)(object)
