"""Which images a model has learned, so that a re-run of ``circle learn`` learns none of them twice."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import torch
from torch import Tensor

DIGEST = 16  # bytes per image


class Ledger:
    """A set of 16-byte digests per class. It is part of the learning model, never of the predicting one."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, set[bytes]] = {}

    def __len__(self) -> int:
        return sum(len(digests) for digests in self._seen.values())

    def __contains__(self, entry: tuple[Hashable, bytes]) -> bool:
        label, digest = entry
        return digest in self._seen.get(label, ())

    def add(self, label: Hashable, digest: bytes) -> None:
        self._seen.setdefault(label, set()).add(digest)

    def discard_class(self, label: Hashable) -> None:
        self._seen.pop(label, None)

    def rename(self, label: Hashable, new: Hashable) -> None:
        """Let a class keep its digests under another name."""
        if label in self._seen:
            self._seen.setdefault(new, set()).update(self._seen.pop(label))

    def discard(self, label: Hashable, digest: bytes) -> None:
        """Forget one image; nothing happens if it is not there."""
        self._seen.get(label, set()).discard(digest)

    def overlap(self, other: Ledger) -> int:
        """Number of images that both have learned."""
        return sum(len(digests & other._seen.get(label, set())) for label, digests in self._seen.items())

    def update(self, other: Ledger) -> None:
        for label, digests in other._seen.items():
            self._seen.setdefault(label, set()).update(digests)

    def subtract(self, other: Ledger) -> None:
        for label, digests in other._seen.items():
            self._seen.get(label, set()).difference_update(digests)

    def copy(self) -> Ledger:
        result = Ledger()
        result.update(self)
        return result

    def to_tensors(self, classes: Sequence[Hashable]) -> tuple[Tensor, Tensor]:
        """Digests uint8 [N, 16], sorted within each class, and their number per class int64 [C]."""
        parts = [b"".join(sorted(self._seen.get(label, ()))) for label in classes]
        digests = np.frombuffer(b"".join(parts), np.uint8).reshape(-1, DIGEST)
        return torch.from_numpy(digests.copy()), torch.tensor([len(part) // DIGEST for part in parts])

    @classmethod
    def from_tensors(cls, classes: Sequence[Hashable], digests: Tensor, counts: Tensor) -> Ledger:
        result = cls()
        rows = iter(digests.numpy())
        for label, count in zip(classes, counts.tolist(), strict=True):
            if count:
                result._seen[label] = {next(rows).tobytes() for _ in range(count)}
        return result
