"""Times are ratios within a round, sizes are those of files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from circle import CircleClassifier
from circle.compression import measurement


def test_size_is_that_of_the_file(learned: CircleClassifier, tmp_path: Path) -> None:
    learned.save(tmp_path / "packed.circle", for_prediction=True)
    assert measurement.file_bytes(learned.for_prediction()) == (tmp_path / "packed.circle").stat().st_size


def test_ratios_are_taken_within_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is ten times slower in every other round; the second model always takes half as long."""
    seconds = {"first": 4.0, "second": 2.0}
    calls: dict[str, int] = {"first": 0, "second": 0}

    class Model:
        def __init__(self, name: str) -> None:
            self.name = name

        def predict_proba(self, images: Any) -> None:
            calls[self.name] += 1

    def timed(call: Any) -> tuple[float, float]:
        before = dict(calls)
        call()
        name = next(each for each in calls if calls[each] > before[each])
        slowness = 10.0 if calls[name] // 2 % 2 else 1.0
        return seconds[name] * slowness, seconds[name]

    monkeypatch.setattr(measurement, "_timed", timed)
    models: Any = [Model("first"), Model("second")]
    first, second = measurement.time_models(models, torch.zeros(1), 0.0)
    assert (first.clock_ratio, first.work_ratio) == (1.0, 1.0)
    assert (second.clock_ratio, second.work_ratio) == (0.5, 0.5)
    assert second.seconds in (2.0, 20.0)
    assert calls == {"first": 2 * measurement.MIN_ROUNDS, "second": 2 * measurement.MIN_ROUNDS}  # one of two is timed
