"""The picture shows the numbers of the advice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes

from circle.paper.advise import EnsembleMeasurement, GroupMeasurement, advise
from circle.report.advice import advice_figure
from circle.report.drawing import save

MEASURED = [GroupMeasurement(1, 0.9, 0.2), GroupMeasurement(2, 0.8, 0.15), GroupMeasurement(4, 0.75, None)]


def drawn(axes: Axes, start: str) -> tuple[np.ndarray, np.ndarray]:
    """The points of the one line whose label starts like this."""
    (line,) = [line for line in axes.get_lines() if str(line.get_label()).startswith(start)]
    return np.asarray(line.get_xdata()), np.asarray(line.get_ydata())


def test_all_curves_are_drawn(tmp_path: Path) -> None:
    ensembles = {1: EnsembleMeasurement(0.76, 0.4, 1), 2: EnsembleMeasurement(0.73, 0.5, 3)}
    advice = advise(4, MEASURED, ensembles)
    figure = advice_figure(advice, "pets_$ and more")
    left, right = figure.axes
    for axes in (left, right):
        assert drawn(axes, "measured")[1].tolist() == [0.76, 0.73]
        assert drawn(axes, "predicted")[0].tolist() == [1, 2, 4]
        assert drawn(axes, "predicted")[1] == pytest.approx([0.7 + 0.2 / 4, 0.65 + 0.15 / 2, 0.75])
        assert drawn(axes, "recommended: k = 2 groups of m = 2")[0].tolist() == [2, 2]
        assert drawn(axes, "minimum of the paper's bound")[0][0] == advice.best_real_members
        assert axes.get_xscale() == "log"
        assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "4"]
    places, bound = drawn(left, "the paper's bound")
    law = advice.laws.power
    assert law is not None
    assert bound == pytest.approx(law.amplitude * places ** (-2 * law.alpha) + places / 4)
    assert drawn(left, "bound with this")[1][:2] == pytest.approx([0.7 + 0.25, 0.65 + 0.5])
    assert (bound[0], bound[-1]) != (pytest.approx(bound[-1]), pytest.approx(bound[0]))
    assert any(str(line.get_label()).startswith("hollow") for line in left.get_lines())
    for kind in ("png", "svg"):
        save(figure, tmp_path / f"advice.{kind}", kind)
    assert (tmp_path / "advice.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "advice.svg").read_bytes()[:1000]


def test_without_laws_or_ensembles(tmp_path: Path) -> None:
    """A bias that no law fits, and fewer members than the budget: what there is is drawn."""
    advice = advise(8, [GroupMeasurement(1, 0.05, 0.06), GroupMeasurement(2, 0.02, 0.01)], {})
    figure = advice_figure(advice, "nothing to fit")
    labels = [str(line.get_label()) for line in figure.axes[0].get_lines()]
    assert not any(label.startswith(("measured", "the paper's", "minimum", "hollow")) for label in labels)
    save(figure, tmp_path / "advice.png", "png")


def test_many_divisors_do_not_run_into_each_other() -> None:
    advice = advise(5040, MEASURED, {})
    labels = [label.get_text() for label in advice_figure(advice, "many").axes[0].get_xticklabels()]
    assert len(labels) == 60
    assert labels[0] == "1"
    assert 5 < sum(bool(label) for label in labels) < 20
