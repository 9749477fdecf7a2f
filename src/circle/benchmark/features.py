"""Features of a frozen extractor, computed once and kept on disk for all task splits, heads and group sizes."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from circle.checkpoint import atomic_path
from circle.config import Config
from circle.ensemble import CALIBRATION_IMAGES, LEVELS_PER_DEVIATION, Group
from circle.errors import CircleError
from circle.extractors import Extractor, Grid, ImageShape
from circle.streams.datasets import ImageSet

FEATURE_VERSION = 1  # grows when the code would compute other features from the same settings
BATCH = 256


class FeatureStore:
    """A folder of int8 arrays [N, size], one for every member and image set, mapped into memory when read.

    The name of a file is a digest of all that its content depends on: extractor config, image shape, seed, grid rules
    and the data's fingerprint. Files appear when they are complete; a damaged one is made anew.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def group_features(
        self, group: Group, images: ImageSet, report: Callable[[int], None] = lambda done: None
    ) -> list[np.ndarray]:
        """The int8 features [N, size] of each member of a group."""
        if not group.quantise:
            raise CircleError("only quantised features are cached: run without --cache, or with --quantise")
        parts, start = [], 0
        for member in group.members:
            grid = Grid(group.grid.scale[start : start + member.size], group.grid.offset[start : start + member.size])
            parts.append(self._member_features(member, grid, images, report))
            start += member.size
        return parts

    def path(self, config: Config, shape: ImageShape, seed: int, images: ImageSet) -> Path:
        """The file of one member's features of an image set."""
        key = {
            "version": FEATURE_VERSION,
            "extractor": config.to_dict(),
            "shape": [shape.channels, shape.height, shape.width],
            "seed": seed,
            "grid": [CALIBRATION_IMAGES, LEVELS_PER_DEVIATION],
            "images": images.fingerprint,
        }
        digest = hashlib.blake2b(json.dumps(key, sort_keys=True).encode(), digest_size=16).hexdigest()
        return self.folder / f"{config.name}-{digest}.npy"

    def _member_features(
        self, member: Extractor, grid: Grid, images: ImageSet, report: Callable[[int], None]
    ) -> np.ndarray:
        path = self.path(member.config, member.shape, member.seed, images)
        cached = self._read(path, (len(images), member.size))
        if cached is not None:
            report(len(images))
            return cached
        # Written in order through a plain file: a full disk is an error here, not a fault in mapped memory.
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            header = {"descr": "|i1", "fortran_order": False, "shape": (len(images), member.size)}
            np.lib.format.write_array_header_1_0(file, header)
            done = 0
            for batch in images.batches(np.arange(len(images)), BATCH):
                pixels = torch.from_numpy(np.ascontiguousarray(batch)).permute(0, 3, 1, 2).to(torch.float32)
                pixels = pixels.div_(255.0).to(grid.scale.device)
                file.write(grid.quantise(member.features(pixels)).cpu().numpy().tobytes())
                done += len(batch)
                report(done)
        fresh = self._read(path, (len(images), member.size))
        if fresh is None:
            raise CircleError(f"{path}: features that were just written cannot be read")
        return fresh

    @staticmethod
    def _read(path: Path, shape: tuple[int, int]) -> np.ndarray | None:
        """The mapped array, or None where there is none or not a whole one."""
        try:
            features = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        return features if features.shape == shape and features.dtype == np.int8 else None


def check_disk(folder: Path, needed: int) -> None:
    """Refuse to start what the disk cannot hold."""
    free = shutil.disk_usage(folder).free
    if needed > free * 0.95:
        raise CircleError(f"{folder}: {needed / 1e9:.2f} GB of features do not fit, {free / 1e9:.2f} GB are free")
