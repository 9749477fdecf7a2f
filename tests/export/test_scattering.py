"""Scattering by matrices against scattering by fast Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from circle.export.scattering import fourier, inverse_fourier
from circle.extractors import Extractor, ImageShape, ScatteringConfig, build_extractor

CONFIGS = {
    "whole": ScatteringConfig(orientations=3, grid=0),
    "pooled": ScatteringConfig(orientations=2, grid=2, power=0.5, scales=2),
    "first order": ScatteringConfig(orientations=3, order=1),
    "three scales": ScatteringConfig(orientations=2, scales=3, projection="linear", projection_size=8),
}


@pytest.mark.parametrize("shape", [ImageShape(1, 9, 17), ImageShape(3, 16, 16)], ids=["grey", "colour"])
@pytest.mark.parametrize("name", CONFIGS)
def test_form(name: str, shape: ImageShape, error_of: Callable[[Extractor], float]) -> None:
    assert error_of(build_extractor(CONFIGS[name], shape, 0)) < 1e-3


def test_there_and_back(run_graph: Callable[..., np.ndarray]) -> None:
    x = np.random.default_rng(0).normal(size=(2, 6, 5)).astype(np.float32)
    transform = torch.fft.fft2(torch.from_numpy(x)).numpy()
    for part, expected in enumerate((transform.real, transform.imag)):
        found = run_graph(lambda graph, value, part=part: fourier(graph, value, 6, 5)[part], x, 3)
        assert found == pytest.approx(expected, abs=1e-4)
    back = run_graph(lambda graph, value: inverse_fourier(graph, fourier(graph, value, 6, 5), 6, 5)[0], x, 3)
    assert back == pytest.approx(x, abs=1e-5)
