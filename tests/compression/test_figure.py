"""The picture shows every way that was tried, and the choice."""

from __future__ import annotations

import pytest

from circle.compression.measurement import Timing
from circle.compression.search import Compression, Step, compression_figure


def step(way: str | None, accuracy: float, *, chosen: bool = False) -> Step:
    timing = Timing(0.001, 0.9, 0.8)
    return Step(way, "int8", None, 1, 4, 64, accuracy, 0.0, 5000, True, chosen, timing, timing)  # pyright: ignore[reportArgumentType]


def test_lines_of_all_ways() -> None:
    steps = [step(None, 0.6), step("weights", 0.6), step("parts", 0.58, chosen=True), step("parts", 0.5)]
    figure = compression_figure(Compression(None, steps, 100, 64, []), "a title")  # pyright: ignore[reportArgumentType]
    left, _, right = figure.axes
    labels = {line.get_label(): line for line in left.lines}
    assert set(labels) == {"as it is", "weights in fewer bits", "fewer parts", "chosen"}
    assert labels["fewer parts"].get_ydata() == pytest.approx([58.0, 50.0])
    assert labels["fewer parts"].get_xdata() == pytest.approx([0.8, 0.8])
    assert right.lines[0].get_xdata() == pytest.approx([5.0])
