"""The promises on real images, where they are present."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from circle import CircleClassifier
from circle.cli import run

pytestmark = pytest.mark.real_data


@pytest.fixture(scope="module")
def cifar(real_data: Path) -> tuple[torch.Tensor, np.ndarray, torch.Tensor, np.ndarray]:
    """10 classes of CIFAR-100: 3,000 images to learn and 600 others of the training set to look at."""
    records = np.fromfile(real_data / "cifar-100-binary" / "train.bin", np.uint8).reshape(-1, 3074)
    records = records[records[:, 1] < 10][:3600]
    images = torch.from_numpy(records[:, 2:].reshape(-1, 3, 32, 32).copy())
    labels = records[:, 1].astype(int)
    return images[:3000], labels[:3000], images[3000:], labels[3000:]


@pytest.fixture(scope="module")
def learned(cifar: tuple) -> CircleClassifier:
    images, labels, _, _ = cifar
    return CircleClassifier.from_preset("small").fit(images, labels)


def test_exact_on_photographs(cifar: tuple) -> None:
    images, labels, _, _ = cifar
    torch.set_num_threads(2)
    whole = CircleClassifier.from_preset("small").fit(images[:600], labels[:600])
    order = np.random.default_rng(0).permutation(600)
    torch.set_num_threads(1)
    parts = [CircleClassifier.from_preset("small") for _ in range(2)]
    for start in range(0, 600, 37):
        part = order[start : start + 37]
        parts[start % 2].partial_fit(images[part], labels[part])
    assert (parts[0] + parts[1]).statistics_ == whole.statistics_


def test_learns_photographs(cifar: tuple, learned: CircleClassifier) -> None:
    images, _, others, answers = cifar
    model = learned
    accuracy = model.score(others, answers)
    assert accuracy > 0.5, "chance is 0.1; 0.68 was seen"
    assert accuracy > model.with_head("ncm").score(others, answers) + 0.1
    clipped = torch.cat([model.groups_[0].features(images[:500]).abs() == 127]).float().mean()
    assert float(clipped) < 0.001, "the grid calibrated on noise holds real images"


def test_rounding_costs_nothing(cifar: tuple, learned: CircleClassifier) -> None:
    images, labels, others, answers = cifar
    exact = learned.score(others, answers)
    rounded = CircleClassifier.from_preset("small", quantise=False).fit(images, labels).score(others, answers)
    assert abs(exact - rounded) < 0.02


def test_folders_of_photographs(real_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three classes of the Caltech-101 sample, photographs of about 300 pixels of all shapes."""
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        for name in ("airplanes", "Faces", "Motorbikes"):
            (tmp_path / split / name).symlink_to(real_data / "caltech101-sample" / split / name)
    model = tmp_path / "model"
    assert run(["learn", str(model), str(tmp_path / "train")]) == 0
    capsys.readouterr()
    assert run(["evaluate", str(model), str(tmp_path / "test"), "--json"]) == 0
    assert CircleClassifier.load(model).samples_ == 30
    assert json.loads(capsys.readouterr().out)["accuracy"] >= 0.8, "chance is 0.33"


def test_omniglot_npz_learns_by_name(real_data: Path, tmp_path: Path) -> None:
    with np.load(real_data / "omniglot.npz") as arrays:
        labels = arrays["y"]
        chosen = labels < 5
        np.savez(tmp_path / "five.npz", x=arrays["x"][chosen], y=labels[chosen], class_names=arrays["class_names"])
    model = tmp_path / "model"
    assert run(["learn", str(model), str(tmp_path / "five.npz"), "--channels", "1"]) == 0
    loaded = CircleClassifier.load(model)
    assert loaded.samples_ == 100
    assert all(isinstance(label, str) for label in loaded.classes_.tolist())
