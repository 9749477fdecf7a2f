"""Tiny ImageNet's layouts."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from circle.data.datasets import load_dataset
from circle.errors import CircleError

WNIDS = ["n02", "n01", "n03"]


def picture(path: Path, level: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (64, 64), (level, level, level)).save(path, "PNG")  # exact pixels, whatever the name says


@pytest.fixture
def official(tmp_path: Path) -> Path:
    """Levels tell the images apart: class index times 10 plus image in training, 100 plus class in validation."""
    root = tmp_path / "data" / "tiny-imagenet-200"
    lines = []
    for number, wnid in enumerate(WNIDS):
        for image in range(2):
            picture(root / "train" / wnid / "images" / f"{wnid}_{image}.JPEG", 10 * number + image)
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text("")
        picture(root / "val" / "images" / f"val_{number}.JPEG", 100 + number)
        lines.append(f"val_{number}.JPEG\t{wnid}\t0\t0\t62\t62\n")
    picture(root / "test" / "images" / "test_0.JPEG", 255)
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    (root / "wnids.txt").write_text("\n".join(WNIDS))
    return root


def check(path: Path) -> None:
    dataset = load_dataset("tinyimagenet", path=path)
    assert dataset.classes == ["n01", "n02", "n03"]
    assert (len(dataset.train), len(dataset.test)) == (6, 3)
    assert dataset.image.height == 64
    level = dataset.train[np.arange(6)][:, 9, 9, 0].tolist()
    wnids = [dataset.classes[label] for label in dataset.train.labels]
    assert sorted(zip(wnids, level, strict=True)) == [
        *(("n01", 10), ("n01", 11), ("n02", 0), ("n02", 1), ("n03", 20), ("n03", 21)),
    ]
    level = dataset.test[np.arange(3)][:, 9, 9, 0]
    tested = {dataset.classes[label]: value for label, value in zip(dataset.test.labels, level.tolist(), strict=True)}
    assert tested == {"n02": 100, "n01": 101, "n03": 102}


def test_unpacked(official: Path) -> None:
    check(official)
    check(official.parent)


def test_zip(official: Path, tmp_path: Path) -> None:
    archive = tmp_path / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(official.rglob("*")):
            file.write(path, path.relative_to(official.parent))
    shutil.rmtree(official)
    check(archive)


def test_validation_in_class_folders(official: Path) -> None:
    for number, wnid in enumerate(WNIDS):
        (official / "val" / wnid).mkdir()
        (official / "val" / "images" / f"val_{number}.JPEG").rename(official / "val" / wnid / "a.JPEG")
    (official / "val" / "images").rmdir()
    (official / "val" / "val_annotations.txt").unlink()
    check(official)
    shutil.rmtree(official / "test")
    (official / "val").rename(official / "test")
    check(official)


def test_missing_parts(official: Path) -> None:
    (official / "val" / "images" / "val_1.JPEG").unlink()
    with pytest.raises(CircleError, match="lists 'val_1.JPEG', which is not there: damaged"):
        load_dataset("tinyimagenet", path=official)
    (official / "val" / "val_annotations.txt").unlink()
    with pytest.raises(CircleError, match="no labelled test images"):
        load_dataset("tinyimagenet", path=official)
    shutil.rmtree(official / "train")
    with pytest.raises(CircleError, match="no images in a folder train"):
        load_dataset("tinyimagenet", path=official)


def test_a_class_that_is_only_in_one_part(official: Path) -> None:
    shutil.rmtree(official / "train" / "n03")
    with pytest.raises(CircleError, match="test has n03, train does not"):
        load_dataset("tinyimagenet", path=official)
