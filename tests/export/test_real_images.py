"""The agreement on photographs, where they are present."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from circle import CircleClassifier
from circle.export.checking import TOLERANCE, agreement, open_session
from circle.export.model import onnx_model

pytestmark = pytest.mark.real_data


@pytest.mark.parametrize("preset", ["small", "reservoir"])
def test_photographs(preset: str, real_data: Path, tmp_path: Path) -> None:
    """Ten classes of CIFAR-100, 300 images to learn, 100 others to compare on."""
    records = np.fromfile(real_data / "cifar-100-binary" / "train.bin", np.uint8).reshape(-1, 3074)
    records = records[records[:, 1] < 10][:400]
    images, labels = torch.from_numpy(records[:, 2:].reshape(-1, 3, 32, 32).copy()), records[:, 1].astype(int)
    model = CircleClassifier.from_preset(preset).partial_fit(images[:300], labels[:300])
    path, others = tmp_path / "model.onnx", images[300:]
    path.write_bytes(onnx_model(model, "NCHW").SerializeToString())

    probabilities, best = open_session(path).run(None, {"images": others.numpy()})
    expected = model.predict_proba(others)
    differences = np.abs(probabilities - expected).max(1)
    assert np.array_equal(best, expected.argmax(1))
    assert (differences <= TOLERANCE).mean() >= 0.95, "0.0001 but for features on the boundary of two steps"
    assert differences.max() < 20 * TOLERANCE
    found = agreement(model, path, others.split(50), "NCHW")  # raises where rounding does not explain a difference
    assert (found.images, found.other_best) == (100, 0)
