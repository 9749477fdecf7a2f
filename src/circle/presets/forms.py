"""Presets that exist for images of 32, 64 and 224 pixels, and which of these forms suits the images at hand.

``small``, ``fast`` and ``best`` are families: under the plain name the images decide. ``best-32``, ``best-64`` and
``best-224`` are the forms themselves. They differ in the banks of filters alone (``FORM_SETTINGS``); all else that a
user changes holds for each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from circle.config import Config
from circle.data.image_sizes import AUTO, SIDES, side_for
from circle.presets import read_preset
from circle.registry import resolve

FAMILIES = ("small", "fast", "best")
FORM_SETTINGS = ("filters", "kernels", "reductions")  # of the extractor, in which the forms of a family differ


def preset_for(name: str, height: int, width: int) -> str:
    """The form of a preset that suits images of this size; a preset that has no forms is itself.

    >>> preset_for("best", 250, 300), preset_for("fast", 8, 8), preset_for("best-64", 250, 300)
    ('best-224', 'fast-32', 'best-64')
    """
    return f"{name}-{side_for(height, width)}" if name in FAMILIES else name


def side_of(settings: Mapping[str, Any]) -> int:
    """The side of the images that a preset's own settings are made for, which for a plain name is the smallest.

    >>> side_of(read_preset("best")), side_of(read_preset("best-64"))
    (32, 64)
    """
    return SIDES[0] if settings["image_size"] == AUTO else settings["image_size"]


def family_of(extractor: Config) -> str | None:
    """The family whose plain form these settings of an extractor have; None where they are of a user's own.

    >>> from circle.extractors import LocalContrastConfig
    >>> family_of(LocalContrastConfig()), family_of(LocalContrastConfig(mirror=False)), family_of(
    ...     LocalContrastConfig(filters=(9,)))
    ('fast', 'fast', None)
    """
    return next((name for name in FAMILIES if form_values(extractor) == form_values(_form(name, SIDES[0]))), None)


def form_extractor(family: str, extractor: Config, side: int) -> Config:
    """The settings of an extractor of the plain form, with those in which the form for this side differs."""
    values = form_values(_form(family, side))
    assert values is not None
    return extractor.replace(**values)


def form_values(extractor: Config) -> dict[str, object] | None:
    """The settings that tell one form from another; None for an extractor that has none of the kind."""
    if extractor.name != _form(FAMILIES[0], SIDES[0]).name:
        return None
    return {setting: getattr(extractor, setting) for setting in FORM_SETTINGS}


def form_note(family: str | None, height: int, width: int) -> str:
    """One line for the user: which form was taken, and why.

    >>> form_note("best", 250, 300)
    'images of about 300 x 250: preset best-224; --image-size 32 takes the small form'
    >>> form_note("fast", 28, 28)
    'images of about 28 x 28: preset fast-32'
    """
    side, found = side_for(height, width), f"images of about {width} x {height}"
    if family is None:
        larger = (
            "" if side == SIDES[0] else ", because the extractor's settings are your own; --image-size sets another"
        )
        return f"{found}: brought to {SIDES[0]} x {SIDES[0]}{larger}"
    small = "" if side == SIDES[0] else f"; --image-size {SIDES[0]} takes the small form"
    return f"{found}: preset {family}-{side}{small}"


@cache
def _form(family: str, side: int) -> Config:
    """The extractor of one form."""
    return resolve("extractor", read_preset(f"{family}-{side}")["extractor"])
