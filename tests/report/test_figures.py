"""The figures of a report: what is drawn, what is legible, and that nothing covers anything else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from PIL import Image

from circle.benchmark.metrics import Reliability
from circle.benchmark.results import Row, Run
from circle.data.tasks import task_sizes
from circle.report.drawing import STYLES, safe_text, save
from circle.report.figures import (
    LINES,
    choose,
    ensembling_figure,
    first_task_figure,
    reliability_figure,
    stream_figure,
    wall_clock_figure,
)
from circle.report.tables import Cell, collect


def make(
    accuracies: Sequence[float],
    *,
    tasks: str = "5",
    label: str = "CIRCLE",
    seed: int = 0,
    classes: int = 10,
    config: dict[str, Any] | None = None,
    seconds: float = 3.0,
) -> Run:
    """A run in memory that answers a share ``accuracies[t]`` of 100 images of each class right after task t."""
    info = {
        "method": "circle" if label.startswith("CIRCLE") else "other",
        "label": label,
        "dataset": "digits",
        "tasks": [tasks],
        "seed": seed,
        "class_order": list(range(classes)),
        "test_images": [100] * classes,
        "config": config or {},
    }
    ends = np.cumsum(task_sizes(tasks, classes)).tolist()
    rows = [
        Row(end, [round(100 * accuracy)] * end + [0] * (classes - end), end, seconds * end, 1.0)
        for end, accuracy in zip(ends, accuracies, strict=False)
    ]
    return Run(Path(f"{label}-{seed}"), info, rows)


def cells(*runs: Run) -> list[Cell]:
    return collect(runs)[0]


def axes_of(figure: Figure | None) -> Any:
    assert figure is not None
    return figure.axes[0]


def test_mean_line_and_band_by_hand() -> None:
    runs = [make([0.9, 0.8, 0.7, 0.6, 0.5], seed=0), make([0.7, 0.8, 0.5, 0.6, 0.3], seed=1)]
    axes = axes_of(stream_figure(cells(*runs), "digits"))
    (line,) = axes.get_lines()
    assert line.get_xdata().tolist() == [2, 4, 6, 8, 10]
    assert line.get_ydata() == pytest.approx([80, 80, 60, 60, 40])
    (band,) = [part for part in axes.collections if isinstance(part, PolyCollection)]
    corners = np.concatenate([path.vertices for path in band.get_paths()])
    # Two seeds that are 20 apart deviate by 10 sqrt(2).
    assert corners[:, 1].max() == pytest.approx(80 + 200**0.5)
    assert corners[:, 1].min() == pytest.approx(40 - 200**0.5)


def test_one_seed_has_no_band() -> None:
    axes = axes_of(first_task_figure(cells(make([0.5] * 5)), "digits"))
    assert not axes.collections


def test_a_stopped_run_is_drawn_as_far_as_it_got() -> None:
    runs = [make([0.9, 0.8, 0.7, 0.6, 0.5], seed=0), make([0.7, 0.6], seed=1), make([0.4], label="other")]
    axes = axes_of(stream_figure(cells(*runs), "digits"))
    lines = {line.get_label(): line.get_ydata() for line in axes.get_lines()}
    assert lines["CIRCLE"] == pytest.approx([80, 70, 70, 60, 50])
    assert lines["other"] == pytest.approx([40])


def test_wall_clock_is_logarithmic_in_learning_seconds() -> None:
    axes = axes_of(
        wall_clock_figure(cells(make([0.5] * 5, seconds=2.0), make([0.5] * 5, seed=1, seconds=4.0)), "digits")
    )
    assert axes.get_xscale() == "log"
    assert axes.get_lines()[0].get_xdata() == pytest.approx([6, 12, 18, 24, 30])


def test_no_seconds_at_all_can_be_drawn(tmp_path: Path) -> None:
    figure = wall_clock_figure(cells(make([0.5] * 5, seconds=0.0)), "digits")
    assert figure is not None
    save(figure, tmp_path / "f.png", "png")


def test_markers_thin_out_on_a_long_stream() -> None:
    runs = [make([0.5] * 541, tasks="541", classes=541, label=label) for label in ("CIRCLE", "other")]
    axes = axes_of(stream_figure(cells(*runs), "long"))
    marks = [line.get_markevery() for line in axes.get_lines()]
    assert all(8 <= len(places) <= 12 and places[-1] == 540 for places in marks)
    assert not set(marks[0][:-1]) & set(marks[1][:-1])


def test_lines_differ_in_more_than_colour() -> None:
    assert len({style["marker"] for style in STYLES}) == len({str(style["linestyle"]) for style in STYLES}) == LINES


def test_the_legend_covers_nothing_and_odd_labels_are_drawn_as_they_are(tmp_path: Path) -> None:
    labels = ["CIRCLE", "_hidden", "$x$ and $", "<b>|", "x" * 200, "漢字"]
    figure = stream_figure(cells(*[make([0.5] * 5, label=label) for label in labels]), "odd $ title_")
    assert figure is not None
    save(figure, tmp_path / "f.png", "png")
    (legend,) = figure.legends
    assert len(legend.get_texts()) == len(labels)
    box, panel = legend.get_window_extent(), figure.axes[0].get_tightbbox()
    assert panel is not None and box.y1 <= panel.y0
    assert box.x0 >= 0 and box.x1 <= figure.bbox.width


def test_text_is_drawn_as_it_stands() -> None:
    assert safe_text("a $b$\nc") == r"a \$b\$ c"
    assert not safe_text("_x").startswith("_")
    assert len(safe_text("y" * 99, 60)) == 60


def test_accuracy_against_k_and_m() -> None:
    sizes = {(1, 1): 0.2, (2, 1): 0.3, (4, 1): 0.4, (1, 2): 0.5, (8, 8): 0.6}
    runs = [
        make([value] * 5, config={"groups": k, "members": m}, seed=seed)
        for (k, m), value in sizes.items()
        for seed in range(2)
    ]
    figure = ensembling_figure(cells(*runs), "digits")
    assert figure is not None
    left, right = figure.axes
    assert (left.get_xlabel()[0], right.get_xlabel()[0]) == ("k", "m")
    # A line needs two points: m = 1 over k = 1, 2, 4, and k = 1 over m = 1, 2.
    assert [(str(line.get_label()), list(line.get_xdata())) for line in left.get_lines()] == [("m = 1", [1, 2, 4])]
    (line,) = right.get_lines()
    assert (line.get_label(), list(line.get_ydata())) == ("k = 1", pytest.approx([20, 50]))
    assert ensembling_figure(cells(*runs)[:1], "digits") is None


def test_too_many_lines_lose_variants_first() -> None:
    many = cells(*[make([number / 20] * 5, label=f"method {number}") for number in range(10)], make([0.1] * 5))
    best = next(cell for cell in many if cell.label == "method 9")
    kept = [cell.label for cell in choose(many, [best])]
    assert len(kept) == LINES
    assert kept[0] == "CIRCLE" and "method 9" not in kept and "method 8" in kept and "method 0" not in kept


def test_nothing_to_draw() -> None:
    run = make([], label="other")
    run.rows.append(Row(1, [1] + [0] * 9, 1, 1.0, 1.0))  # within the first task
    (cell,) = cells(run)
    assert stream_figure([cell], "x") is first_task_figure([cell], "x") is wall_clock_figure([cell], "x") is None


def test_files(tmp_path: Path) -> None:
    figure = stream_figure(cells(make([0.5] * 5), make([0.6] * 5, seed=1)), "digits")
    assert figure is not None
    for kind in ("png", "svg"):
        save(figure, tmp_path / f"f.{kind}", kind)
    pixels = np.array(Image.open(tmp_path / "f.png").convert("RGB"))
    assert pixels.shape[1] > 900
    assert (pixels == [0x00, 0x72, 0xB2]).all(axis=2).sum() > 300
    text = (tmp_path / "f.svg").read_text()
    assert text.lstrip().startswith("<?xml") and "</svg>" in text
    save(figure, tmp_path / "again.svg", "svg")
    assert (tmp_path / "again.svg").read_text() == text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.svg", "f.png", "f.svg"]


def test_reliability_is_drawn_bin_by_bin(tmp_path: Path) -> None:
    found = Reliability(bins=4)
    for probability, right in [(0.3, False), (0.4, True), (0.9, True)]:
        found.add(probability, right)
    figure = reliability_figure(found, "pets.circle on held_back")
    upper, lower = figure.axes
    diagonal, line = upper.get_lines()
    assert np.allclose(np.asarray(diagonal.get_xdata()), np.asarray(diagonal.get_ydata()))
    assert np.allclose(np.asarray(line.get_xdata()), [35, 90])
    assert np.allclose(np.asarray(line.get_ydata()), [50, 100])
    assert [bar.get_height() for bar in lower.patches] == [2, 1]  # pyright: ignore[reportAttributeAccessIssue]
    save(figure, tmp_path / "bins.png", "png")
    with Image.open(tmp_path / "bins.png") as shown:
        assert shown.format == "PNG"
