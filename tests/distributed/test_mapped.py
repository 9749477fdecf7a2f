"""Tensors that are mapped from files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from circle.distributed.mapped import mapped_in


@pytest.mark.parametrize("shape", [[3, 4], [7], [], [0, 4]])
def test_it_is_a_tensor_and_leaves_nothing(tmp_path: Path, shape: list[int]) -> None:
    new = mapped_in(tmp_path)
    values = torch.randint(-9, 9, shape, dtype=torch.int16)
    tensor = new(shape, torch.int16).copy_(values)
    assert torch.equal(tensor, values) and tensor.dtype == torch.int16
    assert list(tmp_path.iterdir()) == []
