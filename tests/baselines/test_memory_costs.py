"""Memory estimates of methods."""

from __future__ import annotations

import pytest
import torch

from circle.baselines.costs import Course, activation_bytes, memory_needed
from circle.extractors import ImageShape
from circle.registry import entry, list_methods

SHAPE = ImageShape(3, 16, 16)
COURSE = Course([200] * 5, [2] * 5)


@pytest.mark.parametrize("name", list_methods())
def test_more_of_everything_needs_more(name: str) -> None:
    config = entry("method", name).config(width=8)
    base = memory_needed(config, SHAPE, COURSE)
    assert 0 < base < 10e9
    assert memory_needed(config, SHAPE, Course([400] * 5, [2] * 5)) > base
    assert memory_needed(config, ImageShape(3, 32, 32), COURSE) > base
    assert memory_needed(config.replace(width=16), SHAPE, COURSE) > base


def test_covariances_of_the_published_networks() -> None:
    """512 x 512 numbers of 8 bytes for each of 100 classes, as much for their factors, and for a copy as they grow."""
    course = Course([500] * 100, [1] * 100)
    fecam, lwf = (
        memory_needed(entry("method", name).config(batch_size=128), SHAPE, course) for name in ("fecam", "lwf")
    )
    assert fecam - lwf == pytest.approx(3 * 8 * 100 * 512**2, rel=0.01)


def test_activations_of_a_linear_layer() -> None:
    """A linear map keeps its input, three values of two images; its weights are not counted."""

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3 * 4, 5)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.layer(images.flatten(1) * 2.0)

    assert activation_bytes(Network(), ImageShape(3, 2, 2)) == 4 * 12
