"""The demo's picture of class-incremental runs, drawn without a display."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from circle.benchmark.metrics import StreamRecord
from circle.report.drawing import STYLES, dress, new_figure, save


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
    _dress(left, "All classes seen so far", longest)
    _dress(right, "Classes of the first task", longest)
    left.set_ylabel("test accuracy (%)")
    figure.suptitle(title, fontsize=12)
    handles, names = left.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False, handlelength=4)
    save(figure, Path(path), "png")


def _dress(axes: Axes, heading: str, tasks: int) -> None:
    """Heading, scales and grid of one panel."""
    dress(axes, heading)
    axes.set_xlabel("tasks learned")
    axes.set_xlim(0.8, tasks + 0.2)
    axes.set_xticks(range(1, tasks + 1) if tasks <= 10 else range(0, tasks + 1, max(1, tasks // 10)))
    axes.set_ylim(-5, 105)  # room for whole markers at 0 and 100
    axes.set_yticks(range(0, 101, 20))
