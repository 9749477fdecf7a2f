"""Figures of results: mean lines with the standard deviation over seeds shaded, confusion matrices, reliability."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

from circle.benchmark.metrics import Reliability, StreamRecord
from circle.report.drawing import STYLES, dress, new_figure, safe_text, save
from circle.report.tables import Cell, Curve, Summary

LINES = len(STYLES)  # more would not be told apart
MAX_NUMBERED = 20  # classes of a confusion matrix up to which a cell has room for its number
MAX_NAMED = 100  # classes of a confusion matrix up to which a row has room for its name
MARKERS = 10  # on a line, however many tasks there are


def stream_figure(cells: Sequence[Cell], title: str) -> Figure | None:
    """Accuracy on all classes seen so far, against the number of classes seen."""
    return _over_stream(cells, title, "accuracy on all classes seen (%)", lambda record: record.accuracy_after_task)


def first_task_figure(cells: Sequence[Cell], title: str) -> Figure | None:
    """Accuracy on the classes of the first task, against the number of classes seen."""
    return _over_stream(cells, title, "accuracy on the first task (%)", lambda record: record.first_task_accuracy)


def wall_clock_figure(cells: Sequence[Cell], title: str) -> Figure | None:
    """Accuracy on all classes seen so far, against the seconds of learning that it took, on a log axis."""
    curves = _curves(cells, lambda record: record.accuracy_after_task)
    if not curves:
        return None
    figure, axes = _start(title)
    for number, ((label, curve), style) in enumerate(zip(curves.items(), cycle(STYLES), strict=False)):
        seconds = np.maximum(curve.learning_seconds, 1e-3)  # a log axis has no zero
        _line(axes, seconds, curve.mean, curve.std, label, style, number)
    axes.set_xscale("log")
    first, last = axes.get_xlim()
    # Powers of ten alone would leave a short axis with one number or none.
    axes.xaxis.set_major_locator(LogLocator(subs=(1,) if last / first > 100 else (1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("seconds of learning, evaluation not counted (log scale)")
    axes.set_ylabel("accuracy on all classes seen (%)")
    _finish(figure, axes)
    return figure


def ensembling_figure(cells: Sequence[Cell], title: str) -> Figure | None:
    """Average incremental accuracy against k for fixed m, and against m for fixed k; lines need two points."""
    values: dict[tuple[int, int], Summary] = {}
    for cell in cells:
        summary = cell.summary(lambda record: record.average_incremental_accuracy)
        if summary:
            values[cell.config["groups"], cell.config["members"]] = summary
    panels = [_sweep(values, fixed=1), _sweep(values, fixed=0)]
    names = [("k (heads)", "m"), ("m (members of a head)", "k")]
    shown = [(lines, *name) for lines, name in zip(panels, names, strict=True) if lines]
    if not shown:
        return None
    figure = new_figure(4.6 * len(shown) + 0.6, 4.4)
    figure.suptitle(safe_text(title, 90), fontsize=11)
    all_axes = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axes, (lines, varying, fixed) in zip(all_axes, shown, strict=True):
        for number, ((held, points), style) in enumerate(zip(lines.items(), cycle(STYLES), strict=False)):
            places = np.array([place for place, _ in points], dtype=float)
            means = np.array([summary.mean for _, summary in points])
            stds = np.array([np.nan if summary.std is None else summary.std for _, summary in points])
            _line(axes, places, means, stds, f"{fixed} = {held}", style, number)
        ticks = sorted({place for points in lines.values() for place, _ in points})
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel(varying)
        dress(axes)
        # Below the panel, where it covers no line.
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14), "ncols": min(4, len(lines))}
        axes.legend(**place, frameon=False, handlelength=3.5, fontsize=8)
    all_axes[0].set_ylabel("average incremental accuracy (%)")
    return figure


def choose(cells: Sequence[Cell], variants: Sequence[Cell]) -> list[Cell]:
    """At most as many cells as lines can be told apart, CIRCLE first: the first line lies on top.

    Variants that an ablation made are the first to be left out, and then the least accurate.
    """

    def worth(cell: Cell) -> tuple[bool, float]:
        summary = cell.summary(lambda record: record.average_incremental_accuracy)
        return cell in variants, -(summary.mean if summary else 0.0)

    kept = sorted(cells, key=worth)[:LINES]
    by_method = sorted(kept, key=lambda cell: cell.rank, reverse=True)
    return sorted(by_method, key=lambda cell: cell in variants)


def _over_stream(
    cells: Sequence[Cell], title: str, what: str, metric: Callable[[StreamRecord], np.ndarray]
) -> Figure | None:
    curves = _curves(cells, metric)
    if not curves:
        return None
    figure, axes = _start(title)
    for number, ((label, curve), style) in enumerate(zip(curves.items(), cycle(STYLES), strict=False)):
        _line(axes, curve.classes_seen, curve.mean, curve.std, label, style, number)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=9, steps=[1, 2, 5, 10], integer=True))
    axes.set_xlabel("classes seen")
    axes.set_ylabel(what)
    axes.set_xlim(left=0)
    _finish(figure, axes)
    return figure


def _curves(cells: Sequence[Cell], metric: Callable[[StreamRecord], np.ndarray]) -> dict[str, Curve]:
    """By label; methods that were stopped before the first task ended have none."""
    return {cell.label: curve for cell in cells if (curve := cell.curve(metric))}


def _sweep(values: dict[tuple[int, int], Summary], fixed: int) -> dict[int, list[tuple[int, Summary]]]:
    """For each value of one of (k, m) that has at least two of the other: (other, result) in ascending order."""
    lines: dict[int, list[tuple[int, Summary]]] = {}
    for place, summary in sorted(values.items()):
        lines.setdefault(place[fixed], []).append((place[1 - fixed], summary))
    kept = {held: points for held, points in sorted(lines.items()) if len(points) > 1}
    return dict(list(kept.items())[-LINES:])


def _start(title: str) -> tuple[Figure, Axes]:
    figure = new_figure(6.6, 4.6)
    axes = figure.subplots()
    dress(axes, safe_text(title, 80))
    return figure, axes


def _line(axes: Axes, x: np.ndarray, mean: np.ndarray, std: np.ndarray, label: str, style: dict, number: int) -> None:
    """A mean line with its band; markers thin out on long streams and start at different places on each line."""
    every = max(1, -(-len(x) // MARKERS))
    marked = sorted({*range((number * every) // LINES, len(x), every), len(x) - 1})
    look = {**style, "markersize": 0.7 * style["markersize"], "markeredgewidth": 1.3, "markerfacecolor": "white"}
    axes.plot(x, mean, label=safe_text(label), markevery=marked, linewidth=1.7 if len(x) <= 100 else 1.2, **look)
    if not np.isnan(std).all():
        band = {"color": style["color"], "alpha": 0.2, "linewidth": 0, "zorder": style["zorder"] - 2}
        low, high = np.clip(mean - std, 0, 100), np.clip(mean + std, 0, 100)
        axes.fill_between(x, low, high, where=~np.isnan(std), **band)


def _finish(figure: Figure, axes: Axes) -> None:
    """From zero to a little above the highest line, and the legend below, where it covers nothing."""
    top = max(float(np.nanmax(np.asarray(line.get_ydata(), dtype=float))) for line in axes.get_lines())
    axes.set_ylim(-0.03 * max(top, 1), min(104, 1.12 * max(top, 1)))
    handles, names = axes.get_legend_handles_labels()
    longest = max(map(len, names))
    columns = 1 if longest > 40 else 2 if longest > 18 else 3
    look = {"frameon": False, "handlelength": 4, "fontsize": 8.5}
    figure.legend(handles, names, loc="outside lower center", ncols=columns, **look)


def plot_streams(records: Mapping[str, StreamRecord], path: Path | str, title: str) -> None:
    """Write a PNG with two panels over the tasks learned: accuracy on all classes seen, and on the first.

    records: one line per name. The file appears whole or not at all.
    """
    figure = new_figure(9, 4.1)
    left, right = figure.subplots(1, 2, sharey=True)
    for (name, record), style in zip(records.items(), cycle(STYLES), strict=False):
        tasks_learned = np.arange(1, len(record.tasks) + 1)
        line = {"label": name, "linewidth": 2, "markeredgewidth": 1.8, "markerfacecolor": "white", **style}
        left.plot(tasks_learned, 100 * record.accuracy_after_task, **line)
        right.plot(tasks_learned, 100 * record.first_task_accuracy, **line)
    longest = max((len(record.tasks) for record in records.values()), default=1)
    _dress_panel(left, "All classes seen so far", longest)
    _dress_panel(right, "Classes of the first task", longest)
    left.set_ylabel("test accuracy (%)")
    figure.suptitle(title, fontsize=12)
    handles, names = left.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False, handlelength=4)
    save(figure, Path(path), "png")


def _dress_panel(axes: Axes, heading: str, tasks: int) -> None:
    """Heading, scales and grid of one panel."""
    dress(axes, heading)
    axes.set_xlabel("tasks learned")
    axes.set_xlim(0.8, tasks + 0.2)
    axes.set_xticks(range(1, tasks + 1) if tasks <= 10 else range(0, tasks + 1, max(1, tasks // 10)))
    axes.set_ylim(-5, 105)  # room for whole markers at 0 and 100
    axes.set_yticks(range(0, 101, 20))


def confusion_figure(labels: Sequence[Hashable], matrix: np.ndarray, title: str) -> Figure:
    """Images [true, predicted] as a grid: the darker a cell, the larger its share of the images of its row.

    Rows are scaled one by one, because classes may have very different numbers of images.
    """
    side = min(max(4.0, 1.8 + 0.35 * len(labels)), 16.0)
    figure = new_figure(side + 0.6, side)
    axes = figure.subplots()
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    picture = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    figure.colorbar(picture, ax=axes, shrink=0.8, label="share of the class's images")
    axes.set_title(safe_text(title), fontsize=11)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    if len(labels) <= MAX_NAMED:
        names = [safe_text(str(label), 24) for label in labels]
        size = 9 if len(labels) <= MAX_NUMBERED else 6
        axes.set_xticks(range(len(labels)), names, rotation=90, fontsize=size)
        axes.set_yticks(range(len(labels)), names, fontsize=size)
    if len(labels) <= MAX_NUMBERED:
        for row, column in zip(*np.nonzero(matrix), strict=True):
            ink = "white" if shares[row, column] > 0.5 else "black"
            number = f"{matrix[row, column]:,}"
            axes.text(float(column), float(row), number, ha="center", va="center", color=ink, fontsize=8)
    return figure


def reliability_figure(found: Reliability, title: str) -> Figure:
    """Accuracy against probability, bin by bin, and below it how many images each bin has.

    Probabilities that mean what they say lie on the diagonal; below it, answers are given too certainly.
    """
    figure = new_figure(4.8, 5.6)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    dress(upper, safe_text(title, 56))
    dress(lower)
    low, high, images, probability, accuracy = (np.array(column) for column in zip(*found.rows(), strict=True))
    upper.plot([0, 100], [0, 100], color="#555555", linestyle=":", linewidth=1.2, zorder=1)
    style = {**STYLES[0], "markersize": 5, "markerfacecolor": "white", "markeredgewidth": 1.3}
    upper.bar(100 * low, 100 * accuracy, 100 * (high - low), align="edge", color=STYLES[0]["color"], alpha=0.2)
    upper.plot(100 * probability, 100 * accuracy, linewidth=1.5, **style)
    text = f"expected calibration error {100 * found.expected_calibration_error:.1f} points"
    upper.text(4, 94, text, fontsize=9)
    upper.set_xlim(0, 100)
    upper.set_ylim(0, 103)
    upper.set_ylabel("right answers (%)")
    lower.bar(100 * low, images, 100 * (high - low), align="edge", color=STYLES[0]["color"], edgecolor="white")
    lower.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    lower.set_ylabel("images")
    lower.set_xlabel("probability of the answer (%)")
    return figure
