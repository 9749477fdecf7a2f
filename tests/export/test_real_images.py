"""The agreement on photographs, where they are present."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from circle import CircleClassifier
from circle.export.checking import agreement, open_session, with_positions
from circle.export.model import onnx_model, positions_name

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
    assert differences.max() < 1e-6, "probabilities of the same integers, in float32"
    session = open_session(with_positions(model.for_prediction(), path))
    (features,) = model.features(others)
    (positions,) = session.run([positions_name(0)], {"images": others.numpy()})
    assert np.array_equal(positions, features.numpy())
    found = agreement(model, path, others.split(50), "NCHW")
    assert (found.images, found.within, found.other_best, found.rounded_otherwise) == (100, 100, 0, 0)
