"""Named settings, one TOML file each; a file of the user's own works the same way."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from circle.config import check_names
from circle.errors import CircleError

DEFAULT = "fast"
_PLAIN_FORM = "-32"  # best-32 is best for images of 32 pixels, whatever the size of those at hand


def list_presets() -> list[str]:
    """Names of the presets that come with CIRCLE."""
    folder = resources.files(__name__)
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def read_preset(preset: str | Path) -> dict[str, Any]:
    """Settings of a preset by name, or of a TOML file by path (something that ends in .toml).

    ``image_size`` is "auto" where the images decide which form of the preset is taken (:mod:`circle.presets.forms`).

    >>> read_preset("best")["image_size"], read_preset("best-32")["image_size"], read_preset("best-64")["image_size"]
    ('auto', 32, 64)
    """
    if str(preset).endswith(".toml"):
        path = Path(preset)
        if not path.is_file():
            raise CircleError(f"{path}: no such preset file")
        text = path.read_text()
    else:
        plain = str(preset).removesuffix(_PLAIN_FORM)
        if plain != str(preset) and plain in list_presets() and read_preset(plain).get("image_size") == "auto":
            return {**read_preset(plain), "image_size": int(_PLAIN_FORM[1:])}
        check_names([str(preset)], list_presets(), "preset")
        text = resources.files(__name__).joinpath(f"{preset}.toml").read_text()
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CircleError(f"{preset}: not a valid TOML file ({error})") from error
