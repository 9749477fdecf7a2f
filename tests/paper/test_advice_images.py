"""Which images are learned and which are held back, from folders, arrays and data sets alike."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from circle.data.array_images import ArrayImages
from circle.data.datasets import Dataset
from circle.data.decode import ImageConfig
from circle.data.sources import open_source
from circle.errors import CircleError
from circle.paper.advise import (
    HELD_BACK,
    LEARNED,
    UNUSED,
    DatasetImages,
    LabelledImages,
    SourceImages,
    assign_roles,
)

SHAPE = ImageConfig(height=8, width=8, channels=3)


class Counted(LabelledImages):
    """Numbers of images and nothing else."""

    def __init__(self, *counts: int) -> None:
        super().__init__("counted", {f"class {index}": count for index, count in enumerate(counts)}, SHAPE)

    def tiles(self, roles):
        raise NotImplementedError


@given(
    st.lists(st.integers(2, 60), min_size=2, max_size=8),
    st.floats(0.01, 0.99),
    st.integers(0, 5),
    st.integers(0, 300),
)
def test_every_class_is_split_and_the_limit_kept(counts: list[int], validation: float, seed: int, more: int) -> None:
    images = Counted(*counts)
    limit = 2 * len(counts) + more
    roles = assign_roles(images, validation, limit, seed)
    total = 0
    for label, count in images.counts.items():
        number = Counter(roles[label].tolist())
        assert number.total() == count
        assert number[HELD_BACK] >= 1
        assert number[LEARNED] >= 1
        used = number[HELD_BACK] + number[LEARNED]
        assert abs(number[HELD_BACK] - validation * used) <= 1
        total += used
    assert total <= limit
    assert total > min(limit, sum(counts)) - len(counts), "and not wasted"
    again = assign_roles(images, validation, limit, seed)
    assert all(np.array_equal(roles[label], again[label]) for label in roles)


def test_the_limit_keeps_proportions_and_none_means_all() -> None:
    used = {label: int((role != UNUSED).sum()) for label, role in assign_roles(Counted(100, 900), 0.2, 102, 0).items()}
    assert used == {"class 0": 11, "class 1": 90}
    assert all((role != UNUSED).all() for role in assign_roles(Counted(7, 9), 0.2, None, 0).values())


def test_another_seed_chooses_other_images() -> None:
    first, second = (assign_roles(Counted(50, 50), 0.2, None, seed) for seed in (0, 1))
    assert not np.array_equal(first["class 0"], second["class 0"])
    assert not np.array_equal(first["class 0"], first["class 1"])


@pytest.mark.parametrize(
    ("counts", "limit", "message"),
    [
        ((9,), None, "counted: 1 class; expected at least 2"),
        ((9, 1), None, "class 'class 1' has one image"),
        ((9, 9, 9), 5, "limit = 5: expected at least 6"),
    ],
)
def test_too_little_for_a_split(counts: tuple[int, ...], limit: int | None, message: str) -> None:
    with pytest.raises(CircleError, match=message):
        assign_roles(Counted(*counts), 0.2, limit, 0)


def numbered(count: int) -> np.ndarray:
    """Images that tell their own number by their grey level."""
    return np.broadcast_to(np.arange(count, dtype=np.uint8)[:, None, None, None], (count, 8, 8, 3)).copy()


def read(images: LabelledImages, roles: dict) -> dict[int, tuple[str, bool]]:
    """Number -> (label, held back) of all images that come."""
    found = {}
    for tile in images.tiles(roles):
        assert tile.pixels.shape[1:] == (3, 8, 8)
        for pixels, label, held in zip(tile.pixels, tile.labels, tile.held_back, strict=True):
            found[int(pixels.flat[0])] = (str(label), bool(held))
    return found


def test_folder_array_and_data_set_play_the_same_roles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever form the images have, the same of them are learned, held back and left out."""
    monkeypatch.setattr("circle.paper.advise.READING_BATCH", 7)
    pixels, labels = numbered(40), np.array(["cat", "dog", "owl", "dog"] * 10)
    np.savez(tmp_path / "images.npz", x=pixels, y=labels)
    for index, label in enumerate(labels):
        (tmp_path / "folder" / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[index]).save(tmp_path / "folder" / label / f"{index:02}.png")
    classes, codes = np.unique(labels, return_inverse=True)
    train = ArrayImages(pixels, codes, SHAPE, "train")
    dataset = Dataset("birds", classes.tolist(), SHAPE, train, train)
    forms = [
        SourceImages(open_source(tmp_path / "images.npz"), SHAPE),
        SourceImages(open_source(tmp_path / "folder"), SHAPE),
        DatasetImages(dataset),
    ]
    seen = []
    for images in forms:
        assert dict(images.counts) == {"cat": 10, "dog": 20, "owl": 10}
        seen.append(read(images, assign_roles(images, 0.25, 30, 3)))
    assert seen[0] == seen[1] == seen[2]
    assert all(labels[number] == label for number, (label, _) in seen[0].items())
    assert Counter(seen[0].values())["dog", True] == 4
    assert 27 < len(seen[0]) <= 30


def test_unreadable_images_are_left_out_and_named(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for index in range(4):
            Image.fromarray(numbered(4)[index]).save(tmp_path / label / f"{index}.png")
    (tmp_path / "cat" / "1.png").write_bytes(b"no image")
    images = SourceImages(open_source(tmp_path), SHAPE)
    roles = assign_roles(images, 0.5, None, 0)
    assert sum(len(tile.labels) for tile in images.tiles(roles)) == 7
    assert len(images.unreadable) == 1
    assert "1.png" in images.unreadable[0]
