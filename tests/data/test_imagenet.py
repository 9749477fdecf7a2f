"""ImageNet's folders and the rule of the subset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from circle.data.datasets import load_dataset
from circle.data.imagenet import subset_of
from circle.errors import CircleError

WNIDS = [f"n{number:08}" for number in range(1000)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,000 classes of one image each in both parts, all links to two pictures."""
    root = tmp_path_factory.mktemp("imagenet")
    Image.new("RGB", (300, 250), (200, 10, 30)).save(root / "red.png")
    for part in ("train", "val"):
        for wnid in WNIDS:
            (root / part / wnid).mkdir(parents=True)
            (root / part / wnid / "a.JPEG").symlink_to(root / "red.png")
    return root


def test_all_classes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CIRCLE_IMAGENET", str(folder))
    dataset = load_dataset("imagenet1k")
    assert dataset.classes == WNIDS
    assert dataset.train.labels.tolist() == list(range(1000))
    images = dataset.test[np.array([3, 999])]
    assert images.shape == (2, 224, 224, 3)
    assert (images == (200, 10, 30)).all()


def test_subset_by_the_rule(folder: Path) -> None:
    # The field's class order for CIFAR-100 begins so: the same generator, seed and call.
    assert np.random.RandomState(1993).permutation(100)[:5].tolist() == [68, 56, 78, 8, 23]
    order = np.arange(1000)
    np.random.RandomState(1993).shuffle(order)
    assert subset_of(WNIDS) == sorted(WNIDS[number] for number in order[:100])
    dataset = load_dataset("imagenet_subset", path=folder)
    assert dataset.classes == subset_of(WNIDS)
    assert (len(dataset.train), len(dataset.test), dataset.image.height) == (100, 100, 224)


def test_classes_from_a_list(folder: Path, tmp_path: Path) -> None:
    chosen = tmp_path / "classes.txt"
    chosen.write_text(f"{WNIDS[5]} goldfish\n\n{WNIDS[2]}\n")
    for name in ("imagenet1k", "imagenet_subset"):
        dataset = load_dataset({"name": name, "classes": str(chosen)}, path=folder)
        assert dataset.classes == [WNIDS[2], WNIDS[5]]
    chosen.write_text("n99999999\n")
    with pytest.raises(CircleError, match="train: no folder for n99999999"):
        load_dataset({"name": "imagenet_subset", "classes": str(chosen)}, path=folder)
    chosen.write_text(f"{WNIDS[2]}\n{WNIDS[2]}\n")
    with pytest.raises(CircleError, match="2 wnids, 1 different"):
        load_dataset({"name": "imagenet_subset", "classes": str(chosen)}, path=folder)
    with pytest.raises(CircleError, match="nowhere.txt: No such file"):
        load_dataset({"name": "imagenet_subset", "classes": str(tmp_path / "nowhere.txt")}, path=folder)


def test_what_is_not_imagenet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CIRCLE_IMAGENET", raising=False)
    with pytest.raises(CircleError, match="imagenet1k: not on this machine: download ILSVRC2012 .* CIRCLE_IMAGENET"):
        load_dataset("imagenet1k")
    with pytest.raises(CircleError, match="no folder train in it"):
        load_dataset("imagenet1k", path=tmp_path)
    for part in ("train", "val"):
        (tmp_path / part / "n01").mkdir(parents=True)
    for name in ("imagenet1k", "imagenet_subset"):
        with pytest.raises(CircleError, match="train: 1 class folders; expected ImageNet's 1,000"):
            load_dataset(name, path=tmp_path)
