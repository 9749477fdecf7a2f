"""The figures of studies: variants as dots, allocations as a line, the paper's values beside them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from circle.paper.published import Metric, PublishedValue
from circle.report.cells import Summary
from circle.report.drawing import STYLES, dress, new_figure, safe_text
from circle.report.studies import StudyCells

PANELS: tuple[tuple[Metric, str], ...] = (
    ("average", "average incremental accuracy (%)"),
    ("final", "final accuracy (%)"),
)
OURS, PAPER = STYLES[0], STYLES[1]


def study_figure(study: StudyCells) -> Figure | None:
    """The picture of a study, or None where no variant has got to the end."""
    if not any(study.summaries("average")):
        return None
    return _allocations(study) if study.name == "ensemble" else _variants(study)


def _variants(study: StudyCells) -> Figure:
    """A line for every variant, a dot for its mean, bars for the deviation; the paper's value as a square."""
    figure = new_figure(9.2, 1.6 + 0.42 * len(study.cells))
    figure.suptitle(safe_text(study.title, 110), fontsize=11)
    panels = figure.subplots(1, 2, sharey=True)
    places = np.arange(len(study.cells), dtype=float)
    for axes, (metric, what) in zip(panels, PANELS, strict=True):
        ours, paper = study.summaries(metric), study.paper(metric)
        apart = 0.12 if any(paper) else 0.0
        _points(axes, places - apart, paper, PAPER, "paper", horizontal=True)
        _points(axes, places + apart, ours, OURS, "measured here", horizontal=True)
        dress(axes)
        axes.grid(visible=False, axis="y")
        axes.grid(axis="x", color="#DDDDDD", linewidth=0.8)
        axes.set_xlabel(what)
        ends = [value.mean + (value.std or 0.0) for value in (*ours, *paper) if value]
        axes.set_xlim(0, 1.07 * max(ends))  # whole markers, and zero in sight
    panels[0].set_yticks(places, [safe_text(cell.label, 40) for cell in study.cells])
    panels[0].set_ylim(len(study.cells) - 0.5, -0.5)  # the first variant on top
    _legend(figure, panels[0])
    return figure


def _allocations(study: StudyCells) -> Figure:
    """Accuracy against m while k m stays the same."""
    figure = new_figure(7.2, 4.8)
    figure.suptitle(safe_text(study.title, 110), fontsize=10)
    axes = figure.subplots()
    dress(axes)
    places = np.array([cell.config["members"] for cell in study.cells], dtype=float)
    for (metric, what), style in zip(PANELS, (OURS, STYLES[2]), strict=True):
        _points(axes, places, study.summaries(metric), style, f"{what}, measured here", line=True)
    _points(axes, places, study.paper("average"), PAPER, f"{PANELS[0][1]}, paper", line=True)
    axes.set_xscale("log", base=2)
    names = [f"{cell.config['members']}\nk = {cell.config['groups']}" for cell in study.cells]
    axes.set_xticks(places, names)
    axes.minorticks_off()
    axes.set_xlabel("m (members of a head)")
    axes.set_ylabel("accuracy (%)")
    _legend(figure, axes)
    return figure


def _points(
    axes: Axes,
    places: np.ndarray,
    values: Sequence[Summary | PublishedValue | None],
    style: dict,
    label: str,
    *,
    horizontal: bool = False,
    line: bool = False,
) -> None:
    """Means with bars of one standard deviation, where there are any."""
    shown = [(place, value) for place, value in zip(places, values, strict=True) if value is not None]
    if not shown:
        return
    at = [place for place, _ in shown]
    means = [value.mean for _, value in shown]
    bars = [value.std or 0.0 for _, value in shown]
    look = {
        "color": style["color"],
        "marker": style["marker"],
        "markersize": 0.8 * style["markersize"],
        "markerfacecolor": "white" if style is PAPER else style["color"],
        "linestyle": style["linestyle"] if line else "none",
        "linewidth": 1.5,
        "capsize": 3,
        "label": label,
        "zorder": style["zorder"],
    }
    if horizontal:
        axes.errorbar(means, at, xerr=bars, **look)
    else:
        axes.errorbar(at, means, yerr=bars, **look)


def _legend(figure: Figure, axes: Axes) -> None:
    """Below the panels, where it covers nothing."""
    handles, names = axes.get_legend_handles_labels()
    columns = 2 if max(map(len, names)) < 30 else 1
    figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False, fontsize=8.5)
