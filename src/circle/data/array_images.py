"""Images that lie in one array, in memory or mapped from a file."""

from __future__ import annotations

import hashlib

import numpy as np

from circle.data.datasets import ImageSet
from circle.data.decode import ImageConfig, to_pixels

CHUNK = 1024  # images hashed together


class ArrayImages(ImageSet):
    """An array ``[N, H, W]`` or ``[N, H, W, C]`` brought to the shape of ``config``, image by image as asked.

    Images that have the shape already are copied as they are. The array may be a ``numpy.memmap``.
    """

    def __init__(self, array: np.ndarray, labels: np.ndarray, config: ImageConfig, name: str) -> None:
        self._array = array if array.ndim == 4 else array[..., None]
        self._config = config
        self._name = name
        self.labels = np.array(labels, dtype=np.int64)

    def _read(self, indices: np.ndarray) -> np.ndarray:
        rows = self._array[indices]
        config = self._config
        if rows.dtype == np.uint8 and rows.shape[1:] == (config.height, config.width, config.channels):
            return np.ascontiguousarray(rows)
        images = np.empty((len(rows), config.height, config.width, config.channels), np.uint8)
        for image, row, index in zip(images, rows, indices, strict=True):
            image[:] = to_pixels(row, config, f"{self._name}[{index}]").transpose(1, 2, 0)
        return images

    def _fingerprint(self) -> str:
        array = self._array
        total = hashlib.blake2b(repr((array.shape, array.dtype.str, self._config.to_dict())).encode(), digest_size=16)
        total.update(self.labels.tobytes())
        for start in range(0, len(array), CHUNK):
            total.update(np.ascontiguousarray(array[start : start + CHUNK]).data)
        return total.hexdigest()
