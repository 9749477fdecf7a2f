"""Shared by all tests: small models, synthetic images, and where the real images are."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings

from circle import BiRC2DConfig, CircleClassifier
from circle.registry import resolve

# Examples are drawn the same way every time, and a slow machine is not a failed test.
settings.register_profile("circle", derandomize=True, deadline=None)
settings.load_profile("circle")

SHARED = Path(__file__).parents[2] / "shared" / "data" / "unpack.py"
TINY = BiRC2DConfig(stem_channels=(4,), patch_sizes=(2, 4), width=5, grid=2, moments=("mean",))


@pytest.fixture
def tiny() -> Any:
    """Makes classifiers small enough for a test to build many: two groups of two members, 192 values each."""

    def make(**changes: Any) -> CircleClassifier:
        return CircleClassifier(**{"extractor": TINY, "groups": 2, "members": 2, **changes})

    return make


@pytest.fixture
def stream() -> tuple[np.ndarray, np.ndarray]:
    """120 uint8 images [N, 16, 16, 3] of four classes that differ in colour and texture."""
    return _stream(120)


@pytest.fixture
def make_stream() -> Any:
    """Makes streams of other lengths."""
    return _stream


def _stream(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    labels = random.integers(0, 4, count)
    base = np.array([[200, 60, 60], [60, 200, 60], [60, 60, 200], [150, 150, 40]])[labels][:, None, None, :]
    return np.clip(base + random.normal(0, 50, (count, 16, 16, 3)), 0, 255).astype(np.uint8), labels


@pytest.fixture
def soften() -> Any:
    """Sets the temperature of a model to the spread of its scores: easy images get soft probabilities, too."""

    def soft(model: CircleClassifier, images: np.ndarray) -> CircleClassifier:
        pixels = torch.from_numpy(images).permute(0, 3, 1, 2) / 255
        scores = torch.stack(model.head_scores([group.features(pixels) for group in model.groups_]))
        return model.set_params(head=resolve("head", model.head).replace(temperature=float(scores.std(2).mean())))

    return soft


@pytest.fixture(autouse=True)
def two_threads() -> Any:
    """Tests may change the number of threads; the next one starts with two again."""
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(2)


@pytest.fixture(scope="session")
def real_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of real images: CIRCLE_REAL_DATA, or unpacked once from shared/data where that exists."""
    if os.environ.get("CIRCLE_REAL_DATA"):
        return Path(os.environ["CIRCLE_REAL_DATA"])
    if not SHARED.is_file():
        pytest.skip("no real images: neither CIRCLE_REAL_DATA nor shared/data/unpack.py is there")
    # All workers of a parallel run share one copy; the first one makes it while the others wait.
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "real-images"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            subprocess.run([sys.executable, str(SHARED), str(folder)], check=True, capture_output=True)
            (folder / "done").touch()
    return folder


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for less than the archive."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("a full disk needs the right to mount a small one")
    yield place
    subprocess.run(["umount", str(place)], check=True)
