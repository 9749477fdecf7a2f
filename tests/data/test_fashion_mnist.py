"""Fashion-MNIST's idx files."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from circle.data.datasets import load_dataset
from circle.data.fashion_mnist import read_idx
from circle.errors import CircleError


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


PIXELS = np.random.default_rng(0).integers(0, 256, (30, 28, 28), dtype=np.uint8)


@pytest.fixture(params=["plain", "gzip"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    for prefix, count in (("train", 30), ("t10k", 10)):
        for name, array in (
            (f"{prefix}-images-idx3-ubyte", PIXELS[:count]),
            (f"{prefix}-labels-idx1-ubyte", np.arange(count, dtype=np.uint8) % 10),
        ):
            if request.param == "gzip":
                (tmp_path / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
            else:
                (tmp_path / name).write_bytes(idx(array))
    return tmp_path


def test_images_and_labels(folder: Path) -> None:
    dataset = load_dataset("fashion_mnist", path=folder)
    assert dataset.classes[9] == "Ankle boot"
    assert dataset.train.labels.tolist() == [*range(10)] * 3
    assert np.array_equal(dataset.train[np.array([29, 4])], PIXELS[[29, 4], :, :, None])
    assert load_dataset("fashion_mnist", path=folder, image_size=32).image.height == 32


def test_labels_without_images(folder: Path) -> None:
    path = next(folder.glob("t10k-labels*"))
    content = idx(np.zeros(9, np.uint8))
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    with pytest.raises(CircleError, match="10 test images, but 9 labels"):
        load_dataset("fashion_mnist", path=folder)
    path.unlink()
    with pytest.raises(CircleError, match="no t10k-labels-idx1-ubyte or t10k-labels-idx1-ubyte.gz in it"):
        load_dataset("fashion_mnist", path=folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx(PIXELS)[:-1], "23,519 bytes; expected 23,520 for shape \\[30, 28, 28\\]: damaged"),
        (idx(PIXELS[0]), "not an idx file of bytes with 3 dimensions"),
        (b"", "cannot be read"),
        (b"\0\0\x08", "not an idx file"),
    ],
)
def test_damaged_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "images"
    path.write_bytes(content)
    with pytest.raises(CircleError, match=message):
        read_idx(path, 3)


def test_damaged_gzip(tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(idx(PIXELS))[:-20])
    with pytest.raises(CircleError, match="images.gz: cannot be read"):
        read_idx(path, 3)
    path.write_bytes(b"not gzip at all")
    with pytest.raises(CircleError, match="images.gz: cannot be read"):
        read_idx(path, 3)
