"""Any head works with any extractor, chosen by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from circle import CircleClassifier
from circle.registry import entry, list_extractors, list_heads, resolve

# Full-size networks on every pair would take minutes and show nothing more.
NARROW = {"base_channels": 8, "width": 24, "stem_channels": (4, 4)}


def narrow(name: str) -> dict[str, Any]:
    fields = entry("extractor", name).config.field_names()
    small: dict[str, Any] = {field: value for field, value in NARROW.items() if field in fields}
    if name == "birc2d":
        small["stem_channels"] = (4,)
    return {"name": name, "projection": "linear", "projection_size": 24, **small}


@pytest.mark.parametrize("head", list_heads())
@pytest.mark.parametrize("extractor", list_extractors())
def test_pair(extractor: str, head: str, stream: tuple[np.ndarray, np.ndarray]) -> None:
    images, labels = stream
    model = CircleClassifier(resolve("extractor", narrow(extractor)), head, groups=2)
    model.partial_fit(images[:90], labels[:90])
    probabilities = model.predict_proba(images[90:])
    assert probabilities.sum(1) == pytest.approx(1.0)
    assert (model.classes_[probabilities.argmax(1)] == labels[90:]).mean() > 0.4, "far above one in four"
    assert model.settings()["extractor"]["name"] == extractor
    assert model.settings()["head"]["name"] == head
