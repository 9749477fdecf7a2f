"""Settings of the Patch-RNNs that their defaults do not reach, on odd sides and one channel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from circle.config import Config
from circle.export.reservoirs import scan
from circle.extractors import ConvPatchRNNConfig, Extractor, ImageShape, PatchRNNConfig, build_extractor

CONFIGS = [
    PatchRNNConfig(width=5, activation="relu", radius=0.5, patch_size=3),
    ConvPatchRNNConfig(width=5, stem_channels=(2,), stem_kernels=(3,), leak=0.3),
]


@pytest.mark.parametrize("shape", [ImageShape(1, 9, 13), ImageShape(3, 8, 8)], ids=["grey", "colour"])
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_form(config: Config, shape: ImageShape, error_of: Callable[[Extractor], float]) -> None:
    assert error_of(build_extractor(config, shape, 3)) < 1e-3


@pytest.mark.parametrize("backward", [0, 1])
def test_scan_runs_both_ways(backward: int, run_graph: Callable[..., np.ndarray]) -> None:
    drive, weight = torch.randn(2, 4, 3), torch.randn(3, 3) / 3
    state, states = torch.zeros(2, 3), torch.zeros(2, 4, 3)
    for step in range(4)[:: -1 if backward else 1]:
        state = 0.2 * state + 0.8 * torch.tanh(drive[:, step] + state @ weight)
        states[:, step] = state

    def part(index: int) -> np.ndarray:
        return run_graph(
            lambda graph, x: scan(graph, x, weight, 0.8, ("Tanh", {}), axis=1, backward=backward)[index],
            drive.numpy(),
            3 if index else 2,
        )

    assert part(0) == pytest.approx(state.numpy(), abs=1e-5)
    assert part(1) == pytest.approx(states.numpy(), abs=1e-5)
