"""A model file divided by its groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from circle import files
from circle.distributed.model_groups import group_bounds, join_groups, select_groups
from circle.errors import CircleError
from circle.files import learning_contents, restored


def test_bounds_leave_nothing_out() -> None:
    assert group_bounds(4, 4) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert group_bounds(7, 3) == [(0, 2), (2, 4), (4, 7)]
    with pytest.raises(CircleError, match="3 processes for 2 groups"):
        group_bounds(2, 3)


def test_shards_are_models_and_make_up_the_whole(tmp_path: Path, tiny: Any, stream: Any) -> None:
    images, labels = stream
    model = tiny(groups=3, image_size=16).partial_fit(images[:60], labels[:60])
    model.forget(2)
    model.ledger_.add(1, bytes(16))
    header, tensors = learning_contents(model)
    cut = [select_groups(header, tensors, *bounds) for bounds in group_bounds(3, 2)]
    shards = [restored(*contents, "cpu", tmp_path) for contents in cut]
    assert [shard.statistics_ for shard in shards] == [model.statistics_[:1], model.statistics_[1:]]
    assert [len(shard.ledger_) for shard in shards] == [1, 0]
    for shard in (model, *shards):
        shard.partial_fit(images[60:], labels[60:])
    whole_header, whole = join_groups([learning_contents(shard) for shard in shards])
    header, tensors = learning_contents(model)
    assert whole_header == header
    assert whole.keys() == tensors.keys()
    assert all(torch.equal(whole[name], tensors[name]) for name in whole)
    files.write(tmp_path / "joined", whole, whole_header)
    model.save(tmp_path / "saved")
    assert (tmp_path / "joined").read_bytes() == (tmp_path / "saved").read_bytes()
