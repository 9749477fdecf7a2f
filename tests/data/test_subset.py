"""Views of a task's images."""

from __future__ import annotations

import numpy as np
import pytest

from circle.data.datasets import load_dataset
from circle.data.images import Subset
from circle.errors import CircleError
from circle.method import Task


def test_reads_like_an_array_until_closed() -> None:
    images = load_dataset("digits").train
    indices = np.array([7, 3, 11, 2])
    view = Subset(images, indices)
    assert view.shape == (4, 32, 32, 1)
    assert np.array_equal(view[1:3], images[np.array([3, 11])])
    assert np.array_equal(view[np.array([3, 0])], images[np.array([2, 7])])
    assert np.array_equal(np.asarray(view), images[indices])
    assert Task(view, images.labels[indices]).classes == sorted(set(images.labels[indices].tolist()))
    view.close()
    assert len(view) == 4
    for look in (lambda: view[:1], lambda: np.asarray(view), lambda: view.indices, lambda: view.source):
        with pytest.raises(CircleError, match="past task are gone"):
            look()
