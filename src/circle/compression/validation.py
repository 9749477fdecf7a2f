"""Labelled images that a compression is chosen by: their features are computed once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from circle.data.images import Images
from circle.errors import CircleError
from circle.learner import IMAGES_PER_TILE, CircleClassifier
from circle.machine import require_memory

TIMED_BATCH = 64  # images of the batch whose time is taken


@dataclass(frozen=True, eq=False)
class Validation:
    """Features of each group [N, D], the class of each image (-1: unknown to the model), some images to time."""

    features: list[Tensor]
    targets: Tensor  # int64 [N]
    images: Tensor  # float32 [at most TIMED_BATCH, C, H, W]
    unreadable: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.targets)

    @classmethod
    def of_images(
        cls, model: CircleClassifier, images: Images, report: Callable[[int], None] = lambda done: None
    ) -> Validation:
        """From folders, archives and npz files; images that cannot be read are left out and named."""
        unreadable: list[str] = []
        _check_room(model, len(images))
        batches = images.readable_batches(model.input_config(), IMAGES_PER_TILE, unreadable.append)
        pairs = (
            (tile, [images.label(position) for position in positions])
            for positions, pixels in batches
            for _, tile in model._tiles(model._batch(torch.from_numpy(pixels)))
        )
        return cls._of_tiles(model, pairs, str(images.path), unreadable, report)

    @classmethod
    def of_arrays(cls, model: CircleClassifier, X: Any, y: Any) -> Validation:
        """From what ``partial_fit`` takes."""
        model._require_learned()
        batch, labels = model._accepted(X, y)
        _check_room(model, len(batch))
        pairs = ((images, labels[start : start + len(images)]) for start, images in model._tiles(batch))
        return cls._of_tiles(model, pairs, "the validation images", [], lambda done: None)

    @classmethod
    def _of_tiles(
        cls,
        model: CircleClassifier,
        tiles: Iterable[tuple[Tensor, Sequence[Hashable]]],
        name: str,
        unreadable: list[str],
        report: Callable[[int], None],
    ) -> Validation:
        numbers = {label: index for index, label in enumerate(model._classes())}
        found: list[list[Tensor]] = []
        targets: list[int] = []
        timed: list[Tensor] = []
        for images, labels in tiles:
            found.append([group.features(images) for group in model.groups_])
            targets += [numbers.get(label, -1) for label in labels]
            if sum(map(len, timed)) < TIMED_BATCH:
                timed.append(images.cpu())
            report(len(targets))
        if not any(target >= 0 for target in targets):
            raise CircleError(f"{name}: no readable image of a class that the model knows; expected some to choose by")
        features = [torch.cat(parts) for parts in zip(*found, strict=True)]
        return cls(features, torch.tensor(targets), torch.cat(timed)[:TIMED_BATCH], unreadable)


def _check_room(model: CircleClassifier, images: int) -> None:
    needed = sum(images * group.size * group.grid.bits // 8 for group in model.groups_)
    require_memory(needed, f"features of {images:,} validation images", "give fewer images")
