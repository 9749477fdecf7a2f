"""How the tests call commands, and the folders of images that they give them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from circle.cli import run

FAST = [
    *("--preset", "reservoir", "--extractor.stem-channels", "4", "--extractor.width", "4", "--extractor.grid", "2"),
    *("--extractor.bits", "8", "--image-size", "16"),
]
COLOURS = {"blue": (40, 60, 200), "green": (40, 180, 60), "red": (210, 50, 40)}


def make_folder(path: Path, per_class: int = 12, seed: int = 0, classes: dict | None = None) -> Path:
    random = np.random.default_rng(seed)
    for name, colour in (classes or COLOURS).items():
        (path / name).mkdir(parents=True)
        for index in range(per_class):
            pixels = np.clip(np.array(colour) + random.normal(0, 40, (20, 24, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(path / name / f"{index:03}.png")
    return path


def wait_until(happened: Callable[[], object]) -> None:
    """Wait for what another process does; two minutes are more than it needs on any machine."""
    deadline = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < deadline, "nothing happened in two minutes"
        time.sleep(0.002)


def fails(arguments: list, capsys: pytest.CaptureFixture[str], code: int = 1) -> str:
    """Run a command that must fail with one line on stderr; returns that line."""
    capsys.readouterr()
    assert run([str(argument) for argument in arguments]) == code
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("circle: error: ")
    return lines[0]
