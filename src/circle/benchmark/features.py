"""Features of a frozen extractor, computed once and kept on disk for all task splits, heads and group sizes."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from circle.config import Config
from circle.data.datasets import Dataset
from circle.data.images import Images
from circle.ensemble import CALIBRATION_IMAGES, LEVELS_PER_DEVIATION, Group
from circle.errors import CircleError
from circle.extractors import Extractor, Grid, ImageShape
from circle.learner import CircleClassifier
from circle.method import CircleMethod, Method
from circle.runtime.container import atomic_path
from circle.runtime.weights import FEATURE_VERSION

IMAGES_PER_BATCH = 256

OnImages = Callable[[str, int, int], None]  # told what is extracted, how many images are done, and of how many


class FeatureStore:
    """A folder of int8 or int16 arrays [N, size], one for every member and image set, mapped into memory when read.

    The name of a file is a digest of all that its content depends on: extractor config, image shape, seed, grid rules
    and the data's fingerprint. Files appear when they are complete; a damaged one is made anew.

    Parameters
    ----------
    folder
        Where the files are; made where it is missing. It may be deleted at any time between runs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def group_features(
        self, group: Group, images: Images, report: Callable[[int], None] = lambda done: None
    ) -> tuple[list[np.ndarray], float]:
        """The integer features [N, size] of each member of a group, and the seconds it once took to compute them."""
        if not group.quantise:
            raise CircleError("only quantised features are cached: run without --cache, or with --quantise")
        parts, seconds, start = [], 0.0, 0
        for member in group.members:
            part = slice(start, start + member.size)
            grid = Grid(group.grid.scale[part], group.grid.offset[part], group.grid.bits)
            features, took = self._member_features(member, grid, images, report)
            parts.append(features)
            seconds += took
            start += member.size
        return parts, seconds

    def path(self, config: Config, shape: ImageShape, seed: int, images: Images) -> Path:
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
        self, member: Extractor, grid: Grid, images: Images, report: Callable[[int], None]
    ) -> tuple[np.ndarray, float]:
        path = self.path(member.config, member.shape, member.seed, images)
        shape = (len(images), member.size)
        integers = np.dtype(f"<i{grid.bits // 8}")
        cached = self._read(path, shape, integers)
        if cached is not None:
            report(len(images))
            return cached
        started = time.perf_counter()
        # Written in order through a plain file: a full disk is an error here, not a fault in mapped memory.
        header = {"descr": integers.str, "fortran_order": False, "shape": shape}
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            done = 0
            for batch in images.batches(np.arange(len(images)), IMAGES_PER_BATCH):
                pixels = torch.from_numpy(np.ascontiguousarray(batch)).permute(0, 3, 1, 2).to(grid.scale.device)
                file.write(grid.quantise(member.features(pixels)).cpu().numpy().tobytes())
                done += len(batch)
                report(done)
        # Whoever finds the features must be able to say what they cost.
        with atomic_path(_note(path)) as temporary:
            temporary.write_text(json.dumps({"seconds": time.perf_counter() - started, "images": len(images)}))
        fresh = self._read(path, shape, integers)
        if fresh is None:
            raise CircleError(f"{path}: features that were just written cannot be read")
        return fresh

    @staticmethod
    def _read(path: Path, shape: tuple[int, int], integers: np.dtype) -> tuple[np.ndarray, float] | None:
        """The mapped array and its seconds, or None where there is none or not a whole one."""
        try:
            features = np.load(path, mmap_mode="r", allow_pickle=False)
            seconds = float(json.loads(_note(path).read_text())["seconds"])
        except (OSError, ValueError, EOFError, KeyError, TypeError):
            return None
        return (features, seconds) if features.shape == shape and features.dtype == integers else None


def _note(path: Path) -> Path:
    return path.with_suffix(".json")


def check_disk(folder: Path, needed: int) -> None:
    """Refuse to start what the disk cannot hold."""
    free = shutil.disk_usage(folder).free
    if needed > free * 0.95:
        raise CircleError(f"{folder}: {needed / 1e9:.2f} GB of features do not fit, {free / 1e9:.2f} GB are free")


def cache_features(method: Method, dataset: Dataset, store: FeatureStore, on_images: OnImages) -> None:
    """Compute, or find, the features of all images for a method with frozen extractors."""
    if not isinstance(method, CircleMethod):
        return
    for split, images in zip(("training", "test"), method.own_images(dataset), strict=True):
        features, seconds = features_of(method.classifier, images, store, partial(on_images, split))
        method.use_features(images, features, seconds)


def features_of(
    classifier: CircleClassifier, images: Images, store: FeatureStore, report: Callable[[int, int], None]
) -> tuple[list[list[np.ndarray]], float]:
    """Features of all images of a set: for each group, for each member, integers [N, size]; and what they once took."""
    found = [
        store.group_features(group, images, lambda done: report(done, len(images))) for group in classifier.groups_
    ]
    return [parts for parts, _ in found], sum(seconds for _, seconds in found)
