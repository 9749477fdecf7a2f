"""Named settings, one TOML file each; a file of the user's own works the same way."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from circle.config import check_names
from circle.errors import CircleError

DEFAULT = "fast"


def list_presets() -> list[str]:
    """Names of the presets that come with CIRCLE."""
    folder = resources.files(__name__)
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def read_preset(preset: str | Path) -> dict[str, Any]:
    """Settings of a preset by name, or of a TOML file by path (something that ends in .toml)."""
    if str(preset).endswith(".toml"):
        path = Path(preset)
        if not path.is_file():
            raise CircleError(f"{path}: no such preset file")
        text = path.read_text()
    else:
        check_names([str(preset)], list_presets(), "preset")
        text = resources.files(__name__).joinpath(f"{preset}.toml").read_text()
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CircleError(f"{preset}: not a valid TOML file ({error})") from error
