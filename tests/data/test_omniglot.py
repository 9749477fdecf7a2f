"""Omniglot from its archives, its folders and an npz file."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from circle.data.datasets import load_dataset
from circle.errors import CircleError

CHARACTERS = {
    "images_background": ["Zulu/character01", "Greek/character02", "Greek/character01"],
    "images_evaluation": ["Angelic/character01"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """20 drawings of four characters: thin lines, black on white, one bit per pixel, as in the original."""
    random = np.random.default_rng(0)
    for part, characters in CHARACTERS.items():
        for character in characters:
            place = tmp_path / "unpacked" / part / character
            place.mkdir(parents=True)
            for drawing in range(1, 21):
                white = random.random((105, 105)) > 0.2
                Image.fromarray(white).save(place / f"0709_{drawing:02}.png")
    return tmp_path / "unpacked"


@pytest.fixture
def archives(folder: Path, tmp_path: Path) -> Path:
    (tmp_path / "zipped").mkdir()
    for part in CHARACTERS:
        with zipfile.ZipFile(tmp_path / "zipped" / f"{part}.zip", "w") as archive:
            for path in sorted((folder / part).rglob("*.png")):
                archive.write(path, path.relative_to(folder))
    return tmp_path / "zipped"


@pytest.fixture
def array(folder: Path, tmp_path: Path) -> Path:
    files = sorted(folder.rglob("*.png"))
    names = sorted({str(file.parent.relative_to(folder)) for file in files})
    ink = np.stack([~np.asarray(Image.open(file)) * np.uint8(255) for file in files])
    labels = [names.index(str(file.parent.relative_to(folder))) for file in files]
    np.savez(tmp_path / "omniglot.npz", x=ink, y=labels, class_names=names)
    return tmp_path / "omniglot.npz"


def test_classes_and_split(folder: Path) -> None:
    dataset = load_dataset("omniglot", path=folder)
    assert dataset.classes == ["Angelic/character01", "Greek/character01", "Greek/character02", "Zulu/character01"]
    assert np.bincount(dataset.train.labels).tolist() == [15] * 4
    assert np.bincount(dataset.test.labels).tolist() == [5] * 4
    assert dataset.note == "4 classes instead of 1,623"
    native = load_dataset("omniglot", path=folder, image_size=105)
    zulu = np.flatnonzero(native.train.labels == 3)
    drawn = np.asarray(Image.open(folder / "images_background/Zulu/character01/0709_15.png"))
    assert np.array_equal(native.train[zulu][-1, :, :, 0], np.where(drawn, 0, 255)), "ink is white, 15th is last"
    tested = np.asarray(Image.open(folder / "images_background/Zulu/character01/0709_16.png"))
    first = native.test[np.flatnonzero(native.test.labels == 3)][0, :, :, 0]
    assert np.array_equal(first, np.where(tested, 0, 255))


def test_all_forms_give_the_same_images(folder: Path, archives: Path, array: Path) -> None:
    sets = [load_dataset("omniglot", path=path) for path in (folder, archives, array)]
    for part in ("train", "test"):
        first, *others = [getattr(dataset, part) for dataset in sets]
        order = np.argsort(first.labels, kind="stable")
        assert first[order].shape[1:] == (32, 32, 1)
        for other in others:
            same = np.argsort(other.labels, kind="stable")
            assert np.array_equal(other[same], first[order])
            assert np.array_equal(other.labels[same], first.labels[order])
    assert sets[0].train[np.array([], dtype=int)].shape == (0, 32, 32, 1)
    assert sets[0].train.fingerprint != sets[0].test.fingerprint


def test_missing_parts(folder: Path) -> None:
    (folder / "images_evaluation").rename(folder / "elsewhere")
    with pytest.raises(CircleError, match="no images_evaluation in it; expected images_background and"):
        load_dataset("omniglot", path=folder)


@pytest.mark.real_data
def test_real_drawings_are_white_on_black(real_data: Path) -> None:
    dataset = load_dataset("omniglot", path=real_data / "omniglot.npz", image_size=105)
    images = dataset.test[np.arange(0, 8000, 400)]
    assert 0 < images.mean() < 40
    assert dataset.classes[0] == "Alphabet_of_the_Magi/character01"
