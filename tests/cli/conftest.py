"""Folders of images and a model that has learned them, for the tests of commands.

What they share besides (``calling``) is found by the line that changes the path.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    from calling import make_folder

    return make_folder(tmp_path / "data")


@pytest.fixture
def model(tmp_path: Path, data: Path) -> Path:
    from calling import FAST

    from circle.cli import run

    path = tmp_path / "model.circle"
    assert run(["learn", str(path), str(data), *FAST]) == 0
    return path
