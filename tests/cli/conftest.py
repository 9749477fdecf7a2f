"""Folders of images and a model that has learned them, for the tests of commands.

What they share besides (``calling``) is found by the line that changes the path.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

sys.path.append(str(Path(__file__).parent))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    from calling import make_folder

    return make_folder(tmp_path / "data")


@pytest.fixture(scope="session")
def few_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first 40 of each handwritten digit, 8 x 8: a run takes a tenth of the time that all of "digits" take."""
    images, labels = load_digits(return_X_y=True)
    chosen = np.sort(np.concatenate([np.flatnonzero(labels == label)[:40] for label in range(10)]))
    path = tmp_path_factory.mktemp("digits") / "digits.npz"
    np.savez(path, x=(images[chosen].reshape(-1, 8, 8) * 15).astype(np.uint8), y=labels[chosen])
    return path


@pytest.fixture
def model(tmp_path: Path, data: Path) -> Path:
    from calling import FAST

    from circle.cli import run

    path = tmp_path / "model.circle"
    assert run(["learn", str(path), str(data), *FAST]) == 0
    return path


@pytest.fixture
def unportable_model(tmp_path: Path, data: Path) -> Path:
    """A model of the same images whose extractor is not portable: exact on one kind of machine."""
    from circle.cli import run

    path = tmp_path / "unportable.circle"
    settings = ["--extractor.name", "patch_rnn", "--set", "extractor.width=8", "--image-size", "16"]
    assert run(["learn", str(path), str(data), *settings]) == 0
    return path
