"""Which images are learned and which are held back, from folders, arrays and data sets alike."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from circle.data.decode import ImageConfig
from circle.data.images import ArrayImages, Images
from circle.data.user_images import open_images
from circle.errors import CircleError
from circle.paper.advise import AdviceRequest, split_images

SHAPE = ImageConfig(height=8, width=8, channels=3)


def counted(*counts: int) -> Images:
    """So many black images of each class."""
    labels = np.repeat(np.arange(len(counts)), counts)
    names = [f"class {number}" for number in range(len(counts))]
    return ArrayImages(np.zeros((len(labels), 8, 8, 3), np.uint8), labels, SHAPE, "black", names)


def split(
    images: Images, validation: float = 0.2, limit: int | None = None, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    return split_images(images, AdviceRequest(4, 4, validation, limit, seed), "counted")


@given(
    st.lists(st.integers(2, 60), min_size=2, max_size=8),
    st.floats(0.01, 0.99),
    st.integers(0, 5),
    st.integers(0, 300),
)
def test_every_class_is_split_and_the_limit_kept(counts: list[int], validation: float, seed: int, more: int) -> None:
    images = counted(*counts)
    limit = 2 * len(counts) + more
    learned, held = split(images, validation, limit, seed)
    assert not set(learned.tolist()) & set(held.tolist())
    for number in range(len(counts)):
        mine, out = (int((images.labels[part] == number).sum()) for part in (learned, held))
        assert mine >= 1 and out >= 1
        assert abs(out - validation * (mine + out)) <= 1
    total = len(learned) + len(held)
    assert total <= limit
    assert total > min(limit, sum(counts)) - len(counts), "and not wasted"
    again = split(images, validation, limit, seed)
    assert np.array_equal(again[0], learned) and np.array_equal(again[1], held)


def test_the_limit_keeps_proportions_and_none_means_all() -> None:
    images = counted(100, 900)
    assert np.bincount(images.labels[np.concatenate(split(images, limit=102))]).tolist() == [11, 90]
    assert sum(map(len, split(counted(7, 9)))) == 16


def test_another_seed_chooses_other_images() -> None:
    images = counted(50, 50)
    first, second = (split(images, seed=seed)[1] for seed in (0, 1))
    assert not np.array_equal(first, second)
    assert not np.array_equal(first[first < 50], first[first >= 50] - 50)


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
        split(counted(*counts), limit=limit)


def numbered(count: int) -> np.ndarray:
    """Images that tell their own number by their grey level."""
    return np.broadcast_to(np.arange(count, dtype=np.uint8)[:, None, None, None], (count, 8, 8, 3)).copy()


def read(images: Images, positions: np.ndarray) -> dict[int, str]:
    """Number -> label of the images at some positions."""
    found = {}
    for batch, pixels in images.readable_batches(SHAPE, 7, pytest.fail, positions):
        assert pixels.shape[1:] == (3, 8, 8)
        found |= {int(each.flat[0]): str(images.label(place)) for place, each in zip(batch, pixels, strict=True)}
    return found


def test_folder_array_and_data_set_are_split_alike(tmp_path: Path) -> None:
    """Whatever form the images have, the same of them are learned, held back and left out."""
    pixels, labels = numbered(40), np.array(["cat", "dog", "owl", "dog"] * 10)
    np.savez(tmp_path / "images.npz", x=pixels, y=labels)
    for index, label in enumerate(labels):
        (tmp_path / "folder" / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[index]).save(tmp_path / "folder" / label / f"{index:02}.png")
    classes, codes = np.unique(labels, return_inverse=True)
    forms = [
        open_images(tmp_path / "images.npz"),
        open_images(tmp_path / "folder"),
        ArrayImages(pixels, codes, SHAPE, "train", classes.tolist()),
    ]
    seen = []
    for images in forms:
        assert images.counts == {"cat": 10, "dog": 20, "owl": 10}
        seen.append([read(images, part) for part in split(images, 0.25, 30, 3)])
    assert seen[0] == seen[1] == seen[2]
    learned, held = seen[0]
    assert all(labels[number] == label for number, label in (learned | held).items())
    assert Counter(held.values())["dog"] == 4
    assert 27 < len(learned) + len(held) <= 30


def test_unreadable_images_are_left_out_and_named(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for index in range(4):
            Image.fromarray(numbered(4)[index]).save(tmp_path / label / f"{index}.png")
    (tmp_path / "cat" / "1.png").write_bytes(b"no image")
    images = open_images(tmp_path)
    unreadable: list[str] = []
    assert sum(len(positions) for positions, _ in images.readable_batches(SHAPE, 3, unreadable.append)) == 7
    assert len(unreadable) == 1
    assert "1.png" in unreadable[0]
