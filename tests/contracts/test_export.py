"""Every registered extractor and every registered head exports, and the file says what the model says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from circle import CircleClassifier
from circle.export.checking import TOLERANCE, agreement, open_session
from circle.export.model import onnx_model
from circle.registry import entry, list_extractors, list_heads, resolve

# Small enough for a second each; the contracts of extractors and pairs run on larger ones.
NARROW = {
    "base_channels": 4,
    "width": 12,
    "stem_channels": (4,),
    "stem_kernels": (3,),
    "orientations": 2,
    "filters": (6,),
}


def narrow(name: str, **changes: Any) -> dict[str, Any]:
    fields = entry("extractor", name).config.field_names()
    return {"name": name, **{field: value for field, value in NARROW.items() if field in fields}, **changes}


@pytest.fixture
def check(stream: tuple[np.ndarray, np.ndarray], soften: Any, tmp_path: Path) -> Callable[[CircleClassifier], None]:
    """Export a model, compare the file with it on images of the stream, one by one and together."""
    images, labels = stream
    path = tmp_path / "model.onnx"

    def run(model: CircleClassifier) -> None:
        soften(model.partial_fit(images[:80], labels[:80]), images[80:])
        path.write_bytes(onnx_model(model).SerializeToString())
        pixels = torch.from_numpy(images[80:]).permute(0, 3, 1, 2)
        found = agreement(model, path, [pixels[:39], pixels[39:]], "NHWC")
        assert found.images == 40
        assert found.other_best == 0
        portable = all(group.portable for group in model.groups_)
        assert found.within >= (40 if portable else 38), "a feature on the boundary of two steps is rare"
        assert found.rounded_otherwise == 0 or not portable
        assert 0.3 < model.predict_proba(pixels).max(1).mean() < 0.95, "soft probabilities would show a difference"

        session = open_session(path)
        alone = [session.run(None, {"images": images[index : index + 1]}) for index in range(80, 84)]
        together = session.run(None, {"images": images[80:84]})
        near = 1e-6 if portable else 100 * TOLERANCE
        assert np.concatenate([each[0] for each in alone]) == pytest.approx(together[0], abs=near)
        assert np.array_equal(together[0].argmax(1), together[1])

    return run


@pytest.mark.parametrize("extractor", list_extractors())
def test_extractor(extractor: str, check: Callable[[CircleClassifier], None]) -> None:
    check(CircleClassifier(resolve("extractor", narrow(extractor)), "slda"))


@pytest.mark.parametrize("head", list_heads())
def test_head(head: str, check: Callable[[CircleClassifier], None]) -> None:
    part = narrow("local_contrast", projection="linear", projection_size=16)
    check(CircleClassifier(resolve("extractor", part), head, groups=2))
