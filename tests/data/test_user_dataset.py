"""A folder, zip archive or npz file of the user's as a data set."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from circle.data import folders
from circle.data.datasets import load_dataset
from circle.errors import CircleError

LEVELS = {"ant": 10, "bee": 90, "cow": 170}


def fill(folder: Path, count: int, offset: int = 0) -> Path:
    """``count`` pictures per class, every one of another grey level."""
    for name, level in LEVELS.items():
        (folder / name).mkdir(parents=True)
        for index in range(count):
            grey = level + index + offset
            Image.new("RGB", (40, 30), (grey, grey, grey)).save(folder / name / f"{index:02}.png")
    return folder


def levels(images: object, indices: np.ndarray) -> list[int]:
    return images[indices][:, 5, 5, 0].tolist()  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("test", ["test", "val", "validation"])
def test_two_parts(tmp_path: Path, test: str) -> None:
    fill(tmp_path / "train", 3)
    fill(tmp_path / test, 2, offset=50)
    dataset = load_dataset("folder", path=tmp_path)
    assert dataset.classes == ["ant", "bee", "cow"]
    assert dataset.train.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert levels(dataset.train, np.array([8, 0, 4])) == [172, 10, 91]
    assert levels(dataset.test, np.arange(6)) == [60, 61, 140, 141, 220, 221]
    assert (dataset.image.height, dataset.image.channels, dataset.note) == (32, 3, "")


def test_test_wins_over_validation(tmp_path: Path) -> None:
    fill(tmp_path / "train", 2)
    fill(tmp_path / "val", 2)
    fill(tmp_path / "test", 2, offset=50)
    assert levels(load_dataset("folder", path=tmp_path).test, np.array([0])) == [60]


def test_zip_and_wrapping_folder(tmp_path: Path) -> None:
    fill(tmp_path / "wrapped" / "mine" / "train", 3)
    fill(tmp_path / "wrapped" / "mine" / "test", 2, offset=50)
    folder = load_dataset("folder", path=tmp_path / "wrapped", image_size=16)
    with zipfile.ZipFile(tmp_path / "mine.zip", "w") as archive:
        for path in sorted((tmp_path / "wrapped").rglob("*.png")):
            archive.write(path, path.relative_to(tmp_path / "wrapped"))
    packed = load_dataset("folder", path=tmp_path / "mine.zip", image_size=16)
    for part, other in ((folder.train, packed.train), (folder.test, packed.test)):
        assert np.array_equal(part.labels, other.labels)
        assert np.array_equal(part[np.arange(len(part))], other[np.arange(len(other))])
    assert packed.train.fingerprint != packed.test.fingerprint
    assert packed.train[np.arange(1)].shape == (1, 16, 16, 3)


@pytest.mark.parametrize("form", ["folder", "zip", "npz"])
def test_without_test_part_one_in_five_is_held_back(tmp_path: Path, form: str) -> None:
    path = fill(tmp_path / "photos", 10)
    if form == "zip":
        path = tmp_path / "photos.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for file in sorted((tmp_path / "photos").rglob("*.png")):
                archive.write(file, file.relative_to(tmp_path))
    elif form == "npz":
        path = tmp_path / "photos.npz"
        grey = np.array([level + index for level in LEVELS.values() for index in range(10)], np.uint8)
        np.savez(path, x=np.tile(grey[:, None, None], (1, 32, 32)), y=np.repeat(list(LEVELS), 10))
    dataset = load_dataset("folder", path=path)
    assert "held back" in dataset.note
    assert np.bincount(dataset.train.labels).tolist() == [8] * 3
    assert np.bincount(dataset.test.labels).tolist() == [2] * 3
    seen = levels(dataset.train, np.arange(24)) + levels(dataset.test, np.arange(6))
    assert sorted(seen) == [level + index for level in LEVELS.values() for index in range(10)], "each exactly once"
    again = load_dataset("folder", path=path)
    assert levels(again.test, np.arange(6)) == levels(dataset.test, np.arange(6))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_with_two_parts(tmp_path: Path, save: object) -> None:
    random = np.random.default_rng(0)
    x_train, x_test = (random.integers(0, 256, (count, 6, 5, 3), dtype=np.uint8) for count in (8, 4))
    path = tmp_path / "mine.npz"
    save(path, x_train=x_train, y_train=[10, 2] * 4, x_test=x_test, y_test=[[2], [2], [10], [10]])  # pyright: ignore[reportCallIssue]
    dataset = load_dataset("folder", path=path)
    assert dataset.classes == ["2", "10"]
    assert dataset.train.labels.tolist() == [1, 0] * 4
    assert dataset.test.labels.tolist() == [0, 0, 1, 1]
    assert (dataset.image.height, dataset.image.width, dataset.image.channels) == (6, 5, 3)
    assert np.array_equal(dataset.train[np.array([6, 1])], x_train[[6, 1]])
    assert np.array_equal(dataset.test[np.arange(4)], x_test)
    grey = load_dataset({"name": "folder", "channels": 1}, path=path, image_size=8)
    assert grey.train[np.arange(2)].shape == (2, 8, 8, 1)


@pytest.mark.parametrize("small", [True, False])
def test_changed_files_change_the_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: bool) -> None:
    if not small:
        monkeypatch.setattr(folders, "MAX_HASHED_BYTES", 0)

    def fingerprints(**settings: int) -> tuple[str, str]:
        dataset = load_dataset("folder", path=tmp_path, **settings)
        return dataset.train.fingerprint, dataset.test.fingerprint

    fill(tmp_path / "train", 3)
    fill(tmp_path / "test", 2)
    before = fingerprints()
    assert fingerprints() == before
    assert not set(fingerprints(image_size=16)) & set(before)
    changed = tmp_path / "train" / "ant" / "01.png"
    content = bytearray(changed.read_bytes())
    content[50] ^= 1  # of the same size: only the content tells them apart
    changed.write_bytes(content)
    assert (fingerprints()[0] != before[0]) == small
    Image.new("RGB", (400, 300)).save(changed)
    assert fingerprints()[0] != before[0]
    assert fingerprints()[1] == before[1]


def test_an_unreadable_image_is_named_not_skipped(tmp_path: Path) -> None:
    fill(tmp_path / "train", 3)
    fill(tmp_path / "test", 2)
    (tmp_path / "train" / "bee" / "01.png").write_bytes(b"no picture")
    dataset = load_dataset("folder", path=tmp_path)
    assert len(dataset.train[np.array([0, 1])]) == 2
    with pytest.raises(CircleError, match="train/bee/01.png: not a readable image"):
        dataset.train[np.arange(9)]


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(CircleError, match="folder: no path given"):
        load_dataset("folder")
    with pytest.raises(CircleError, match="nowhere: No such file"):
        load_dataset("folder", path=tmp_path / "nowhere")
    with pytest.raises(CircleError, match="no images in it"):
        load_dataset("folder", path=tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(CircleError, match="notes.txt: neither folder, .zip nor .npz"):
        load_dataset("folder", path=tmp_path / "notes.txt")
    (tmp_path / "broken.zip").write_bytes(b"PK\x03\x04 no")
    with pytest.raises(CircleError, match="broken.zip: cannot be read"):
        load_dataset("folder", path=tmp_path / "broken.zip")
    fill(tmp_path / "mine" / "train", 2)
    fill(tmp_path / "mine" / "test", 2)
    (tmp_path / "mine" / "test" / "cow").rename(tmp_path / "mine" / "test" / "dog")
    with pytest.raises(CircleError, match="mine: train has cow, test does not"):
        load_dataset("folder", path=tmp_path / "mine")


def test_results_are_kept_under_the_name_of_the_data(tmp_path: Path) -> None:
    for name in ("My photos (2024)", "cifar100"):
        fill(tmp_path / name, 3)
    assert load_dataset("folder", path=tmp_path / "My photos (2024)").name == "My-photos-2024"
    assert load_dataset("folder", path=tmp_path / "cifar100").name == "cifar100-own", "it is not CIFAR-100"


def test_what_is_ignored_is_noted(tmp_path: Path) -> None:
    fill(tmp_path / "train", 3)
    fill(tmp_path / "test", 2)
    (tmp_path / "test" / "ant" / "notes.txt").write_text("none")
    assert load_dataset("folder", path=tmp_path).note.endswith("1 file ignored: 1 .txt")
