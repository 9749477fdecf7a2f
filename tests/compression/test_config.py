"""CompressionConfig that cannot be are refused at once."""

from __future__ import annotations

from typing import Any

import pytest

from circle.compression import CompressionConfig
from circle.errors import CircleError


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"ways": ("magic",)}, "way 'magic': expected weights, groups, parts, rank"),
        ({"weights": "int3"}, "weights 'int3': expected float32, float16, int8"),
        ({"max_loss": -1}, "max loss -1: expected points"),
        ({"max_loss": float("nan")}, "max loss nan: expected points"),
        ({"target_bytes": 0}, "target size 0: expected a positive"),
        ({"timing_seconds": -1}, "timing seconds -1: expected 0 or more"),
    ],
)
def test_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(CircleError, match=message):
        CompressionConfig(**config)
