"""Images that lie in files of their own, in folders or zip archives; decoded when asked for, never kept."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from circle.data.datasets import ImageSet
from circle.data.decode import ImageConfig
from circle.data.reading import FileReader, file_sizes
from circle.data.workers import Decoders

AHEAD = 3  # batches that the workers may be ahead
SIZE = 64  # images that the workers are asked for at a time
SMALL = 64 * 2**20  # bytes of files that a fingerprint reads; of more it only takes the names and sizes
FEW = 8  # images that are decoded sooner here than by asking the workers


class FileImages(ImageSet):
    """Image files ``root/name``, brought to the shape of ``config`` by ``workers`` processes (0: by this one)."""

    def __init__(
        self, root: Path, names: Sequence[str], labels: np.ndarray, config: ImageConfig, workers: int = 0
    ) -> None:
        self._root = root
        self._names = names
        self._config = config
        self._workers = workers
        self._reader = FileReader()
        self._decoders: Decoders | None = None
        self._lock = threading.Lock()  # one reader and one set of workers, whatever threads ask
        self.labels = np.array(labels, dtype=np.int64)

    def _files(self, indices: np.ndarray) -> list[str]:
        return [f"{self._root}/{self._names[index]}" for index in indices]

    def _parts(self, indices: np.ndarray, size: int) -> Iterator[list[str]]:
        for start in range(0, len(indices), size):
            yield self._files(indices[start : start + size])

    def _read(self, indices: np.ndarray) -> np.ndarray:
        config = self._config
        images = np.empty((len(indices), config.height, config.width, config.channels), np.uint8)
        with self._lock:
            if self._workers == 0 or len(indices) <= FEW:
                self._reader.decode(self._files(indices), config, images)
                return images
            if self._decoders is None:
                self._decoders = Decoders(config, self._workers)
            batches = self._decoders.batches(self._parts(indices, SIZE), SIZE, AHEAD)
            for number, batch in enumerate(batches):
                images[number * SIZE : (number + 1) * SIZE] = batch
            return images

    def _batches(self, indices: np.ndarray, size: int) -> Iterator[np.ndarray]:
        if not self._workers:
            yield from super()._batches(indices, size)
            return
        # Workers of their own, because these run ahead and would stand in the way of `images`.
        with Decoders(self._config, self._workers) as decoders:
            yield from decoders.batches(self._parts(indices, size), size, AHEAD)

    def _fingerprint(self) -> str:
        total = hashlib.blake2b(repr(self._config.to_dict()).encode(), digest_size=16)
        total.update(self.labels.tobytes())
        facts = list(file_sizes(self._root, self._names))
        whole = sum(size for size, _ in facts) <= SMALL
        for name, (size, checksum) in zip(self._names, facts, strict=True):
            total.update(repr((name, size, checksum)).encode(errors="surrogateescape"))
            if whole and not checksum:
                total.update(self._reader.read(f"{self._root}/{name}"))
        return total.hexdigest()
