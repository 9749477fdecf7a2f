"""States of methods as files."""

from __future__ import annotations

from pathlib import Path

import torch

from circle.benchmark.results import load_state, same_state, save_state


def test_nested_state_and_back(tmp_path: Path) -> None:
    state = {
        "classes": ["a", ("b", 1), 3],
        "generator": torch.Generator().manual_seed(3).get_state(),
        "parameters": {"head.weight": torch.randn(2, 3), "deep": {"x": torch.zeros(0)}},
        "epoch": 7,
        "rate": 0.5,
        "nothing": None,
    }
    save_state(tmp_path / "state", state, {"classes_seen": 4})
    loaded, progress = load_state(tmp_path / "state")
    assert progress == {"classes_seen": 4}
    assert same_state(loaded, state)
    loaded["parameters"]["head.weight"][0, 0] += 1
    assert not same_state(loaded, state)
