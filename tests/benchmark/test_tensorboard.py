"""Logs for TensorBoard."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from circle.benchmark.results import Row, TensorBoardLog
from circle.errors import CircleError


def test_rows_become_scalars(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = TensorBoardLog(tmp_path)
    log.row(Row(10, [5], 100, 2.0, 1.0), 0.5)
    log.row(Row(20, [5], 200, 4.0, 3.0), 0.25)
    log.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("accuracy/all classes seen")] == [(10, 0.5), (20, 0.25)]
    assert [e.value for e in events.Scalars("seconds/learning")] == [2.0, 4.0]


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    with pytest.raises(CircleError, match="pip install circle-cil"):
        TensorBoardLog(tmp_path)
