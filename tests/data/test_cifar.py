"""CIFAR-100's binary files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from circle.data.cifar import RECORD
from circle.data.datasets import load_dataset
from circle.errors import CircleError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The official layout with two images to learn and one to test per class."""
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    random = np.random.default_rng(0)
    for part, count in (("train", 200), ("test", 100)):
        records = np.zeros((count, 3074), np.uint8)
        records[:, 0] = 7  # coarse labels, to be ignored
        records[:, 1] = np.arange(count) % 100
        records[:, 2:] = random.integers(0, 256, (count, 3072))
        records.tofile(folder / f"{part}.bin")
    (folder / "fine_label_names.txt").write_text("".join(f"class_{number}\n" for number in range(100)))
    return folder


def test_records(folder: Path) -> None:
    dataset = load_dataset("cifar100", path=folder)
    assert dataset.classes[:2] == ["class_0", "class_1"]
    assert dataset.train.labels.tolist() == [*range(100), *range(100)]
    raw = np.fromfile(folder / "train.bin", np.uint8).reshape(200, 3074)
    image = dataset.train[np.array([150])][0]
    assert image.shape == (32, 32, 3)
    # Planes in the file: red at 2, green at 2 + 1024, blue at 2 + 2048, rows of 32.
    assert image[3, 5].tolist() == [raw[150, 2 + plane * 1024 + 3 * 32 + 5] for plane in range(3)]
    assert "train has 200 images instead of 50,000" in dataset.note


def test_the_folder_around_it_and_another_size(folder: Path) -> None:
    dataset = load_dataset("cifar100", path=folder.parent, image_size=16)
    assert dataset.path == folder
    assert dataset.test[np.arange(3)].shape == (3, 16, 16, 3)


def test_pixels_are_mapped_not_read(folder: Path) -> None:
    dataset = load_dataset("cifar100", path=folder)
    array = dataset.train._array  # pyright: ignore[reportAttributeAccessIssue]
    assert isinstance(array, np.memmap)
    assert RECORD.itemsize == 3074


def damage(folder: Path, what: str) -> None:
    file = folder / "train.bin"
    if what == "truncated":
        file.write_bytes(file.read_bytes()[:-1])
    elif what == "empty":
        file.write_bytes(b"")
    elif what == "missing":
        file.unlink()
    elif what == "folder":
        file.unlink()
        file.mkdir()
    elif what == "label":
        file.write_bytes(b"\0\xff" + file.read_bytes()[2:])
    else:
        (folder / "fine_label_names.txt").write_text("one\n")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("truncated", "train.bin: 614,799 bytes; expected records of 3,074: damaged, `circle data fetch cifar100`"),
        ("empty", "train.bin: 0 bytes"),
        ("missing", "train.bin: No such file"),
        ("folder", "train.bin: .*directory|train.bin: 4,096 bytes"),
        ("label", "train.bin: holds the label 255; expected 0 to 99"),
        ("names", "fine_label_names.txt: 1 names; expected 100"),
    ],
)
def test_damaged_files(folder: Path, what: str, message: str) -> None:
    damage(folder, what)
    with pytest.raises(CircleError, match=message):
        load_dataset("cifar100", path=folder)
