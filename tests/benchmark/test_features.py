"""The store of features on disk."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from circle import BiRC2DConfig
from circle.benchmark.features import FeatureStore, check_disk
from circle.data.datasets import load_dataset
from circle.data.images import Images
from circle.ensemble import build_groups
from circle.errors import CircleError
from circle.extractors import ImageShape
from circle.runtime.weights import FEATURE_VERSION

CONFIG = BiRC2DConfig(stem_channels=(2,), width=2, grid=1, moments=("mean",))
SHAPE = ImageShape(1, 32, 32)


def test_written_once_whole_and_mended(tmp_path: Path) -> None:
    images = load_dataset("digits").test
    (group,) = build_groups(CONFIG, SHAPE, groups=1, members=2, seed=0)
    store = FeatureStore(tmp_path / "features")
    seen: list[int] = []
    parts, seconds = store.group_features(group, images, seen.append)
    assert seconds > 0
    assert seen[-1] == len(images)
    pixels = images[np.arange(5)]
    expected = group.features(torch.from_numpy(pixels).permute(0, 3, 1, 2)).numpy()
    assert np.array_equal(np.concatenate([part[:5] for part in parts], 1), expected)

    path = store.path(CONFIG, SHAPE, 0, images)
    before, stamp = path.read_bytes(), path.stat().st_mtime_ns
    assert store.group_features(group, images)[1] == seconds, "what it took is remembered"
    assert path.stat().st_mtime_ns == stamp, "not made twice"
    for damage in (before[:-10], b"nonsense", b""):
        path.write_bytes(damage)
        store.group_features(group, images)
        assert path.read_bytes() == before, "an unreadable file is made anew"
    assert not list(store.folder.glob("*.tmp"))


def test_keys_depend_on_all_that_matters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = load_dataset("digits")
    store = FeatureStore(tmp_path)

    def path(config: BiRC2DConfig = CONFIG, seed: int = 0, images: Images = digits.train) -> Path:
        return store.path(config, SHAPE, seed, images)

    paths = [path(), path(CONFIG.replace(width=3)), path(seed=1), path(images=digits.test)]
    assert len(set(paths)) == 4
    assert path() == paths[0]
    monkeypatch.setattr("circle.benchmark.features.FEATURE_VERSION", FEATURE_VERSION + 1)
    assert path() not in paths, "integers of another version are not read"


def test_float_features_are_not_cached(tmp_path: Path) -> None:
    (group,) = build_groups(CONFIG, SHAPE, groups=1, members=1, seed=0, quantise=False)
    with pytest.raises(CircleError, match="only quantised"):
        FeatureStore(tmp_path).group_features(group, load_dataset("digits").test)


def test_disk_is_checked_first(tmp_path: Path) -> None:
    check_disk(tmp_path, 1000)
    with pytest.raises(CircleError, match="do not fit"):
        check_disk(tmp_path, 10**18)


def test_full_disk(tiny_disk: Path) -> None:
    """A real disk of 128 kB: a clear error, nothing half-written, and a second run on a larger one succeeds."""
    images = load_dataset("digits").train
    (group,) = build_groups(CONFIG.replace(grid=3), SHAPE, groups=1, members=1, seed=0)
    store = FeatureStore(tiny_disk / "features")
    with pytest.raises(CircleError, match="No space left on device"):
        store.group_features(group, images)
    assert list(store.folder.iterdir()) == []
    subprocess.run(["mount", "-o", "remount,size=8m", str(tiny_disk)], check=True)
    (features,), _ = store.group_features(group, images)
    assert features.shape == (1257, group.size)
