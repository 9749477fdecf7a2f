"""Validation images: the same features whichever way they come, and those that are of no use."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from circle import CircleClassifier
from circle.compression import Validation
from circle.compression.measurement import TIMED_IMAGES
from circle.data.user_images import open_images
from circle.errors import CircleError

Images = tuple[np.ndarray, np.ndarray]


def test_files_and_arrays_agree(learned: CircleClassifier, held_back: Images, tmp_path: Path) -> None:
    np.savez(tmp_path / "held.npz", x=held_back[0], y=held_back[1])
    done: list[int] = []
    source = Validation.of_images(learned, open_images(tmp_path / "held.npz"), done.append)
    arrays = Validation.of_arrays(learned, *held_back)
    assert done[-1] == len(source) == len(arrays) == 200
    assert torch.equal(source.targets, arrays.targets)
    assert torch.equal(source.images, arrays.images)
    assert source.images.shape == (TIMED_IMAGES, 3, 16, 16)
    for mine, theirs in zip(source.features, arrays.features, strict=True):
        assert mine.dtype == torch.int16
        assert torch.equal(mine, theirs)


def test_unknown_classes_count_as_wrong(learned: CircleClassifier, held_back: Images) -> None:
    x, y = held_back
    strange = np.where(y == 3, 9, y)
    validation = Validation.of_arrays(learned, x, strange)
    assert (validation.targets == -1).tolist() == (y == 3).tolist()
    with pytest.raises(CircleError, match="no readable image of a class that the model knows"):
        Validation.of_arrays(learned, x, np.full(200, 9))
