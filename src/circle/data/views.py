"""Images of one task, handed out while the task is learned and not a moment longer."""

from __future__ import annotations

from typing import Any

import numpy as np

from circle.data.datasets import ImageSet
from circle.errors import CircleError


class ImageView:
    """Some images of a data set, read when they are sliced: behaves like an array uint8 [N, H, W, C].

    The runner closes the view when the task is over; a method that kept it finds nothing there.
    """

    dtype = np.dtype(np.uint8)
    ndim = 4

    def __init__(self, images: ImageSet, indices: np.ndarray) -> None:
        self._images: ImageSet | None = images
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, part: slice | np.ndarray) -> np.ndarray:
        """Images of a slice or of positions, uint8 [B, H, W, C]."""
        return self._open().images(self._indices[part])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All of them at once, for methods that need a task in memory."""
        return np.asarray(self[:], dtype=dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), *self[: min(1, len(self))].shape[1:])

    @property
    def source(self) -> ImageSet:
        """The data set that the images are part of."""
        return self._open()

    @property
    def indices(self) -> np.ndarray:
        """Positions in the data set, for whoever has features of it."""
        self._open()
        return self._indices

    def close(self) -> None:
        self._images = None

    def _open(self) -> ImageSet:
        if self._images is None:
            raise CircleError("images of a past task are gone: no method may look back")
        return self._images
